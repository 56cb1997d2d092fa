"""The busiest doors of Evenkeel, each in a server of its own, with a load generator for a given
number of requests. bench/instructions counts their instructions, and packaging/release/profile
trains the compiler with them.

No client is ever refused. Needs the commands of NEEDED. Only the standard library is used.
"""

import re
import socket
import subprocess
import sys

import contest
from contest import LOAD_CORE, free_port
from ratelimit_calls import PATH, RULES, request

NEEDED = ["h2load", "nginx", "openssl", "taskset"]
CLIENTS = 32
# Questions that are sent together over the line protocol.
PIPELINE = 50


class Door:
    """`configure(bench, port)` returns the door's configuration, and `load(bench, port, count)`
    sends `count` requests."""

    def __init__(self, configure, load):
        self.configure, self.load = configure, load

    def open(self, bench, program):
        """Starts the server `program`, a list of words. Returns the server and its load generator."""
        port = free_port()
        path = bench.file("evenkeel.yaml",
                          f"admin: off\nlog: {{level: error}}\n{self.configure(bench, port)}")
        server = bench.start("evenkeel", [*program, "serve", "--config", path], port, patience=120)
        return server, lambda count: self.load(bench, port, count)


def proxy(*more, backends=1, limits=contest.BOUNDLESS):
    def configure(bench, port):
        servers = (f"http://127.0.0.1:{port}" for port in bench.answering_origins(backends))
        return f"""\
proxy:
  listen: 127.0.0.1:{port}
  backend: [{", ".join(servers)}]
  cpus: 1
  timeouts: {{idle: 1h}}
{"".join(more)}{limits}"""
    return configure


def tls(bench, port):
    cert = bench.certificate()
    encrypted = f"  tls: {{listen: 127.0.0.1:{port}, cert: {cert}.crt, key: {cert}.key}}\n"
    return proxy(HOLD, encrypted)(bench, free_port())


def ratelimit(rules=RULES):
    def configure(bench, port):
        file = bench.file("rules.yaml", rules)
        return f"ratelimit:\n  grpc: 127.0.0.1:{port}\n  http: 127.0.0.1:{free_port()}\n  rules: {file}\n"
    return configure


def line(_, port):
    return f"line:\n  listen: tcp://127.0.0.1:{port}\n  rate: 1000/s\n  burst: 100000\n"


def h2load(path, *options, scheme="http"):
    def load(_, port, count):
        said = subprocess.run(
            ["taskset", "-c", str(LOAD_CORE), "h2load", f"-n{count}", f"-c{CLIENTS}", *options,
             f"{scheme}://127.0.0.1:{port}{path}"], stdout=subprocess.PIPE, text=True, check=True)
        # h2load exits with 0 even if requests fail.
        good = re.search(r"(\d+) succeeded.*^status codes: (\d+) 2xx", said.stdout, re.M | re.S)
        if not good or {int(good[1]), int(good[2])} != {count}:
            sys.exit(f"not all of {count} requests were answered:\n{said.stdout}")
    return load


def calls(descriptors):
    def load(bench, port, count):
        body = bench.file(f"request-{descriptors}", "")
        with open(body, "wb") as file:
            file.write(request(descriptors))
        h2load(PATH, "-m10", "-d", body, "-H", "content-type: application/grpc",
               "-H", "te: trailers")(bench, port, count)
    return load


def ask(_, port, count):
    """Asks about 1000 tags in turn."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for begin in range(0, count, PIPELINE):
            tags = (f"client-{(begin + n) % 1000:09d}\n" for n in range(PIPELINE))
            connection.sendall("".join(tags).encode())
            answers = 0
            while answers < PIPELINE:
                part = connection.recv(65536)
                if not part:
                    sys.exit("the line door closed the connection")
                answers += part.count(b"\n")


HOLD = "  action: hold\n"
DOORS = {
    "hold": Door(proxy(HOLD), h2load("/", "--h1")),
    "queue": Door(proxy(), h2load("/", "--h1")),
    "http2": Door(proxy(HOLD), h2load("/", "-m10")),
    "tls": Door(tls, h2load("/", "-m10", scheme="https")),
    "one": Door(ratelimit(), calls(1)),
    "ten": Door(ratelimit(), calls(10)),
    "line": Door(line, ask),
}


def limits(count):
    """One limit that applies, and others for other paths."""
    others = "".join(f"    - {{name: path-{n}, by: ip/32, when: {{path: /section/{n}}}, share: 10%}}\n"
                     for n in range(count - 1))
    return f"  limits:\n    - {{name: ip, by: ip/32, share: 10%, burst: 1d}}\n{others}"


def rules(count):
    """Rules that the request does not match, and the one of RULES."""
    return RULES + "".join(
        f"- {{key: user, value: other-{n}, rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n"
        for n in range(count - 1))


# The numbers to try for each kind of growth, and the door for a number.
GROWTH = {
    "backends": ([1, 4, 16, 64],
                 lambda n: Door(proxy(HOLD, backends=n), h2load("/", "--h1"))),
    "limits": ([1, 4, 16, 32],
               lambda n: Door(proxy(HOLD, limits=limits(n)), h2load("/", "--h1"))),
    "rules": ([1, 10, 100, 1_000, 10_000], lambda n: Door(ratelimit(rules(n)), calls(1))),
}
