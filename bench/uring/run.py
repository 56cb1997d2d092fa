#!/usr/bin/env python3
"""What io_uring gives to a proxy, beside epoll.

One small proxy in several variants, built from this folder. All parse and copy the same: a head gets
one more line, an answer has a Content-Length, connections stay open on both sides, those to the
backend are a pool. The results stand in docs/performance.md, "io_uring".

- epoll: edge triggered; receive, send, receive, send.
- ring: io_uring with one request for each receive and send, handed over once per turn of the loop.
  `+link`: a send is linked with the receive after it. `+multi`: multishot receives into a registered
  ring of buffers. `+fixed`: registered sockets. `+zc`: SEND_ZC. `+sqpoll=CPU`: a thread of the kernel
  takes the requests, on this CPU.
- tokio, hyper: the same with a task for each client, and with hyper on both sides; on tokio's sockets,
  or on these with sends that wait until no task can run (`-late`, small answers only), or on a ring
  that tokio's loop drives (`-ring`).

Each answer is checked before the measurement and after it, with clients in parallel and heads cut in
two; wrk must see no error. The CPU time of a process contains that of the kernel's threads that work
for its ring. How to run: bench/uring/run.py [--rounds 5] [--seconds 3] [--connections 64]
[--bytes 2] [--contestants epoll ring+multi+fixed] [--nice -10] [--calls]
[--busy]: with another process on the server's core, so that requests wait for the server and not
the server for requests, which makes the most of whatever is done for many requests at once.
"""

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import contest
from contest import LOAD_CORE, SERVER_CORE, Bench, free_port, spread, wrk

DEFAULT = ["nginx", "epoll", "ring", "ring+link", "ring+multi", "ring+multi+fixed", "tokio",
           "tokio-late", "tokio-ring", "hyper", "hyper-late", "hyper-ring"]
# What is compared, within each round.
PAIRS = [("tokio-late", "tokio"), ("tokio-ring", "tokio"), ("hyper-late", "hyper"),
         ("hyper-ring", "hyper")]


def origin(bench, size):
    """Answers `/` with so many bytes, and `/echo/...` with the path and what the proxy added."""
    port = free_port()
    bench.file("body", "x" * size)
    bench.nginx("origin", port, f"""\
  client_header_timeout 3600s;
  open_file_cache max=10;
  sendfile on;
  tcp_nopush on;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = / {{ {f"root {bench.folder}; try_files /body =404;" if size > 2 else "return 200 ok;"} }}
    location /echo/ {{ return 200 "$uri $http_x_forwarded_for"; }}
  }}
""", LOAD_CORE)
    return port


def read_answer(stream):
    status = stream.readline()
    assert status == b"HTTP/1.1 200 OK\r\n", status
    length = None
    while (line := stream.readline()) != b"\r\n":
        name, value = line.split(b":", 1)
        if name.lower() == b"content-length":
            length = int(value)
    body = stream.read(length)
    assert len(body) == length, "cut off"
    return body


def check(server, size, clients=48, turns=10):
    """Every answer is whole and for its own request."""
    sockets = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(clients)]
    streams = [each.makefile("rb") for each in sockets]
    for turn in range(turns):
        heads = [f"GET /echo/{turn}-{n} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for n in range(clients)]
        for each, head in zip(sockets, heads):
            each.sendall(head[:20 + turn])
        for each, head in zip(sockets, heads):
            each.sendall(head[20 + turn:])
        for n, stream in enumerate(streams):
            body = read_answer(stream)
            assert body == f"/echo/{turn}-{n} 127.0.0.1".encode(), (server.name, body)
    expected = b"x" * size if size > 2 else b"ok"
    for each in sockets:
        each.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    for stream in streams:
        assert read_answer(stream) == expected, server.name
    for each in sockets:
        each.close()


def calls(server, connections):
    """System calls for each request, counted in a run of their own because counting takes time."""
    counter = subprocess.Popen(
        ["perf", "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", ",".join(map(str, server.family()))],
        stderr=subprocess.PIPE, text=True)
    out = subprocess.run(
        ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{connections}", "-d2s",
         f"http://127.0.0.1:{server.port}/"], stdout=subprocess.PIPE, text=True, check=True).stdout
    counter.send_signal(2)
    found = re.search(r"^(\d+),", counter.communicate()[1], re.M)
    return found and int(found[1]) / int(re.search(r"(\d+) requests in", out)[1])


def measure(server, connections, seconds):
    try:
        return wrk(server, connections, seconds)
    except SystemExit:
        print(open(server.log.name, errors="replace").read()[-2000:])
        raise


def start(bench, name, binary, backend, asked):
    port = free_port()
    if name == "nginx":
        return bench.nginx("nginx", port, f"""\
  upstream origin {{ server 127.0.0.1:{backend}; keepalive 320; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffers 8 32k;
      proxy_buffer_size 32k;
    }}
  }}
""")
    backends = max(asked.connections, 64) + 40
    command = [binary, name, str(port), str(backend), str(backends), str(asked.buffer)]
    return bench.start(name, command, port)


def tables(results, counted):
    print("\n| | requests/s | CPU us/request | core busy | p50 ms | p99 ms | system calls |")
    print("|---|---|---|---|---|---|---|")
    for name, rounds in results.items():
        column = lambda key, digits=1: spread([r[key] for r in rounds], digits)
        number = f"{counted[name]:.2f}" if counted.get(name) else ""
        print(f"| {name} | {column('rate', 0)} | {column('cpu_us', 2)} | {column('busy', 2)} "
              f"| {column('p50', 2)} | {column('p99', 2)} | {number} |")
    pairs = [(name, "epoll") for name in results if name != "epoll" and "epoll" in results]
    print("\n| | against | requests/s | CPU per request |\n|---|---|---|---|")
    for mine, other in pairs + [pair for pair in PAIRS if set(pair) <= set(results)]:
        both = list(zip(results[mine], results[other]))
        ratio = lambda key: spread([a[key] / b[key] for a, b in both], 2)
        print(f"| {mine} | {other} | {ratio('rate')} | {ratio('cpu_us')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=2, help="of an answer's body")
    parser.add_argument("--buffer", type=int, default=4096, help="bytes received at once")
    parser.add_argument("--contestants", nargs="*", default=DEFAULT)
    parser.add_argument("--calls", action="store_true", help="count system calls (needs perf)")
    parser.add_argument("--busy", action="store_true", help="an idle loop has half of the server's core")
    parser.add_argument("--nice", type=int, default=0)
    asked = parser.parse_args()
    contest.need("nginx", "wrk", "taskset")
    binary = contest.service("uring", "uring", "EVENKEEL_URING")
    contest.prefer(asked.nice)
    contest.raise_file_limit(20_000)
    nothing = subprocess.run(["taskset", "-c", "0", binary, "call"], stdout=subprocess.PIPE, text=True)
    contest.describe(
        contest.first_line("nginx", "-v"), contest.first_line("wrk", "-v"),
        f"a system call that does nothing: {nothing.stdout.strip()}",
        f"{asked.rounds} interleaved rounds of {asked.seconds} s, {asked.connections} connections, "
        f"answers of {asked.bytes} bytes, buffers of {asked.buffer}, nice {asked.nice}"
        f"{', a busy core' if asked.busy else ''}; "
        "median (min-max)")
    results, counted = {}, {}
    with Bench() as bench:
        backend = origin(bench, asked.bytes)
        servers = [start(bench, name, binary, backend, asked) for name in asked.contestants]
        for server in servers:
            check(server, asked.bytes)
            measure(server, asked.connections, asked.warm)
        spinner = asked.busy and subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), sys.executable, "-c", "while True: pass"])
        for turn in range(asked.rounds):
            # The first server of one round is the last of the next.
            for server in servers[::-1] if turn % 2 else servers:
                results.setdefault(server.name, []).append(
                    measure(server, asked.connections, asked.seconds))
        if spinner:
            spinner.kill()
            spinner.wait()
        for server in servers:
            if asked.calls:
                counted[server.name] = calls(server, asked.connections)
            check(server, asked.bytes)
            assert server.process.poll() is None, server.name
    tables({name: results[name] for name in asked.contestants}, counted)
    load = os.getloadavg()[0]
    busy = statistics.median(r["busy"] for rounds in results.values() for r in rounds)
    print(f"\nLoad at the end {load:.1f}; the cores of the servers were {busy:.0%} busy.")


main()
