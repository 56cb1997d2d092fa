#!/usr/bin/env python3
"""What Evenkeel, Caddy, nginx and HAProxy say of ten broken configurations.

    bench/messages/run.py            prints the page
    bench/messages/run.py --write    writes docs/broken-configurations.md

Each program checks the same mistake in its own language with its own command; nothing is started. A
program that is not installed is left out. Paths are shortened to the name of the file.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "broken-configurations.md"
BINARY = pathlib.Path(os.environ.get("EVENKEEL", ROOT / "target" / "debug" / "evenkeel"))

NGINX = "events {{}}\nhttp {{\n  server {{\n    listen 127.0.0.1:8000;\n{0}\n  }}\n}}\n"
HAPROXY = (
    "defaults\n  mode http\n  timeout connect 3s\n  timeout client 60s\n  timeout server 60s\n"
    "frontend f\n  bind 127.0.0.1:8000\n{0}\n"
)
EVENKEEL = (
    "admin: off\nproxy:\n  listen: 127.0.0.1:8000\n  bounds: {{connections: 1000}}\n{0}\n"
)
CADDY = "{{\n\tadmin off\n}}\n:8000 {{\n{0}\n}}\n"

# The mistake, and its text for Evenkeel, Caddy, nginx and HAProxy.
CASES = [
    (
        "A key is misspelled",
        EVENKEEL.format("  backend: http://127.0.0.1:81\n  trusted_proxy: 10.0.0.0/8"),
        CADDY.format("\treverse_prox 127.0.0.1:81"),
        NGINX.format("    location / { proxy_pas http://127.0.0.1:81; }"),
        HAPROXY.format("  default_backnd b\nbackend b\n  server s 127.0.0.1:81"),
    ),
    (
        "A duration has no known unit",
        EVENKEEL.format("  backend: http://127.0.0.1:81\n  timeouts: {connect: 3q}"),
        CADDY.format(
            "\treverse_proxy 127.0.0.1:81 {\n\t\ttransport http {\n\t\t\tdial_timeout 3q\n\t\t}\n\t}"
        ),
        NGINX.format("    location / { proxy_pass http://127.0.0.1:81; proxy_connect_timeout 3q; }"),
        HAPROXY.format(
            "  default_backend b\nbackend b\n  timeout connect 3q\n  server s 127.0.0.1:81"
        ),
    ),
    (
        "A network has too many bits",
        EVENKEEL.format("  backend: http://127.0.0.1:81\n  trusted_proxies: 10.0.0.0/33"),
        CADDY.format("\t@in remote_ip 10.0.0.0/33\n\treverse_proxy @in 127.0.0.1:81"),
        NGINX.format("    allow 10.0.0.0/33;"),
        HAPROXY.format(
            "  acl in src 10.0.0.0/33\n  default_backend b\nbackend b\n  server s 127.0.0.1:81"
        ),
    ),
    (
        "A bracket or block is not closed",
        EVENKEEL.format("  backend: [http://127.0.0.1:81\n  cpus: 4"),
        CADDY.format("\thandle / {\n\t\treverse_proxy 127.0.0.1:81"),
        NGINX.format("    location / { proxy_pass http://127.0.0.1:81;"),
        HAPROXY.format(
            "  acl in path \"/a\n  default_backend b\nbackend b\n  server s 127.0.0.1:81"
        ),
    ),
    (
        "The certificate does not exist",
        EVENKEEL.format(
            "  backend: http://127.0.0.1:81\n  tls: {cert: /nowhere/a.pem, key: /nowhere/a.key}"
        ),
        CADDY.format("\ttls /nowhere/a.pem /nowhere/a.key\n\treverse_proxy 127.0.0.1:81"),
        NGINX.format(
            "    listen 127.0.0.1:8443 ssl;\n    ssl_certificate /nowhere/a.pem;\n"
            "    ssl_certificate_key /nowhere/a.key;"
        ),
        HAPROXY.format(
            "  bind 127.0.0.1:8443 ssl crt /nowhere/a.pem\n  default_backend b\nbackend b\n"
            "  server s 127.0.0.1:81"
        ),
    ),
    (
        "A port is no number",
        EVENKEEL.format("  backend: http://127.0.0.1:8o8o"),
        CADDY.format("\treverse_proxy 127.0.0.1:8o8o"),
        NGINX.format("    location / { proxy_pass http://127.0.0.1:8o8o; }"),
        HAPROXY.format("  default_backend b\nbackend b\n  server s 127.0.0.1:8o8o"),
    ),
    (
        "A key occurs twice",
        EVENKEEL.format("  backend: http://127.0.0.1:81\n  cpus: 4\n  cpus: 8"),
        CADDY.format(
            "\treverse_proxy 127.0.0.1:81 {\n\t\tlb_policy random\n\t\tlb_policy first\n\t}"
        ),
        NGINX.format("    client_max_body_size 1m;\n    client_max_body_size 2m;"),
        HAPROXY.format(
            "  default_backend b\n  default_backend c\nbackend b\n  server s 127.0.0.1:81\n"
            "backend c\n  server s 127.0.0.1:81"
        ),
    ),
    (
        "A rule names a group that does not exist",
        EVENKEEL.format(
            "  backend: http://127.0.0.1:81\n"
            "  limits: [default, {name: no, action: deny, when: {group: crawler}}]\n"
            "groups: {crawlers: {user_agent: \"*Bot*\"}}"
        ),
        CADDY.format("\t@crawlers header User-Agent *Bot*\n\trespond @crawler 403"),
        NGINX.format("    if ($crawler) { return 403; }"),
        HAPROXY.format(
            "  acl crawlers hdr_sub(user-agent) Bot\n  http-request deny if crawler\n"
            "  default_backend b\nbackend b\n  server s 127.0.0.1:81"
        ),
    ),
    (
        "A regular expression is broken",
        EVENKEEL.format(
            "  backend: http://127.0.0.1:81\n"
            "  limits: [default, {name: no, action: deny, when: {path: \"re:^/(a\"}}]"
        ),
        CADDY.format("\t@a path_regexp ^/(a\n\trespond @a 403"),
        NGINX.format("    location ~ ^/(a { return 403; }"),
        HAPROXY.format(
            "  http-request deny if { path_reg ^/(a }\n  default_backend b\nbackend b\n"
            "  server s 127.0.0.1:81"
        ),
    ),
    (
        "Two mistakes in one file",
        EVENKEEL.format("  backend: 127.0.0.1:81\n  cpus: many"),
        CADDY.format("\treverse_proxy ftp://127.0.0.1\n\trespond ok many"),
        NGINX.format("    listen 127.0.0.1:many;\n    location / { proxy_pass 127.0.0.1:81; }"),
        HAPROXY.format("  maxconn many\n  default_backend b\nbackend b\n  server s"),
    ),
]

PROGRAMS = [
    ("Evenkeel", "evenkeel.yaml", lambda path: [str(BINARY), "check", path]),
    (
        "Caddy",
        "Caddyfile",
        lambda path: ["caddy", "validate", "--adapter", "caddyfile", "--config", path],
    ),
    ("nginx", "nginx.conf", lambda path: ["nginx", "-t", "-e", "stderr", "-c", path]),
    ("HAProxy", "haproxy.cfg", lambda path: ["haproxy", "-c", "-f", path]),
]


def is_there(command):
    return shutil.which(command) is not None


def said(command, folder):
    """What a program prints, without what it would print of any file."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "HOME": folder},
    )
    text = (done.stdout + done.stderr).replace(folder + "/", "")
    lines = []
    for line in text.splitlines():
        if line.startswith("{") and '"level":"info"' in line:
            continue
        if "path to executable" in line or "open files" in line or "keys_max" in line or "not formatted" in line:
            continue
        line = re.sub(r'^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d+)?\s+', "", line)
        line = re.sub(r"\(\d+\) : ", " : ", re.sub(r"\b\d+#\d+: ", "", line))
        if line.startswith(("INFO", "WARN")) or '"level":"warn"' in line:
            continue
        lines.append(line.rstrip())
    return done.returncode, "\n".join(lines).strip()


def version(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found.group(0) if found else "?"


def page():
    versions = {
        "Caddy": ["caddy", "version"],
        "nginx": ["nginx", "-v"],
        "HAProxy": ["haproxy", "-v"],
    }
    programs = [one for one in PROGRAMS if is_there(one[2]("x")[0])]
    named = [f"{name} {version(versions[name])}" for name, *_ in programs if name in versions]
    out = [INTRODUCTION.format(programs=", ".join(named))]
    for title, *texts in CASES:
        out.append(f"## {title}\n")
        for (name, file, command), text in zip(PROGRAMS, texts):
            if not is_there(command("x")[0]):
                continue
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, file)
                pathlib.Path(path).write_text(text)
                status, told = said(command(path), folder)
            verdict = "accepted" if status == 0 else "refused"
            out.append(f"{name}: {verdict}\n\n```text\n{told or '(no message)'}\n```\n")
    out.append(JUDGEMENT)
    return "\n".join(out)


INTRODUCTION = """# Broken configurations, and what programs say of them

Ten mistakes, each in the language of its program, and the whole output of `evenkeel check`, `caddy validate`, `nginx -t` and
`haproxy -c` ({programs}). Traefik and Envoy are not among them. Times, process numbers and warnings about this
machine are left out. Made by `bench/messages/run.py --write`.
"""

JUDGEMENT = (pathlib.Path(__file__).parent / "judgement.md").read_text()


def main():
    text = page().rstrip() + "\n"
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
