"""Instances of Evenkeel before one site, for `together`: they start, end, and say what they have.

They listen on loopback; or each has a network namespace of its own with two interfaces, one for
clients and the site, and one for the other instances, which can be cut (root only). What is known
of them is looked at ten times a second in a process of its own. Only the standard library is used.
"""

import collections
import http.client
import multiprocessing
import os
import re
import signal
import subprocess
import time

import contest
from contest import SERVER_CORE, free_port

FIGURE = re.compile(r"^evenkeel_(queue_\w+|peer_\w+)(?:\{([^}]*)\})? (\d+)$", re.M)
WRITING = re.compile(r"Writing: (\d+)")
# Of the host; clients have addresses of 100.64.0.0/10 there.
NAME, SITE_HOST = "ekbench", "10.77.255.254"
LOOKS = 10


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL)


class Loopback:
    """No networks: all is on 127.0.0.1. Addresses of clients are those of `crowds`."""

    site_host, command = "127.0.0.1", ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def host(self, _number):
        return self.site_host

    peer_host = host

    def prefix(self, _number):
        return []


class Networks:
    """A namespace for each instance: `eth0` on a bridge with the site and the clients, `eth1` on
    a bridge of the peers, of which there is a second one to cut half of them off."""

    site_host = SITE_HOST

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.remove()
        for bridge in "s", "a", "b":
            ip("link", "add", f"{NAME}-{bridge}", "type", "bridge")
            ip("link", "set", f"{NAME}-{bridge}", "up")
        ip("addr", "add", f"{SITE_HOST}/16", "dev", f"{NAME}-s")
        ip("route", "add", "local", "100.64.0.0/10", "dev", "lo")
        for number in range(self.count):
            space = f"{NAME}{number}"
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            for index, (bridge, host) in enumerate(
                    [("s", self.host(number)), ("a", self.peer_host(number))]):
                ip("link", "add", f"ekb{number}.{index}", "type", "veth", "peer", "name",
                   f"eth{index}", "netns", space)
                ip("link", "set", f"ekb{number}.{index}", "master", f"{NAME}-{bridge}", "up")
                ip("-n", space, "addr", "add", f"{host}/16", "dev", f"eth{index}")
                ip("-n", space, "link", "set", f"eth{index}", "up")
            ip("-n", space, "route", "add", "default", "via", SITE_HOST)
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        for number in range(64):
            for index in 0, 1:
                subprocess.run(["ip", "link", "del", f"ekb{number}.{index}"], **quiet)
            if os.path.exists(f"/run/netns/{NAME}{number}"):
                subprocess.run(["ip", "netns", "del", f"{NAME}{number}"], **quiet)
        for bridge in "s", "a", "b":
            subprocess.run(["ip", "link", "del", f"{NAME}-{bridge}"], **quiet)
        subprocess.run(["ip", "route", "del", "local", "100.64.0.0/10", "dev", "lo"], **quiet)

    def host(self, number):
        return f"10.77.0.{1 + number}"

    def peer_host(self, number):
        return f"10.78.0.{1 + number}"

    def prefix(self, number):
        return ["ip", "netns", "exec", f"{NAME}{number}"]

    def part(self, number, is_apart):
        """Moves an instance to the second network of the peers, or back."""
        ip("link", "set", f"ekb{number}.1", "master", f"{NAME}-{'b' if is_apart else 'a'}")

    def mute(self, number, is_mute):
        """What an instance sends to the others does not arrive; what they send does."""
        for other in range(self.count):
            if other != number:
                words = ["-n", f"{NAME}{number}", "neigh"]
                where = [self.peer_host(other), "dev", "eth1"]
                if is_mute:
                    ip(*words, "replace", where[0], "lladdr", "02:00:00:00:00:01", *where[1:],
                       "nud", "permanent")
                else:
                    ip(*words, "del", *where)


class Instance:
    """One that can end and start again. `is_open`: whether the balancer sends clients to it."""

    def __init__(self, bench, network, number, site, more=""):
        self.bench, self.network, self.number = bench, network, number
        self.site, self.more = site, more
        self.host, self.peer_host = network.host(number), network.peer_host(number)
        self.port, self.admin, self.peer = free_port(), free_port(), free_port()
        self.is_open, self.server, self.starts = False, None, 0
        # Whether it ends without notice: what it was serving is taken, not lost.
        self.is_hard = False

    def start(self, joined):
        """Starts it with these others as peers, or alone (`None`)."""
        self.starts += 1
        slug, bench = f"{self.number}-{self.port}", self.bench
        peers = ""
        if joined is not None:
            join = ", ".join(f"'{one.peer_host}:{one.peer}'" for one in joined if one != self)
            secret = bench.file("peers.key", "5" * 64)
            peers = (f"peers:\n  listen: {self.peer_host}:{self.peer}\n  join: [{join}]\n"
                     f"  cpus_shared: true\n")
            if self.peer_host != "127.0.0.1":
                peers += f"  secret_file: {secret}\n"
        token = ""
        if self.host != "127.0.0.1":
            os.chmod(bench.file("admin.key", "6" * 64), 0o600)
            os.chmod(bench.file("peers.key", "5" * 64), 0o600)
            token = f", token_file: {bench.folder}/admin.key"
        path = bench.file(f"{slug}.yaml", f"""\
admin: {{listen: "{self.host}:{self.admin}"{token}}}
log: {{level: info}}
proxy:
  listen: {self.host}:{self.port}
  backend: http://{self.network.site_host}:{self.site.port}
  cpus: 1
  bounds: {{connections: 9000}}
  timeouts: {{idle: 1h}}
{self.more}{peers}""")
        command = [*self.network.prefix(self.number), contest.evenkeel(), "serve", "--config", path]
        name = f"evenkeel {slug} {self.starts}"
        self.server = bench.start(name, command, self.port, SERVER_CORE, self.host)

    def await_ready(self, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                link = http.client.HTTPConnection(self.host, self.admin, timeout=1)
                link.request("GET", "/readyz")
                if link.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)

    def signal(self, number):
        self.server.process.send_signal(number)

    def kill(self):
        self.is_open = False
        self.signal(signal.SIGKILL)

    def figures(self):
        """Its figures of the queue and of its peers, by name and labels."""
        link = http.client.HTTPConnection(self.host, self.admin, timeout=5)
        link.request("GET", "/metrics")
        text = link.getresponse().read().decode()
        link.close()
        found = collections.Counter()
        for name, labels, value in FIGURE.findall(text):
            found[name + (" " + labels.split('"')[1] if labels and "direction" in labels else "")
                  ] += int(value)
        return found


class Look:
    """What was seen at one time: the requests at the site, and of each instance that answered
    whether it owns the queue (`None`: it shares none), and how many it thinks share it."""

    def __init__(self, at, running, owners, instances):
        self.at, self.running, self.owners, self.instances = at, running, owners, instances


class Watch:
    """Looks at the site and the instances, in a process of its own. An instance that does not
    answer within 300 ms is left out."""

    def __init__(self, site, network, places):
        """`places`: address and admin port of each instance."""
        self.results, self.tell = multiprocessing.Queue(), multiprocessing.Queue()
        self.process = multiprocessing.Process(
            target=self.run, args=((network.site_host, site.port), places), daemon=True)
        self.process.start()

    def places(self, places):
        """From now on, looks at these instances."""
        self.tell.put(places)

    def run(self, site, places):
        os.sched_setaffinity(0, {SERVER_CORE})
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        links, looks, count, began = {}, [], 0, time.monotonic()
        while True:
            while not self.tell.empty():
                places = self.tell.get()
                if places is None:
                    self.results.put(looks)
                    return
            running = self.running(links, site)
            owners, instances = {}, {}
            if count % 2 == 0:
                for place in places:
                    text = self.get(links, place, "/metrics")
                    found = {name: int(value) for name, _, value in FIGURE.findall(text)}
                    if text:
                        owners[place] = found.get("queue_owner")
                        instances[place] = found.get("queue_instances")
            looks.append(Look(time.monotonic(), running, owners, instances))
            count += 1
            time.sleep(max(0, began + count / (2 * LOOKS) - time.monotonic()))

    def running(self, links, site):
        found = WRITING.search(self.get(links, site, "/status"))
        return int(found[1]) - 1 if found else None

    def get(self, links, place, path):
        try:
            if place not in links:
                links[place] = http.client.HTTPConnection(*place, timeout=0.3)
            links[place].request("GET", path)
            return links[place].getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            links.pop(place).close()
            return ""

    def end(self):
        self.tell.put(None)
        looks = self.results.get()
        self.process.join()
        return looks
