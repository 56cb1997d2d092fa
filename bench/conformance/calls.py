#!/usr/bin/env python3
"""Calls of gRPC through Evenkeel and nginx to a real server (grpcio): what becomes of each.

Usage: bench/conformance/calls.py [EVENKEEL]     needs `pip install grpcio`; prints a table in Markdown.

Every case is a name and what a client does; the outcome is `passed` if it got what the server alone
would have given it, else what it got instead.
"""

import concurrent.futures
import os
import pathlib
import queue
import subprocess
import sys
import tempfile

import grpc

from ports import free_port, wait_for

HERE = pathlib.Path(__file__).resolve().parent
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def same(message):
    return message


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        kinds = {
            "Unary": (grpc.unary_unary_rpc_method_handler, self.unary),
            "Fail": (grpc.unary_unary_rpc_method_handler, self.fail),
            "Down": (grpc.unary_stream_rpc_method_handler, self.down),
            "Up": (grpc.stream_unary_rpc_method_handler, self.up),
            "Talk": (grpc.stream_stream_rpc_method_handler, self.talk),
        }
        make, run = kinds[details.method.rsplit("/", 1)[1]]
        return make(run, same, same)

    def unary(self, message, context):
        context.set_trailing_metadata((("x-trailer", "v"),))
        return message

    def fail(self, _, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    def down(self, message, _):
        for number in range(int(message)):
            yield b"%d" % number

    def up(self, messages, _):
        return b"%d" % sum(len(message) for message in messages)

    def talk(self, messages, _):
        for message in messages:
            yield b"re:" + message


def unary(channel):
    message, call = channel.unary_unary("/t.T/Unary", same, same).with_call(b"hello")
    return message == b"hello" and ("x-trailer", "v") in [tuple(t) for t in call.trailing_metadata()]


def fails(channel):
    try:
        channel.unary_unary("/t.T/Fail", same, same)(b"")
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.NOT_FOUND and error.details() == "no such thing"
    return False


def down(channel):
    return len(list(channel.unary_stream("/t.T/Down", same, same)(b"1000"))) == 1000


def up(channel):
    messages = (b"x" * 100_000 for _ in range(100))
    return channel.stream_unary("/t.T/Up", same, same)(messages) == b"10000000"


def talk(channel):
    said = queue.Queue()
    answers = channel.stream_stream("/t.T/Talk", same, same)(iter(said.get, None))
    for number in range(10):
        said.put(b"%d" % number)
        if next(answers) != b"re:%d" % number:
            return False
    said.put(None)
    return list(answers) == []


def big(channel):
    return len(channel.unary_unary("/t.T/Unary", same, same)(b"x" * 20_000_000)) == 20_000_000


def many(channel):
    ask = channel.unary_unary("/t.T/Unary", same, same)
    asked = [ask.future(b"%d" % number) for number in range(1000)]
    return all(answer.result() == b"%d" % number for number, answer in enumerate(asked))


def cancelled(channel):
    answers = channel.unary_stream("/t.T/Down", same, same)(b"100000000")
    next(answers)
    answers.cancel()
    return unary(channel)


CASES = [
    ("a call with a trailer", unary),
    ("a call that fails", fails),
    ("1 000 messages down", down),
    ("10 MB up in 100 messages", up),
    ("a talk by turns", talk),
    ("a message of 20 MB", big),
    ("1 000 calls at once", many),
    ("a call that is cancelled, and another one", cancelled),
]


def evenkeel(folder, program, port, behind):
    path = folder / "evenkeel.yaml"
    path.write_text(
        f"admin: off\nproxy:\n  listen: 127.0.0.1:{port}\n  limits: []\n  backend: h2c://127.0.0.1:{behind}\n")
    return [program, "serve", "--config", str(path)]


def nginx(folder, _, port, behind):
    path = folder / "nginx.conf"
    path.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr;\n"
        f"events {{}} http {{ access_log off; client_max_body_size 0; client_body_temp_path {folder}/c;"
        f" proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;"
        f" scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port} http2; location / {{ grpc_pass grpc://127.0.0.1:{behind}; }} }} }}\n")
    return ["nginx", "-c", str(path), "-p", str(folder)]


def outcome(run, port):
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
        try:
            return "passed" if run(channel) else "another answer"
        except grpc.RpcError as error:
            return error.code().name.lower()


def main():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    program = sys.argv[1] if len(sys.argv) > 1 else str(HERE.parents[1] / "target/release/evenkeel")
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(64), options=UNLIMITED)
    server.add_generic_rpc_handlers((Service(),))
    behind = server.add_insecure_port("127.0.0.1:0")
    server.start()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for make in [evenkeel, nginx]:
            port = free_port()
            with open(pathlib.Path(folder) / f"{make.__name__}.log", "wb") as log:
                command = make(pathlib.Path(folder), program, port, behind)
                process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                wait_for(port)
                found[make.__name__] = [outcome(run, port) for _, run in CASES]
            finally:
                process.terminate()
                process.wait()
    print("| case | evenkeel | nginx |\n|---|---|---|")
    for number, (name, _) in enumerate(CASES):
        print(f"| {name} | {found['evenkeel'][number]} | {found['nginx'][number]} |")
    server.stop(None)


main()
