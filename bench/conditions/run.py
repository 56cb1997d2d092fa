#!/usr/bin/env python3
"""The rules of docs/guide/conditions.md in the servers that they are for: bench/conditions/run.py

Runs nginx, HAProxy, Caddy and Evenkeel with each rule of the page, sends requests that it must deny
and requests that it must not, and prints the table of lines. Fails if a server behaves in another
way, or if the table on the page differs; `--write` writes it. `--evenkeel PATH` names the program,
by default target/release/evenkeel; `--check` only checks the syntax, with each server's own check.
"""

import argparse
import http.server
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import contest  # noqa: E402

PAGE = pathlib.Path(contest.ROOT) / "docs/guide/conditions.md"
PAGES = pathlib.Path(contest.ROOT) / "examples/pages"
SERVERS = {"yaml": "Evenkeel", "nginx": "nginx", "haproxy": "HAProxy", "caddy": "Caddy"}
# The network of the page, and the one of loopback that stands for it.
NETWORK, LOOPBACK = "192.0.2.0/24", "127.9.0.0/24"
INSIDE, OUTSIDE = "127.9.0.1", "127.0.0.1"
# Headings that an existing configuration has.
HEADINGS = {"proxy:", "limits:"}

BROWSER = {"User-Agent": "Mozilla/5.0", "Accept-Language": "de", "Accept": "text/html"}


def request(target="/", method="GET", source=OUTSIDE, times=1, host="www.example.com", **headers):
    """A request of a browser, with other headers; None removes one."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    headers = {"Host": host} | BROWSER | named
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    text = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "Content-Length: 0", "Connection: close"])
    return text + "\r\n\r\n", source, times


GPTBOT = {"User_Agent": "Mozilla/5.0 (compatible; GPTBot/1.2)"}
# For each rule: requests that it must deny, and requests that it must not.
REQUESTS = {
    1: ([request(**GPTBOT)], [request()]),
    2: ([request(**GPTBOT), request(User_Agent="bytespider")], [request()]),
    3: ([request(User_Agent=None), request(User_Agent="")], [request()]),
    4: ([request("/a/b.php"), request("/b.php?x=1")], [request("/b.html"), request("/?b.php")]),
    5: ([request("/wp-admin"), request("/wp-admin/x")], [request("/wp"), request("/x/wp-admin")]),
    6: ([request("/?diff=1"), request("/?a=b&diff=7")], [request("/?a=diff"), request("/diff")]),
    7: ([request("/?a=b&action=edit")], [request("/?action=view"), request("/?xaction=edit")]),
    8: ([request(Accept_Language=None)], [request()]),
    9: ([request(Sec_Purpose="prefetch;prerender")], [request(), request(Sec_Purpose="x")]),
    10: ([request(), request(Cookie="xsession=1")], [request(Cookie="a=b; session=1")]),
    11: ([request(method="PUT"), request(method="TRACK")], [request(), request(method="POST")]),
    12: ([request(host="www.old.example.com:80")], [request(host="old.example.com.example")]),
    13: ([request(source=INSIDE)], [request()]),
    14: ([request()], [request(source=INSIDE)]),
    15: ([request(source=INSIDE)], [request()]),
    16: ([request(source=INSIDE)], [request()]),
    17: ([request("/login", "POST")],
         [request("/login"), request("/x", "POST"), request("/login", "POST", Cookie="session=1")]),
    18: ([request(**GPTBOT), request("/?diff=1")], [request()]),
    19: ([request(times=40, **GPTBOT)], [request(times=40)]),
    20: ([request(times=60)], [request(source=INSIDE, times=60)]),
    21: ([request(**GPTBOT)], [request()]),
}


# Rule 5 denies `/wp-admin`. Backends that normalise paths serve it under these as well.
PREFIX = 5
SPELLINGS = ["/wp-admin", "/wp%2dadmin", "//wp-admin", "/./wp-admin", "/x/../wp-admin",
             "/x/..%2fwp-admin", "/WP-admin", "/;a=b/wp-admin", "/\\wp-admin"]


def rules():
    """Number, title and rules of each section of the page."""
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        title = re.match(r"(\d+)\. (.*)", section)
        blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", section, flags=re.S | re.M))
        if title:
            yield int(title[1]), title[2], {name: blocks.get(name) for name in SERVERS}


def lines(block):
    stripped = [line.strip() for line in block.splitlines()]
    return len([line for line in stripped if line and line[0] != "#" and line not in HEADINGS])


def parts(block, first):
    """The lines of a rule by the section in which they belong, which comments name."""
    found, at = {first: ""}, first
    for line in block.splitlines(keepends=True):
        heading = re.fullmatch(r"# (http|server|backend)\n", line)
        at = heading[1] if heading else at
        found[at] = found.get(at, "") + ("" if heading else line)
    return found


def evenkeel(block, port, backend):
    opened = f"proxy:\n  listen: 127.0.0.1:{port}\n  backend: http://127.0.0.1:{backend}\n"
    return "admin: off\nlog: {level: error}\n" + block.replace("proxy:\n", opened, 1)


def nginx(block, port, backend):
    part = parts(block, "server")
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "".join(f"{name}_temp_path tmp;" for name in
                        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
    return f"""{user} daemon off; pid nginx.pid; error_log stderr error; worker_processes 1;
events {{}}
http {{
    access_log off; {temporary}
{part.get("http", "")}
    server {{
        listen 127.0.0.1:{port};
{part["server"]}
        location / {{ proxy_pass http://127.0.0.1:{backend}; }}
    }}
}}
"""


def haproxy(block, port, backend):
    part = parts(block, "frontend")
    return f"""defaults
    mode http
    timeout client 5s
    timeout server 5s
    timeout connect 5s
frontend site
    bind 127.0.0.1:{port}
{part["frontend"]}
    default_backend site
backend site
    server site 127.0.0.1:{backend}
{part.get("backend", "")}
"""


def caddy(block, port, backend):
    return f"""{{
	admin off
	auto_https off
}}
http://:{port} {{
{block}
	reverse_proxy 127.0.0.1:{backend}
}}
"""


class Server:
    """A server with one rule, in a folder with the files that rules name."""

    def __init__(self, name, program, folder):
        self.name, self.folder = name, pathlib.Path(folder) / name
        configuration = str(self.folder / "configuration")
        self.write, self.check, self.run = {
            "yaml": (evenkeel, [program, "check", configuration],
                     [program, "serve", "--config", configuration]),
            "nginx": (nginx, ["nginx", "-t", "-q", "-p", str(self.folder), "-c", configuration],
                      ["nginx", "-p", str(self.folder), "-c", configuration]),
            "haproxy": (haproxy, ["haproxy", "-q", "-c", "-f", configuration],
                        ["haproxy", "-q", "-db", "-f", configuration]),
            "caddy": (caddy, ["caddy", "validate", "--adapter", "caddyfile", "--config", configuration],
                      ["caddy", "run", "--adapter", "caddyfile", "--config", configuration]),
        }[name]
        self.configuration, self.process = pathlib.Path(configuration), None
        (self.folder / "pages").mkdir(parents=True)
        (self.folder / "pages/403.html").write_bytes((PAGES / "403.html").read_bytes())
        end = ";" if name == "nginx" else ""
        for file, of in [("countries", "XX"), ("systems", "64500")]:
            for kind in ["conf", "map"]:
                (self.folder / f"{file}.{kind}").write_text(f"{LOOPBACK} {of}{end}\n")
        for file in ["country-xx", "as64500"]:
            (self.folder / f"{file}.conf").write_text(f"remote_ip {LOOPBACK}\n")
        ranges = "127.9.0.0\t127.9.0.255\t64500\tXX\tEXAMPLE\n"
        (self.folder / "ip2asn-combined.tsv.gz").write_text(ranges)

    def configure(self, block, port, backend):
        """Writes the configuration, and returns what the server's own check says against it."""
        text = self.write(block, port, backend).replace(NETWORK, LOOPBACK)
        text = re.sub(r"/(etc|var/lib)/(evenkeel|nginx|haproxy|caddy)", str(self.folder), text)
        self.configuration.write_text(text)
        checked = subprocess.run(self.check, capture_output=True, text=True, timeout=60)
        return checked.stderr if checked.returncode else None

    def start(self, port):
        log = (self.folder / "log").open("w")
        # Caddy saves its configuration at home.
        environment = os.environ | {"HOME": str(self.folder)}
        self.process = subprocess.Popen(self.run, stdout=log, stderr=log, cwd=self.folder,
                                        env=environment)
        for _ in range(200):
            try:
                return socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{self.name} does not start: {(self.folder / 'log').read_text()}")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def ask(port, text, source):
    with socket.create_connection(("127.0.0.1", port), 10, source_address=(source, 0)) as stream:
        stream.sendall(text.encode())
        answer = b"".join(iter(lambda: stream.recv(65536), b"")).decode(errors="replace")
    return int(answer.split(" ", 2)[1]), answer


def differences(number, port):
    """What a server did that the rule does not say."""
    refusal = 429 if number in (19, 20) else 403
    for expected, requests in zip([refusal, 200], REQUESTS[number]):
        for text, source, times in requests:
            answers = [ask(port, text, source) for _ in range(times)]
            statuses = {status for status, _ in answers}
            # A rate admits some requests first.
            if expected == 200 or times == 1:
                right = statuses == {expected}
            else:
                right = statuses == {200, expected}
            if number == 21 and expected == refusal:
                right = right and "<h1>Not allowed</h1>" in answers[0][1]
            if not right:
                yield f"{text.splitlines()[0]} from {source}: {sorted(statuses)}, not {expected}"


class Backend(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = do_TRACK = answer

    def log_message(self, *_):
        pass


def table(counted):
    rows = [[f"[{title}](#{number}-{anchor(title)})", *[str(n or "-") for n in counts]]
            for number, title, counts in counted]
    # All servers can do these, so their sums compare.
    common = [counts for _, _, counts in counted if all(counts)]
    sums = [str(sum(column)) for column in zip(*common)]
    rows.append([f"all {len(common)} rules that the four can do", *sums])
    head = ["rule", *SERVERS.values()]
    return "\n".join("| " + " | ".join(row) + " |"
                     for row in [head, ["---"] + ["--:"] * len(SERVERS), *rows])


def spellings(passed):
    """For each spelling, whether the backend got it."""
    head = ["path", *SERVERS.values()]
    rows = [[f"`{path}`", *["passes" if one else "denied" for one in each]]
            for path, each in zip(SPELLINGS, zip(*passed))]
    return "\n".join("| " + " | ".join(row) + " |"
                     for row in [head, ["---"] * len(head), *rows])


def anchor(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--evenkeel", default=f"{contest.ROOT}/target/release/evenkeel")
    options.add_argument("--check", action="store_true")
    options.add_argument("--write", action="store_true")
    options = options.parse_args()
    contest.need("nginx", "haproxy", "caddy")
    program = os.path.abspath(options.evenkeel)
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    counted, passed, faults = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        servers = [Server(name, program, folder) for name in SERVERS]
        for number, title, blocks in rules():
            for server in servers:
                block, port = blocks[server.name], contest.free_port()
                if block is None:
                    continue
                fault = server.configure(block, port, site.server_port)
                found = [fault] if fault else []
                if not fault and not options.check:
                    server.start(port)
                    found = list(differences(number, port))
                    if number == PREFIX:
                        answers = [ask(port, *request(path)[:2])[0] for path in SPELLINGS]
                        passed.append([status == 200 for status in answers])
                    server.stop()
                faults += [f"{number}. {title}: {server.name}: {fault}" for fault in found]
            counts = [lines(blocks[name]) if blocks[name] else None for name in SERVERS]
            counted.append((number, title, counts))
    tables = {"lines": table(counted)}
    if not options.check:
        tables["spellings"] = spellings(passed)
    page = PAGE.read_text()
    for name, made in tables.items():
        print(made, "\n")
        shown = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, flags=re.S)
        if shown[1] != f"\n{made}\n\n":
            page = page[:shown.start(1)] + f"\n{made}\n\n" + page[shown.end(1):]
            faults += [] if options.write else [f"the table of {name} differs: use --write"]
    if options.write:
        PAGE.write_text(page)
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
