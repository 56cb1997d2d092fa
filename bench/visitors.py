"""Who visits the site of `protection`: a crawler that never backs off, and a human.

Each is a process of its own on core 0, so that neither waits for the other. Addresses are those of
127.0.0.0/8, from which everybody on this machine may speak. Only the standard library is used.
"""

import http.client
import multiprocessing
import os
import socket
import threading
import time

import contest

PAUSE = 0.2
HUMAN = "127.200.0.1"
BROWSER = "Mozilla/5.0 (a human)"
# How many seconds a human waits for an answer.
PATIENCE = 10
# A slow reader takes a megabyte in about two seconds.
SIP, SIP_PAUSE = 16384, 0.03


class Visitor:
    """One connection from an address, opened when it is needed."""

    def __init__(self, port, address, agent, slow=False, patience=60):
        self.port, self.address, self.slow, self.patience = port, address, slow, patience
        self.headers = {"User-Agent": agent}
        self.connection = None

    def open(self):
        link = socket.socket()
        if self.slow:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(self.patience)
        link.bind((self.address, 0))
        link.connect(("127.0.0.1", self.port))
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        self.connection.sock = link

    def get(self, path):
        """The status (0: no answer) and the seconds it took."""
        started = time.monotonic()
        try:
            if self.connection is None or self.connection.sock is None:
                self.open()
            self.connection.request("GET", path, headers=self.headers)
            answer = self.connection.getresponse()
            self.read(answer)
            return answer.status, time.monotonic() - started
        except (OSError, http.client.HTTPException):
            if self.connection:
                self.connection.close()
            self.connection = None
            return 0, time.monotonic() - started

    def read(self, answer):
        if not self.slow:
            answer.read()
            return
        while answer.read(SIP):
            time.sleep(SIP_PAUSE)


class Gang:
    """`connections` of a crawler over its addresses and agents, all on one page."""

    def __init__(self, connections, addresses, agents=("Crawler/1.0",), path="/heavy", slow=False):
        self.connections, self.addresses, self.agents = connections, addresses, agents
        self.path, self.slow = path, slow

    def members(self, port):
        for index in range(self.connections):
            address = self.addresses[index % len(self.addresses)]
            yield Visitor(port, address, self.agents[index % len(self.agents)], self.slow)


class Tally:
    """Counts what happens in threads of one process, for another: its rate is from the last event
    before counting to the last one counted. A site with eight workers completes pages by eights;
    counted over a fixed time, up to eight more or fewer would belong to it."""

    def __init__(self):
        self.events = multiprocessing.Value("i", 0)
        self.since = multiprocessing.Value("d", time.monotonic())
        self.until = multiprocessing.Value("d", 0)

    def add(self, counting):
        with self.events.get_lock():
            if counting:
                self.events.value += 1
            (self.until if counting else self.since).value = time.monotonic()

    def rate(self):
        """Events a second."""
        with self.events.get_lock():
            took = self.until.value - self.since.value
            return self.events.value / took if self.events.value and took > 0 else 0.0


class Crawl:
    """Some gangs at work in a process of their own, counted from `count` on."""

    def __init__(self, port, gangs):
        self.phase = multiprocessing.Value("i", 0)
        self.served = [Tally() for _ in gangs]
        self.refused = Tally()
        self.process = multiprocessing.Process(target=self.run, args=(port, gangs))
        self.process.start()

    def run(self, port, gangs):
        os.sched_setaffinity(0, {contest.SERVER_CORE})
        threading.stack_size(256 * 1024)
        for gang, served in zip(gangs, self.served):
            for visitor in gang.members(port):
                args = (visitor, gang.path, served)
                threading.Thread(target=self.crawl, args=args, daemon=True).start()
        while self.phase.value != 2:
            time.sleep(0.05)
        os._exit(0)

    def crawl(self, visitor, path, served):
        while True:
            status, _ = visitor.get(path)
            (served if status == 200 else self.refused).add(self.phase.value == 1)

    def count(self):
        self.phase.value = 1

    def stop(self):
        """Ends it and returns the pages a second of each gang, and the refusals a second."""
        rates = [tally.rate() for tally in self.served], self.refused.rate()
        self.phase.value = 2
        self.process.join(5)
        self.process.kill()
        self.process.join()
        return rates


class Human:
    """One request after the other, five a second at most; in a process of its own."""

    def __init__(self, port, seconds, address=HUMAN, agent=BROWSER):
        self.results = multiprocessing.Queue()
        args = (port, seconds, address, agent)
        self.process = multiprocessing.Process(target=self.run, args=args)
        self.process.start()

    def run(self, port, seconds, address, agent):
        os.sched_setaffinity(0, {contest.SERVER_CORE})
        visitor = Visitor(port, address, agent, patience=PATIENCE)
        visitor.get("/light")
        statuses, took = [], []
        next_at = time.monotonic()
        end = next_at + seconds
        while next_at < end:
            status, seconds_taken = visitor.get("/light")
            statuses.append(status)
            if status == 200:
                took.append(seconds_taken * 1000)
            next_at = max(next_at + PAUSE, time.monotonic())
            time.sleep(max(0.0, next_at - time.monotonic()))
        self.results.put((statuses, took))

    def is_done(self):
        return not self.results.empty()

    def wait(self):
        """The status of each answer, and the milliseconds that those took that were served."""
        answer = self.results.get()
        self.process.join()
        return answer
