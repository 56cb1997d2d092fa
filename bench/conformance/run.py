#!/usr/bin/env python3
"""The same bytes to Evenkeel, nginx and HAProxy: what each does with requests that are odd, ambiguous
or hostile, and what a backend gets to see of them.

Usage: bench/conformance/run.py [EVENKEEL]      prints a table in Markdown; docs/conformance.md has one.

Every case is a name and the bytes that a client sends. Behind each proxy stands a backend of our own that
notes what it is sent. The outcome is one of: the status that the client got without the backend seeing
anything; `passed`, with what the backend saw if it is not what was sent; `closed`, the connection ended
without an answer. For frames: `reset N` or `goaway N` with the code. `ends`: a flood may be met by more than
one of its bounds, with a code or without, as its pieces arrive; how many of its requests pass before says nothing. nginx 1.22 knows no HTTP/2 without TLS
beside HTTP/1.1 on one port, so it has a port for frames.
"""

import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from ports import free_port, wait_for

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 2.0
LAST_CHUNK = re.compile(rb"(?:^|(?<=\n))0+(?:;[^\r]*)?\r\n(?:[^\r]+\r\n)*\r\n")


class Backend:
    """Notes the bytes of each request, up to the end of its body, and answers `ok`."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.seen = []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            stream, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(stream,), daemon=True).start()

    def serve(self, stream):
        unread = b""
        stream.settimeout(30)
        try:
            while True:
                while b"\r\n\r\n" not in unread:
                    piece = stream.recv(65536)
                    if not piece:
                        return
                    unread += piece
                head, unread = unread.split(b"\r\n\r\n", 1)
                fields = [line.lower() for line in head.split(b"\r\n")[1:]]
                body = b""
                length = [f.split(b":")[1] for f in fields if f.startswith(b"content-length:")]
                if any(f.startswith(b"transfer-encoding:") for f in fields):
                    while not (end := LAST_CHUNK.search(unread)):
                        unread += stream.recv(65536) or (_ for _ in ()).throw(OSError())
                    body, unread = unread[: end.start()], unread[end.end():]
                elif length:
                    while len(unread) < int(length[0]):
                        unread += stream.recv(65536) or (_ for _ in ()).throw(OSError())
                    body, unread = unread[: int(length[0])], unread[int(length[0]):]
                self.seen.append((head, body))
                stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except OSError:
            pass


class Streams:
    """A backend that speaks HTTP/2 in clear and answers each request with frames as it is told."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.answer = lambda stream: []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            stream, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(stream,), daemon=True).start()

    def serve(self, stream):
        got = b""
        try:
            stream.sendall(frame(4, 0, 0))
            while piece := stream.recv(65536):
                got += piece
                if got.startswith(b"PRI"):
                    if len(got) < 24:
                        continue
                    got = got[24:]
                while len(got) >= 9 and len(got) >= 9 + (size := int.from_bytes(got[:3], "big")):
                    kind, flags, number = got[3], got[4], int.from_bytes(got[5:9], "big")
                    got = got[9 + size:]
                    if kind == 4 and not flags & 1:
                        stream.sendall(frame(4, 1, 0))
                    if kind == 1:
                        first, *later = self.answer(number)
                        stream.sendall(first)
                        for piece in later:
                            time.sleep(0.2)
                            stream.sendall(piece)
        except OSError:
            pass


class Server:
    """A proxy before a backend of its own; `port` for HTTP/1.1, `frames` for HTTP/2 in clear. With
    `streams` the backend is one that speaks HTTP/2."""

    def __init__(self, name, folder, program, streams=False):
        self.name, self.streams = name, streams
        self.backend = Streams() if streams else Backend()
        self.port = self.frames = free_port()
        text, command = getattr(self, name)(folder, program)
        path = folder / f"{name}.conf"
        path.write_text(text)
        command = [str(path) if word == "CONF" else word for word in command]
        log = open(folder / f"{name}.log", "wb")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self.port)

    def evenkeel(self, _, program):
        text = (
            f"admin: off\nproxy:\n  listen: 127.0.0.1:{self.port}\n  limits: []\n"
            f"  backend: {'h2c' if self.streams else 'http'}://127.0.0.1:{self.backend.port}\n"
            "  timeouts: {header: 1s}\n"
            "  bounds: {header_bytes: 16k}\n"
        )
        return text, [program, "serve", "--config", "CONF"]

    def nginx(self, folder, _):
        self.frames = free_port()
        place = (
            f"location / {{ proxy_pass http://127.0.0.1:{self.backend.port};"
            " proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header Host $host; }"
        )
        text = (
            f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr;\n"
            f"events {{}} http {{ access_log off; client_header_timeout 1s; proxy_temp_path {folder}/p;"
            f" client_body_temp_path {folder}/c; fastcgi_temp_path {folder}/f;"
            f" uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
            f"server {{ listen 127.0.0.1:{self.port}; {place} }}\n"
            f"server {{ listen 127.0.0.1:{self.frames} http2; {place} }} }}\n"
        )
        return text, ["nginx", "-c", "CONF", "-p", str(folder)]

    def haproxy(self, *_):
        text = (
            "defaults\n mode http\n timeout connect 3s\n timeout client 5s\n timeout server 5s\n"
            " timeout http-request 1s\n"
            f"frontend f\n bind 127.0.0.1:{self.port}\n default_backend b\n"
            f"backend b\n server s 127.0.0.1:{self.backend.port}{' proto h2' * self.streams}\n"
        )
        return text, ["haproxy", "-db", "-f", "CONF"]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def receive(stream, enough):
    """Reads until `enough` says so, the end, nothing comes any more, or too much does."""
    got = bytearray()
    stream.settimeout(PATIENCE)
    try:
        while not enough(got) and len(got) < 4_000_000:
            piece = stream.recv(65536)
            if not piece:
                return got, True
            got += piece
    except ConnectionResetError:
        return got, True
    except TimeoutError:
        pass
    return got, False


def send(stream, pieces):
    try:
        for piece in pieces:
            stream.sendall(piece)
    except OSError:
        pass


def plain(server, raw):
    """What becomes of the bytes of a request in HTTP/1.1."""
    server.backend.seen.clear()
    with socket.create_connection(("127.0.0.1", server.port), 5) as stream:
        send(stream, raw if isinstance(raw, list) else [raw])
        got, ended = receive(stream, lambda got: b"\r\n\r\n" in got)
        status = bytes(got).split(b" ")[1].decode() if got.startswith(b"HTTP/1") else None
    time.sleep(0.02)
    seen = list(server.backend.seen)
    if not seen:
        return status or ("closed" if ended else "waits")
    return f"passed ({note(raw, seen)})" if note(raw, seen) else "passed"


def note(raw, seen):
    """What of a request the backend saw in another way than it was sent, in a few words."""
    raw = b"".join(raw) if isinstance(raw, list) else raw
    notes = []
    if len(seen) > 1:
        notes.append(f"{len(seen)} requests")
    head, body = seen[0]
    sent, line = raw.split(b"\r\n")[0], head.split(b"\r\n")[0]
    if sent.split(b" ")[1:2] != line.split(b" ")[1:2]:
        notes.append("target " + line.split(b" ")[1].decode("latin1"))
    lower = head.lower()
    if b"transfer-encoding" in lower and b"content-length" in lower:
        notes.append("both lengths")
    for word in (b"x-bad", b"upgrade:", b"expect:", b"x-hop"):
        if b"\n" + word in raw.lower() and b"\n" + word not in lower:
            notes.append("without " + word.decode().rstrip(":"))
    hosts = [l.split(b":", 1)[1].strip() for l in lower.split(b"\r\n") if l.startswith(b"host:")]
    if hosts != [b"a"]:
        notes.append("host " + b", ".join(hosts).decode("latin1"))
    return "; ".join(notes)


def get(*lines, target="/", version="HTTP/1.1", host="Host: a"):
    lines = [f"GET {target} {version}", *([host] if host else []), *lines]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin1")


def post(*lines, body=b""):
    lines = ["POST / HTTP/1.1", "Host: a", *lines]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin1") + body


CHUNKED = "Transfer-Encoding: chunked"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

PLAIN = [
    ("a plain request", get()),
    ("two lengths that differ", post("Content-Length: 3", "Content-Length: 4", body=b"abcd")),
    ("two lengths that agree", post("Content-Length: 3", "Content-Length: 3", body=b"abc")),
    ("a list of lengths", post("Content-Length: 3, 3", body=b"abc")),
    ("a signed length", post("Content-Length: +3", body=b"abc")),
    ("a length in hexadecimal", post("Content-Length: 0x3", body=b"abc")),
    ("a length beyond 64 bits", post("Content-Length: 99999999999999999999")),
    ("a length and chunks", post("Content-Length: 4", CHUNKED, body=b"0\r\n\r\n")),
    ("chunks with a request behind", post(CHUNKED, body=b"0\r\n\r\n" + SMUGGLED)),
    ("chunked twice", post(CHUNKED, CHUNKED, body=b"0\r\n\r\n")),
    ("a coding before chunked", post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")),
    ("chunked not last", post("Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n")),
    ("an unknown coding", post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n")),
    ("a coding with a tab", post("Transfer-Encoding:\tchunked", body=b"0\r\n\r\n")),
    ("chunked in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: a\r\n" + CHUNKED.encode() + b"\r\n\r\n0\r\n\r\n"),
    ("a space before the colon", post("Content-Length : 3", body=b"abc")),
    ("a tab before the colon", post("Transfer-Encoding\t: chunked", body=b"0\r\n\r\n")),
    ("a folded line", get("X-Bad: 1\r\n 2")),
    ("a line without a colon", get("nonsense")),
    ("an empty name", get(": x")),
    ("a name with a bracket", get("x(y): 1")),
    ("a name with an underscore", get("x_bad: 1", "X_Bad: 2")),
    ("a null in a value", get("X-Bad: a\0b")),
    ("a bare return in a value", get("X-Bad: a\rb")),
    ("a control sign in a value", get("X-Bad: a\x01b")),
    ("lines that end in a bare line feed", b"GET / HTTP/1.1\nHost: a\n\n"),
    ("a chunk size with a sign", post(CHUNKED, body=b"+3\r\nabc\r\n0\r\n\r\n")),
    ("a chunk size with 0x", post(CHUNKED, body=b"0x3\r\nabc\r\n0\r\n\r\n")),
    ("a chunk size beyond 64 bits", post(CHUNKED, body=b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n")),
    ("a chunk that is longer than it says", post(CHUNKED, body=b"3\r\nabcd\r\n0\r\n\r\n")),
    ("a chunk line that ends in a bare line feed", post(CHUNKED, body=b"3\nabc\r\n0\r\n\r\n")),
    ("a chunk extension", post(CHUNKED, body=b"3;a=b\r\nabc\r\n0\r\n\r\n")),
    ("trailers", post(CHUNKED, body=b"3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n")),
    ("no host", get(host=None)),
    ("two hosts", get("Host: b")),
    ("a host with a path", get(host="Host: a/b")),
    ("a host with a user", get(host="Host: u@a")),
    ("a host with a space", get(host="Host: a b")),
    ("a host with a port that is no number", get(host="Host: a:0x")),
    ("an absolute target", get(target="http://b/x")),
    ("an absolute target of another scheme", get(target="ftp://a/")),
    ("a target without slash", get(target="x")),
    ("a target with a space", get(target="/a b")),
    ("a target with a fragment", get(target="/#x")),
    ("a target of 10 kB", get(target="/" + "x" * 10_000)),
    ("dots in a target", get(target="/a/../../b")),
    ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CONNECT", b"CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n"),
    ("TRACE", b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a method in lower case", b"get / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a method with a sign", b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("HTTP/0.9", b"GET /\r\n"),
    ("HTTP/1.2", get(version="HTTP/1.2")),
    ("HTTP/2.0 in a request line", get(version="HTTP/2.0")),
    ("http in lower case", get(version="http/1.1")),
    ("two spaces in the request line", b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an empty line first", b"\r\n" + get()),
    ("connection names a field", get("Connection: x-hop", "X-Hop: 1")),
    ("connection names the host", get("Connection: host")),
    ("upgrade to h2c", get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
                           "HTTP2-Settings: AAMAAABkAAQAAP__")),
    ("expect anything else", post("Expect: 200-maybe", "Content-Length: 0")),
    ("200 fields", get(*[f"X-{n}: 1" for n in range(200)])),
    ("a head of 100 kB", get("X-Bad: " + "x" * 100_000)),
    ("a head that never ends", b"GET / HTTP/1.1\r\nHost: a\r\n"),
    ("TLS to a plain port", b"\x16\x03\x01\x00\x05hello"),
]


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def field(name, value):
    name, value = name.encode("latin1"), value.encode("latin1")
    assert len(name) < 127 and len(value) < 127
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


PROPER = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")]


def head(lines, flags=5, stream=1):
    return frame(1, flags, stream, b"".join(field(*line) for line in lines))


def without(name):
    return [line for line in PROPER if line[0] != name]


def framed(server, raw):
    """What becomes of frames behind the preface."""
    server.backend.seen.clear()
    with socket.create_connection(("127.0.0.1", server.frames), 5) as stream:
        begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
        raw = raw if isinstance(raw, list) else [raw]
        threading.Thread(target=send, args=(stream, [begin, *raw]), daemon=True).start()
        flood = isinstance(raw, Flood)
        frames = Frames(flood)
        _, ended = receive(stream, frames.read)
    time.sleep(0.02)
    said = frames.said
    if flood:
        return "ends" if ended or (said or "").startswith("goaway") else said or "stays open"
    if server.backend.seen:
        return "passed"
    return said or ("closed" if ended else "stays open")


class Flood(list):
    """Many requests, of which it only counts what becomes of their connection."""


class Frames:
    """Reads frames as they come, up to the first that tells what became of the request."""

    def __init__(self, flood):
        self.at, self.said, self.flood = 0, None, flood

    def read(self, got):
        while self.said is None and len(got) - self.at >= 9:
            header = got[self.at : self.at + 9]
            length, kind = struct.unpack(">I", b"\0" + header[:3])[0], header[3]
            payload = got[self.at + 9 : self.at + 9 + length]
            if len(payload) < length:
                break
            self.at += 9 + length
            if kind == 3:
                self.said = f"reset {struct.unpack('>I', payload[:4])[0]}"
            elif kind == 7 and payload[4:8] != b"\0\0\0\0":
                self.said = f"goaway {struct.unpack('>I', payload[4:8])[0]}"
            elif kind == 1 and not self.flood:
                self.said = "answered"
        return self.said is not None


FRAMES = [
    ("a plain request", head(PROPER)),
    ("upper case in a name", head([*PROPER, ("X-Upper", "1")])),
    ("a space in a name", head([*PROPER, ("x a", "1")])),
    ("a line end in a value", head([*PROPER, ("x", "1\r\ny: 2")])),
    ("connection", head([*PROPER, ("connection", "close")])),
    ("transfer-encoding", head([*PROPER, ("transfer-encoding", "chunked")])),
    ("te but trailers", head([*PROPER, ("te", "gzip")])),
    ("a pseudo-header after fields", head([("x", "1"), *PROPER])),
    ("an unknown pseudo-header", head([*PROPER, (":status", "200")])),
    ("a method twice", head([*PROPER, (":method", "POST")])),
    ("no method", head(without(":method"))),
    ("no path", head(without(":path"))),
    ("no scheme", head(without(":scheme"))),
    ("no authority and no host", head(without(":authority"))),
    ("an empty path", head([*without(":path"), (":path", "")])),
    ("another host than authority", head([*PROPER, ("host", "b")])),
    ("a length and no body", head([*PROPER, ("content-length", "5")])),
    ("a body longer than stated", head([*PROPER, ("content-length", "1")], flags=4)
     + frame(0, 1, 1, b"abc")),
    ("CONNECT", head([(":method", "CONNECT"), (":authority", "a:1")])),
    ("data on a stream that is not open", frame(0, 0, 1, b"x")),
    ("an even stream", head(PROPER, stream=2)),
    ("a window that overflows", frame(8, 0, 0, b"\x7f\xff\xff\xff")),
    ("a continuation of nothing", frame(9, 4, 1, b"")),
    ("a ping within a head", head(PROPER, flags=1) + frame(6, 0, 0, b"\0" * 8)),
    ("settings of five bytes", frame(4, 0, 0, b"\0" * 5)),
    ("a frame beyond the size", frame(0, 0, 1, b"\0" * 20_000)),
    ("a push", frame(5, 4, 1, b"\0\0\0\2")),
    ("compression that says nothing", frame(1, 5, 1, b"\xff" * 20)),
    ("a flood of continuations", [head(PROPER, flags=1), *[frame(9, 0, 1, b"")] * 20_000]),
    ("a head of 16 MB", [head(PROPER, flags=1), *[frame(9, 0, 1, field("x", "x" * 120) * 130)] * 1000]),
    ("10 000 resets", Flood([b"".join(head(PROPER, stream=s) + frame(3, 0, s, b"\0\0\0\x08")
                                      for s in range(1, 20_001, 2))])),
    ("100 000 pings", [frame(6, 0, 0, b"\0" * 8) * 1000] * 100),
    ("100 000 settings", [frame(4, 0, 0, b"\0\3\0\0\0\x64") * 1000] * 100),
]


def status(stream, flags=4, *lines):
    return head([(":status", "200"), *lines], flags, stream)


THREE = ("content-length", "3")

# The responses of a backend on a stream: pieces, each of which but the first is sent later.
ANSWERS = [
    ("a whole answer", lambda s: [status(s, 4, THREE) + frame(0, 1, s, b"abc")]),
    ("a length and no body", lambda s: [status(s, 5, THREE)]),
    ("a body longer than stated", lambda s: [status(s, 4, THREE) + frame(0, 1, s, b"abcd")]),
    ("a body shorter than stated", lambda s: [status(s, 4, THREE) + frame(0, 1, s, b"ab")]),
    ("two lengths that differ",
     lambda s: [status(s, 4, THREE, ("content-length", "2")) + frame(0, 1, s, b"ab")]),
    ("longer than stated, later", lambda s: [status(s, 4, THREE), frame(0, 1, s, b"abcd")]),
    ("shorter than stated, later",
     lambda s: [status(s, 4, THREE) + frame(0, 0, s, b"ab"), frame(0, 1, s, b"")]),
    ("a reset within the body",
     lambda s: [status(s, 4, THREE) + frame(0, 0, s, b"ab"), frame(3, 0, s, b"\0\0\0\2")]),
    ("a reset without an error within the body",
     lambda s: [status(s, 4, THREE) + frame(0, 0, s, b"ab"), frame(3, 0, s, b"\0\0\0\0")]),
    ("a connection that ends within the body",
     lambda s: [status(s, 4, THREE) + frame(0, 0, s, b"ab"), frame(7, 0, 0, b"\0" * 8), b"\0" * 9]),
    ("a field of connections", lambda s: [status(s, 4, THREE, ("connection", "x")) + frame(0, 1, s, b"abc")]),
    ("no status", lambda s: [head([THREE], 4, s) + frame(0, 1, s, b"abc")]),
]


def answered(server, answer):
    """What a client of HTTP/1.1 gets of it: `whole`, `broken` after a head, or a status."""
    server.backend.answer = answer
    with socket.create_connection(("127.0.0.1", server.port), 5) as stream:
        send(stream, [get()])
        def whole(got):
            head, end, body = bytes(got).partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.I)
            return end and (b"0\r\n\r\n" in body if not length else len(body) >= int(length[1]))
        got, ended = receive(stream, whole)
    if not got:
        return "nothing" if ended else "waits"
    code = bytes(got).split(b" ")[1].decode()
    if not whole(got):
        return "broken" if ended else "waits"
    return "whole" if code == "200" else code


def table(title, servers, cases, play):
    print(f"\n## {title}\n\n| case | " + " | ".join(server.name for server in servers) + " |")
    print("|---|" + "---|" * len(servers))
    for name, raw in cases:
        print(f"| {name} | " + " | ".join(play(server, raw) for server in servers) + " |", flush=True)
        for server in servers:
            if server.process.poll() is not None:
                raise SystemExit(f"{server.name} ended at: {name}")


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(HERE.parents[1] / "target/debug/evenkeel")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.chmod(folder, 0o755)
        servers = [Server(name, folder, program) for name in ("evenkeel", "nginx", "haproxy")]
        try:
            table("HTTP/1.1", servers, PLAIN, plain)
            table("HTTP/2", servers, FRAMES, framed)
            # This nginx speaks HTTP/2 behind for gRPC only.
            behind = [Server(name, folder, program, True) for name in ("evenkeel", "haproxy")]
            servers += behind
            table("Answers over HTTP/2", behind, ANSWERS, answered)
        finally:
            for server in servers:
                server.stop()


main()
