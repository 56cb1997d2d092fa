"""What the benchmarks share: servers pinned to a core, their CPU time, their memory, figures.

The method: the server under test alone on core 0, load and origin on core 1, everything on
loopback, contestants in turns within each round, so that what disturbs the machine disturbs all.
Only the standard library is used.
"""

import glob
import os
import platform
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SERVER_CORE, LOAD_CORE = 0, 1
# Below the usual `ip_local_port_range`.
PORTS, GIVEN_PORTS = (12_000, 32_000), set()
TICK = os.sysconf("SC_CLK_TCK")
SLOTS = re.compile(r"^\w+_slots\{[^}]*\} (\d+)$", re.M)
ACCEPTED = re.compile(r"^\w+_slots_useful\{[^}]*\} (\d+)$", re.M)
os.environ["PATH"] += ":/usr/sbin:/sbin"

# Limits that no benchmark reaches: no client is ever in debt.
BOUNDLESS = """\
  limits:
    - {name: ip,    by: ip/32, share: 10%, burst: 1d}
    - {name: net24, by: ip/24, share: 25%, burst: 1d}
    - {name: net16, by: ip/16, share: 50%, burst: 1d}
"""


def free_port():
    """A port that nothing listens on, another one each time. It is none of those that the system
    gives to outgoing connections, one of which might have it before a server does."""
    while True:
        port = random.randrange(*PORTS)
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        if port not in GIVEN_PORTS:
            GIVEN_PORTS.add(port)
            return port


def need(*commands):
    missing = [name for name in commands if not shutil.which(name)]
    if missing:
        sys.exit(f"missing: {' '.join(missing)}; install with apt-get (ci/long does)")


def php_fpm():
    found = sorted(glob.glob("/usr/sbin/php-fpm*"))
    return found[-1] if found else sys.exit("missing: php-fpm; install with apt-get (ci/long does)")


def evenkeel():
    """The binary that packages contain, built if need be."""
    given = os.environ.get("EVENKEEL")
    if given:
        return given
    build = ["cargo", "build", "--profile", "dist", "--locked", "-q", "-p", "evenkeel"]
    subprocess.run(build, cwd=ROOT, check=True)
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "dist/evenkeel")


def service(folder, program, variable):
    """A program of `bench` to compare or to work with, built if need be; `variable` may name one
    that is."""
    given = os.environ.get(variable)
    if given:
        return given
    target = f"{ROOT}/target/{folder}"
    subprocess.run(["cargo", "build", "--release", "--locked", "-q"], cwd=f"{ROOT}/bench/{folder}",
                   check=True, env={**os.environ, "CARGO_TARGET_DIR": target})
    return f"{target}/release/{program}"


def first_line(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.splitlines()[0] if done.stdout else "?"


def describe(*lines):
    """Machine and versions, as every table of figures has to state them."""
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), "?")
    system = f"Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"
    print(f"# {cpu}, {os.cpu_count()} CPUs, {system}")
    for line in lines:
        print(f"# {line}")


def raise_file_limit(wanted):
    """As many open files as `wanted`, for us and the servers, or as many as we may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return wanted
        except (ValueError, OSError):
            pass  # Not root.
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def prefer(nice):
    """Sets the niceness of this process and of what it starts, and of their sessions, among which
    Linux shares the CPUs first (`sched_autogroup`)."""
    os.nice(nice)
    prefer_session(os.getpid())


def prefer_session(pid):
    """Gives the session of a process the niceness of this process."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    path = f"/proc/{pid}/autogroup"
    if nice and os.path.exists(path):
        with open(path, "w") as file:
            file.write(str(nice))


def family(pid):
    """A process and all below it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for path in glob.glob(f"/proc/{pid}/task/*/children"):
            try:
                todo += [int(child) for child in open(path).read().split()]
            except OSError:
                pass
    return found


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / TICK


class Server:
    """A process with its children, on one core; ended by its id."""

    def __init__(self, name, command, port, core, cwd, host="127.0.0.1", env=None, patience=10):
        """`patience`: seconds until it has to listen."""
        self.name, self.port, self.admin, self.host = name, port, None, host
        self.log = open(os.path.join(cwd, f"{name.replace(' ', '-')}.log"), "wb")
        self.process = subprocess.Popen(
            ["taskset", "-c", str(core), *command], cwd=cwd, stdout=self.log, stderr=self.log,
            env={**os.environ, **(env or {})})
        self.await_port(patience)
        # PHP-FPM makes a session of its own.
        prefer_session(self.process.pid)

    def await_port(self, patience):
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection((self.host, self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        text = open(self.log.name, errors="replace").read()[-2000:]
        self.stop()
        sys.exit(f"{self.name} does not listen on {self.port}:\n{text}")

    def family(self):
        return family(self.process.pid)

    def cpu_seconds(self):
        return cpu_seconds(self.family())

    def slots(self):
        """The present limit of requests at the backend, and how many this seems to accept at most
        (`None`: not known). `None` if this is no Evenkeel."""
        if self.admin is None:
            return None
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        accepted = ACCEPTED.search(text)
        return int(SLOTS.search(text)[1]), accepted and int(accepted[1])

    def memory_bytes(self):
        """Proportional share of all resident pages of the process and its children."""
        total = 0
        for pid in self.family():
            for line in open(f"/proc/{pid}/smaps_rollup"):
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


class Bench:
    """A folder for the servers' files; all servers end when it does."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="bench-")
        os.chmod(self.folder, 0o755)
        self.servers = []
        return self

    def __exit__(self, *_):
        for server in reversed(self.servers):
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def start(self, name, command, port, core=SERVER_CORE, host="127.0.0.1", **more):
        server = Server(name, command, port, core, self.folder, host, **more)
        self.servers.append(server)
        return server

    def stop(self, server):
        server.stop()
        self.servers.remove(server)

    def nginx(self, name, port, http, core=SERVER_CORE, host="127.0.0.1", workers=1):
        """An nginx with this inside its `http` block."""
        slug = name.replace(" ", "-")
        temp = "".join(f"  {kind}_temp_path {self.folder}/{slug}-{kind};\n"
                       for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        path = self.file(f"{slug}.conf", f"""\
worker_processes {workers};
worker_rlimit_nofile 20000;
daemon off;
pid {self.folder}/{slug}.pid;
error_log stderr crit;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 3600s;
  limit_req_log_level info;
{temp}{http}}}
""")
        return self.start(name, ["nginx", "-c", path, "-p", self.folder], port, core, host)

    def nginx_proxy(self, name, port, backend, zone="", rule="", **more):
        return self.nginx(name, port, f"""\
  upstream origin {{ server 127.0.0.1:{backend}; keepalive 256; }}
  {zone}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      {rule}
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}
""", **more)

    def haproxy(self, name, port, backend, rate=2000000000):
        """HAProxy that denies whoever asks more than `rate` times in ten seconds."""
        path = self.file("haproxy.cfg", f"""\
global
  nbthread 1
  maxconn 9000
defaults
  mode http
  timeout connect 3s
  timeout client 3600s
  timeout server 300s
  option http-keep-alive
  option forwardfor
  http-reuse always
frontend front
  bind 127.0.0.1:{port}
  stick-table type ip size 1m expire 1m store http_req_rate(10s)
  http-request track-sc0 src
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {rate} }}
  default_backend origin
backend origin
  server origin 127.0.0.1:{backend} maxconn 8000
""")
        return self.start(name, ["haproxy", "-db", "-f", path], port)

    def evenkeel(self, name, port, backend, proxy=BOUNDLESS, binary=None, cpus=1, admin=None,
                 core=SERVER_CORE):
        """With its figures on the port `admin`, if given: `Server.slots`."""
        slug = name.replace(" ", "-")
        path = self.file(f"{slug}.yaml", f"""\
admin: {f"{{listen: 127.0.0.1:{admin}}}" if admin else "off"}
proxy:
  listen: 127.0.0.1:{port}
  backend: http://127.0.0.1:{backend}
  cpus: {cpus}
  bounds: {{connections: 9000}}
  timeouts: {{idle: 1h}}
{proxy}""")
        server = self.start(name, [binary or evenkeel(), "serve", "--config", path], port, core)
        server.admin = admin
        return server

    def certificate(self):
        """Makes NAME.crt and NAME.key, and returns the path NAME."""
        path = os.path.join(self.folder, "bench")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-keyout", f"{path}.key", "-out", f"{path}.crt", "-subj", "/CN=bench",
             "-addext", "subjectAltName=DNS:bench", "-addext", "basicConstraints=critical,CA:FALSE"],
            check=True, stderr=subprocess.DEVNULL)
        return path

    def answering_origin(self):
        """An origin that answers `ok` at once, on the load's core."""
        return self.answering_origins(1)[0]

    def answering_origins(self, count):
        """The same on `count` ports."""
        ports = [free_port() for _ in range(count)]
        listen = " ".join(f"listen 127.0.0.1:{port} backlog=4096;" for port in ports)
        self.nginx("origin", ports[-1], f"""\
  server {{ {listen} location / {{ return 200 ok; }} }}
""", LOAD_CORE)
        return ports


def spread(values, digits=1):
    """median (min-max)"""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def listed(cores):
    """The cores as a list for `taskset`."""
    return ",".join(str(core) for core in cores)


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]


def wrk(server, connections, seconds, cores=(LOAD_CORE,)):
    """Measures a server with keep-alive connections for some seconds, from one thread on each of
    `cores`."""
    before = server.cpu_seconds()
    out = subprocess.run(
        ["taskset", "-c", listed(cores), "wrk", f"-t{len(cores)}", f"-c{connections}",
         f"-d{seconds}s", "--latency", f"http://127.0.0.1:{server.port}/"],
        stdout=subprocess.PIPE, text=True, check=True).stdout
    cpu = server.cpu_seconds() - before
    done = int(re.search(r"(\d+) requests in", out).group(1))
    if "Non-2xx" in out or "Socket errors" in out:
        sys.exit(f"{server.name}: {out}")
    found = lambda pattern: re.search(pattern, out).group(1)
    return {
        "rate": float(found(r"Requests/sec:\s+([\d.]+)")),
        "cpu_us": cpu / done * 1e6,
        "busy": cpu / seconds,
        "p50": milliseconds(found(r"(?m)^\s+50%\s+(\S+)")),
        "p99": milliseconds(found(r"(?m)^\s+99%\s+(\S+)")),
    }
