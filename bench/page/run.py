#!/usr/bin/env python3
"""What the page at the admin address costs the server, with many clients and some who watch.

The binary serves requests of ten thousand clients before a backend that answers at once; then the CPU
time of the thread of the admin door is read twice, `--seconds` apart, from /proc: without anybody
who watches, with one page, with several. Beside it stand the CPU time of the whole process for each
request, and its resident memory. All on loopback.

    cargo build --profile dist -p evenkeel && bench/page/run.py
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def backend(reader, writer):
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(ANSWER)
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


def address(client):
    return f"10.{client // 65536}.{client // 256 % 256}.{client % 256}"


answered = 0


async def visit(port, clients, rest):
    """Asks as one of `clients` after the other; `rest`: seconds between two of them."""
    global answered
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for client in clients:
        head = f"GET /page/{client % 50} HTTP/1.1\r\nHost: site\r\nX-Forwarded-For: {address(client)}\r\n"
        writer.write(head.encode() + f"User-Agent: agent {client % 700}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        answered += 1
        if rest:
            await asyncio.sleep(rest)
    writer.close()


async def watch(port, seen):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    while data := await reader.read(1 << 20):
        seen[0] += len(data)


def cpu(folder):
    """CPU seconds of a process or a thread."""
    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    """Resident memory in MB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


def admin_cpu(pid):
    """CPU seconds of the thread of the admin door."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "admin":
            return cpu(task)
    raise SystemExit("no thread is called admin")


async def measure(pid, seconds, watchers, port):
    seen = [0]
    tasks = [asyncio.create_task(watch(port, seen)) for _ in range(watchers)]
    await asyncio.sleep(2)
    process = pathlib.Path(f"/proc/{pid}")
    before, sent, used, requests = admin_cpu(pid), seen[0], cpu(process), answered
    await asyncio.sleep(seconds)
    share = (admin_cpu(pid) - before) / seconds
    each = 1e6 * (cpu(process) - used) / max(answered - requests, 1)
    per_second = (seen[0] - sent) / seconds / max(watchers, 1)
    for task in tasks:
        task.cancel()
    await asyncio.sleep(1.5)
    return share, per_second, each, memory(pid)


async def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--binary", default=ROOT / "target/dist/evenkeel")
    arguments.add_argument("--clients", type=int, default=10_000)
    arguments.add_argument("--seconds", type=int, default=30)
    asked = arguments.parse_args()
    site = await asyncio.start_server(backend, "127.0.0.1", 0)
    folder = tempfile.TemporaryDirectory()
    config = {
        "log": {"format": "json"},
        "admin": {"listen": "127.0.0.1:0"},
        "proxy": {
            "listen": "127.0.0.1:0", "backend": f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}",
            "trusted_proxies": ["127.0.0.1"], "names_max": asked.clients,
        },
    }
    file = pathlib.Path(folder.name, "evenkeel.yaml")
    file.write_text(json.dumps(config))
    server = subprocess.Popen([asked.binary, "serve", "--config", file], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            fields = json.loads(line)["fields"]
            if fields.get("message") == "proxy open":
                break
        port = {name: int(fields[name].strip("[]").rsplit(":", 1)[1]) for name in ("listen", "admin")}
        all_clients = list(range(asked.clients))
        parts = [all_clients[n::8] for n in range(8)]
        for _ in range(2):
            await asyncio.gather(*(visit(port["listen"], part, 0) for part in parts))
        endless = (random.randrange(asked.clients) for _ in iter(int, 1))
        traffic = [asyncio.create_task(visit(port["listen"], endless, 0.01)) for _ in range(4)]
        print(f"{asked.clients} clients, {asked.seconds} s each")
        for watchers in (0, 1, 8):
            share, sent, each, resident = await measure(server.pid, asked.seconds, watchers, port["admin"])
            print(
                f"{watchers} watch: {100 * share:.2f} % of one core, {sent / 1024:.1f} KiB/s to each; "
                f"{each:.0f} us of CPU for each request, {resident:.1f} MB"
            )
        for task in traffic:
            task.cancel()
    finally:
        server.kill()
        server.wait()
        folder.cleanup()


asyncio.run(main())
