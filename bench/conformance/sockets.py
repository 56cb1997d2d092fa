#!/usr/bin/env python3
"""WebSockets through Evenkeel, nginx and HAProxy to a real server (websockets): what becomes of each,
begun over HTTP/1.1 and on a stream of HTTP/2 (RFC 8441).

Usage: bench/conformance/sockets.py [EVENKEEL]   needs `pip install websockets h2`; prints a table in
Markdown.

Every case is a name, a path at the server, what the client does, and what it gets from the server
alone; the outcome is `passed` if it got that, else what it got instead. The client is a WebSocket
without a network (websockets' own), whose bytes go over a connection or a stream. The gate has
HAProxy's `option` and nginx's fields for upgrades; nginx 1.22 does not offer them on streams.
"""

import http
import logging
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading

import h2.config
import h2.connection
import h2.events
import h2.settings
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.http11 import Response
from websockets.sync.server import serve
from websockets.uri import parse_uri

from ports import free_port, wait_for

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 5
LONG = b"0123456789abcdef" * 65536
gone = threading.Semaphore(0)


class Refused(Exception):
    """The client got something else than a WebSocket."""


def echo(connection):
    path = connection.request.path
    if path == "/bye":
        connection.send("bye")
        return connection.close(4000, "enough")
    if path == "/dies":
        return connection.socket.shutdown(socket.SHUT_RDWR)
    try:
        for message in connection:
            connection.send(message)
    finally:
        gone.release()


def declines(connection, request):
    codes = {"/forbidden": http.HTTPStatus.FORBIDDEN, "/page": http.HTTPStatus.OK}
    if request.path in codes:
        return connection.respond(codes[request.path], "no WebSocket here\n")


class Plain:
    """A connection."""

    def __init__(self, port, path):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}{path}"), subprotocols=["chat"], max_size=None)
        self.protocol.send_request(self.protocol.connect())
        self.flush()
        while self.protocol.state.name == "CONNECTING":
            if self.protocol.handshake_exc:
                raise Refused(self.status())
            self.more()
        if self.protocol.handshake_exc:
            raise Refused(self.status())

    def status(self):
        return str(self.protocol.handshake_exc.response.status_code)

    def flush(self):
        for data in self.protocol.data_to_send():
            if data:
                self.socket.sendall(data)
            else:
                self.socket.shutdown(socket.SHUT_WR)

    def more(self):
        data = self.socket.recv(65536)
        self.protocol.receive_data(data) if data else self.protocol.receive_eof()
        self.flush()

    def reset(self):
        self.socket.close()


class Stream:
    """A stream of HTTP/2: what a browser asks for on the connection that it has."""

    def __init__(self, port, path, protocol=b"websocket"):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.frames = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.frames.initiate_connection()
        self.early = b""
        self.unsent, self.answer, self.ended, self.done = b"", None, False, False
        self.push()
        while not self.frames.remote_settings.enable_connect_protocol:
            self.pull()
            if self.frames.remote_settings.acknowledged_once and not self.frames.remote_settings.enable_connect_protocol:
                raise Refused("not offered")
        self.stream = self.frames.get_next_available_stream_id()
        self.frames.send_headers(self.stream, [
            (":method", "CONNECT"), (":protocol", protocol.decode()), (":scheme", "http"), (":path", path),
            (":authority", f"127.0.0.1:{port}"), ("sec-websocket-version", "13"), ("sec-websocket-protocol", "chat")])
        self.push()
        while self.answer is None:
            self.pull()
        if self.answer[":status"] != "200":
            raise Refused(self.answer[":status"])
        if self.answer.get("sec-websocket-protocol") != "chat":
            raise Refused("without its protocol")
        # The handshake was HTTP/2's: from here on a WebSocket that is open.
        self.protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}{path}"), max_size=None)
        self.protocol.state = type(self.protocol.state).OPEN
        self.protocol.parser = self.protocol.parse()
        next(self.protocol.parser)
        # The data that arrived with the response.
        self.protocol.receive_data(self.early)
        if self.ended:
            self.protocol.receive_eof()

    def push(self):
        self.socket.sendall(self.frames.data_to_send())

    def flush(self):
        ends = False
        for data in self.protocol.data_to_send():
            self.unsent, ends = self.unsent + data, ends or not data
        while self.unsent:
            room = min(self.frames.local_flow_control_window(self.stream), self.frames.max_outbound_frame_size)
            if not room:
                self.pull()
                continue
            self.frames.send_data(self.stream, self.unsent[:room])
            self.unsent = self.unsent[room:]
            self.push()
        if ends and not self.done:
            self.done = True
            self.frames.end_stream(self.stream)
            self.push()

    def pull(self):
        """Reads frames; what is a WebSocket's goes to it."""
        data = self.socket.recv(65536)
        if not data:
            raise Refused("closed")
        for event in self.frames.receive_data(data):
            if isinstance(event, h2.events.RemoteSettingsChanged):
                self.frames.remote_settings.acknowledged_once = True
            if isinstance(event, h2.events.ResponseReceived):
                self.answer = dict(event.headers)
            if isinstance(event, h2.events.DataReceived):
                self.frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if hasattr(self, "protocol"):
                    self.protocol.receive_data(event.data)
                else:
                    self.early += event.data
            self.done |= isinstance(event, h2.events.StreamReset)
            if isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)) and not self.ended:
                self.ended = True
                if isinstance(event, h2.events.StreamReset) and self.answer is None:
                    raise Refused(f"reset {int(event.error_code)}")
                if hasattr(self, "protocol"):
                    self.protocol.receive_eof()
        self.push()

    def more(self):
        self.pull()
        self.flush()

    def reset(self):
        self.done = True
        self.frames.reset_stream(self.stream, 8)
        self.push()


h2.settings.Settings.acknowledged_once = False


def hear(client):
    """The next whole message."""
    whole = b""
    while True:
        for frame in client.protocol.events_received():
            if isinstance(frame, Response):
                continue
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                whole += frame.data
                if frame.fin:
                    return whole
        if client.protocol.state.name == "CLOSED":
            return b"closed"
        client.more()


def talks(client):
    for number in range(100):
        client.protocol.send_text(b"%d" % number)
        client.flush()
        if hear(client) != b"%d" % number:
            return "another message"
    return "talked"


def long(client):
    client.protocol.send_binary(LONG)
    sender = threading.Thread(target=client.flush) if isinstance(client, Plain) else None
    sender.start() if sender else client.flush()
    return "whole" if hear(client) == LONG else "another message"


def closes(client):
    client.protocol.send_close(1000, "done")
    client.flush()
    hear(client)
    return f"closed {client.protocol.close_code}"


def listens(client):
    heard = hear(client).decode()
    hear(client)
    return f"{heard}, closed {client.protocol.close_code}"


def breaks(client):
    talks(client)
    while gone.acquire(blocking=False):
        pass
    client.reset()
    return "the server sees it" if gone.acquire(timeout=PATIENCE) else "the server sees nothing"


CASES = [
    ("a hundred messages by turns", "/", talks, "talked"),
    ("a message of a megabyte, and back", "/", long, "whole"),
    ("the client closes", "/", closes, "closed 1000"),
    ("the server closes", "/bye", listens, "bye, closed 4000"),
    ("the server breaks off", "/dies", listens, "closed, closed 1006"),
    ("the client breaks off", "/", breaks, "the server sees it"),
    ("the server declines", "/forbidden", talks, "403"),
    # Over HTTP/1.1 a client that gets 200 knows that there is no WebSocket; to a CONNECT it says that there is one.
    ("the server has a page there", "/page", talks, "200"),
]


def evenkeel(folder, program, port, frames, behind):
    path = folder / "evenkeel.yaml"
    path.write_text(
        f"admin: off\nproxy:\n  listen: ['127.0.0.1:{port}', '127.0.0.1:{frames}']\n  limits: []\n"
        f"  backend: http://127.0.0.1:{behind}\n")
    return [program, "serve", "--config", str(path)]


def nginx(folder, _, port, frames, behind):
    path = folder / "nginx.conf"
    place = (f"location / {{ proxy_pass http://127.0.0.1:{behind}; proxy_http_version 1.1;"
             " proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }")
    path.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr;\n"
        f"events {{}} http {{ access_log off; client_body_temp_path {folder}/c;"
        f" proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;"
        f" scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; {place} }}\n"
        f"server {{ listen 127.0.0.1:{frames} http2; {place} }} }}\n")
    return ["nginx", "-c", str(path), "-p", str(folder)]


def haproxy(folder, _, port, frames, behind):
    path = folder / "haproxy.cfg"
    path.write_text(
        "defaults\n mode http\n timeout connect 3s\n timeout client 9s\n timeout server 9s\n timeout tunnel 9s\n"
        f"frontend f\n bind 127.0.0.1:{port}\n bind 127.0.0.1:{frames} proto h2\n default_backend b\n"
        f"backend b\n server s 127.0.0.1:{behind}\n")
    return ["haproxy", "-db", "-f", str(path)]


def outcome(case, begin, port):
    _, path, play, expected = case
    try:
        got = play(begin(port, path))
    except Refused as refused:
        got = str(refused)
    except OSError as error:
        got = type(error).__name__
    return "passed" if got == expected else got


def main():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    program = sys.argv[1] if len(sys.argv) > 1 else str(HERE.parents[1] / "target/debug/evenkeel")
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    server = serve(echo, "127.0.0.1", 0, process_request=declines, subprotocols=["chat"], max_size=None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    behind = server.socket.getsockname()[1]
    makers, rows = [evenkeel, nginx, haproxy], {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for make in makers:
            port, frames = free_port(), free_port()
            with open(pathlib.Path(folder) / f"{make.__name__}.log", "wb") as log:
                command = make(pathlib.Path(folder), program, port, frames, behind)
                process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                wait_for(port), wait_for(frames)
                for case in CASES:
                    rows.setdefault(case[0], []).append(outcome(case, Plain, port))
                    rows[case[0]].append(outcome(case, Stream, frames))
            finally:
                process.terminate()
                process.wait()
    names = [f"{make.__name__}, {kind}" for make in makers for kind in ("HTTP/1.1", "HTTP/2")]
    print("| case | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for name, found in rows.items():
        print(f"| {name} | " + " | ".join(found) + " |")


main()
