"""Who visits the site of `arena`: a swarm of ever-new addresses, people, and readers of the feed.

The swarm and the people are a process each on core 0. All of them look like browsers. A connection
is bound to its client's address of 127.0.0.0/8, from which all programs of this machine may speak.
Only the standard library is used.
"""

import asyncio
import heapq
import itertools
import math
import multiprocessing
import os
import random
import re
import socket
import time

import contest

# Seconds that every client waits for an answer, and that a person gives to one page. A swarm that
# does not wait for answers gives up sooner, as its connections would be more than servers may have.
PATIENCE, OPEN_PATIENCE = 60, 15
# A person takes this long to read a page, comes again this long after an answer that says neither
# `Refresh` nor `Retry-After`, and asks for this many pages.
READING, RELOAD, PAGES = 3, 5, 4
REGULARS, NEW_EVERY, FEED_EVERY = 6, 2, 5
# A connection of the swarm asks this many times a second at most when it is refused.
SWARM_PAUSE = 1
# Linux binds the port when the connection is made, so that each address has all ports.
IP_BIND_ADDRESS_NO_PORT = 24
# The swarm's addresses: 127.1.0.1 to 127.199.199.254, or those of one network. People have
# 127.1.200.1 to 127.199.254.254.
NETS, SUBNETS, HOSTS, OWN_NET = 199, 200, 254, 200
NAVIGATION = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language": "en", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document",
}
ROBOT = {**NAVIGATION, "User-Agent": "Mozilla/5.0 (compatible; Harvester/2.1)"}
# What the swarm has that people do not: nothing, or one of these for all its requests.
ALIKE = {
    "nothing": "", "agent": "a `User-Agent` of its own", "network": "a /16 of its own",
    "asn": "an AS of its own",
}
READER = {"User-Agent": "Reader/1.0", "Accept": "application/atom+xml"}


def swarm_address(number, count, first=1, nets=NETS):
    """One of `count` addresses that are spread evenly; neighbours in time are none in space."""
    count = min(count, nets * SUBNETS * HOSTS)
    # A prime, so all of them come before the first one comes again. The golden ratio of a million,
    # so those of any short time are spread evenly as well.
    place = number * 618_029 % count * (nets * SUBNETS * HOSTS // count)
    net, rest = divmod(place, SUBNETS * HOSTS)
    return f"127.{first + net}.{rest // HOSTS}.{1 + rest % HOSTS}"


def person_address(number):
    rest, net = divmod(number, NETS)
    host, subnet = divmod(rest, 255 - SUBNETS)
    return f"127.{1 + net}.{SUBNETS + subnet}.{1 + host % HOSTS}"


def asn_table():
    """A database for `proxy.databases`: each network is divided between an AS that has the whole
    swarm and one of ten others, which have people."""
    return "".join(
        f"127.{net}.0.0\t127.{net}.{SUBNETS - 1}.255\t64500\tZZ\tSWARM\n"
        f"127.{net}.{SUBNETS}.0\t127.{net}.255.255\t{64501 + net % 10}\tZZ\tPEOPLE\n"
        for net in range(1, 1 + NETS))


class Answer:
    """What was received, whole or not; status 0: no head."""

    def __init__(self, data):
        head, self.ended, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if self.ended else 0
        pairs = [line.partition(":")[::2] for line in lines[1:]]
        self.fields = {name.lower(): value.strip() for name, value in pairs}
        self.cookies = [value.split(";")[0].strip() for name, value in pairs
                        if name.lower() == "set-cookie"]

    def whole(self):
        if not self.ended:
            return False
        if "chunked" in self.fields.get("transfer-encoding", ""):
            return self.body.endswith(b"0\r\n\r\n")
        return len(self.body) >= int(self.fields.get("content-length", math.inf))

    def is_page(self):
        """Whether it comes from the site itself: a waiting room may answer 200 as well."""
        return self.status == 200 and b"burnt" in self.body

    def comes_again(self):
        """The seconds after which the client is told to come again, if any."""
        for name in "refresh", "retry-after":
            if found := re.match(r"\d+(\.\d+)?", self.fields.get(name, "")):
                return float(found[0])
        return None


class Browser:
    """One client: an address, a connection if it lasts, and cookies if it keeps them."""

    def __init__(self, port, address, headers=NAVIGATION, lasts=True, keeps=True):
        self.port, self.address, self.headers = port, address, headers
        self.lasts, self.keeps, self.link, self.cookies = lasts, keeps, None, {}

    def head(self, path):
        fields = {"Host": "arena", **self.headers}
        if not self.lasts:
            fields["Connection"] = "close"
        if self.cookies:
            fields["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()

    async def open(self):
        self.link = socket.socket()
        self.link.setblocking(False)
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link.setsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        self.link.bind((self.address, 0))
        await asyncio.get_running_loop().sock_connect(self.link, ("127.0.0.1", self.port))

    def close(self):
        if self.link:
            self.link.close()
        self.link = None

    async def exchange(self, path):
        loop = asyncio.get_running_loop()
        if self.link is None:
            await self.open()
        await loop.sock_sendall(self.link, self.head(path))
        data = b""
        while part := await loop.sock_recv(self.link, 65536):
            data += part
            if (answer := Answer(data)).whole():
                return answer
        self.close()
        return Answer(data)

    async def get(self, path):
        """The answer; its status is 0 if there was none."""
        answer = Answer(b"")
        try:
            for _ in range(2 if self.link else 1):
                # A connection that was idle may have been closed meanwhile.
                answer = await self.exchange(path)
                if answer.status:
                    break
        except OSError:
            self.close()
        except asyncio.CancelledError:
            self.close()
            raise
        if not self.lasts or answer.fields.get("connection") == "close":
            self.close()
        if self.keeps:
            self.cookies.update(cookie.split("=", 1) for cookie in answer.cookies)
        return answer


class Seen:
    """How one page was had: when it was asked for first, in how many seconds, and whether."""

    def __init__(self, kind, began):
        self.kind, self.began, self.took = kind, began, None
        self.served = self.refused = False


class People:
    """Regulars, newcomers and readers of the feed, in a process of their own."""

    def __init__(self, port, times, path, crowd=0):
        """`times`: when they begin to come, when `crowd` more new people a second do, and the end:
        pages begun before it are returned."""
        self.port, self.path, self.crowd = port, path, crowd
        self.start, self.crowded, self.end = times
        self.numbers = itertools.count(REGULARS)
        self.seen, self.tasks = [], set()
        self.results = multiprocessing.Queue()
        self.process = multiprocessing.Process(target=self.run)
        self.process.start()

    def run(self):
        os.sched_setaffinity(0, {contest.SERVER_CORE})
        asyncio.run(self.live())
        self.results.put(self.seen)

    async def live(self):
        for number in range(REGULARS):
            self.begin(self.regular(number))
        self.begin(self.come(self.start, NEW_EVERY, self.newcomer))
        self.begin(self.come(self.start, FEED_EVERY, self.reader))
        if self.crowd:
            self.begin(self.come(self.crowded, 1 / self.crowd, self.newcomer))
        await asyncio.sleep(self.end - time.monotonic())
        while any(seen.took is None for seen in self.seen):
            await asyncio.sleep(0.1)

    def begin(self, task):
        # A task without a reference may be collected before it ends.
        task = asyncio.create_task(task)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def come(self, start, every, visit):
        for number in itertools.count():
            await asyncio.sleep(start + number * every - time.monotonic())
            self.begin(visit())

    async def regular(self, number):
        browser = Browser(self.port, person_address(number))
        # They do not come at the same moment.
        next_at = time.monotonic() + number / REGULARS
        while True:
            await asyncio.sleep(next_at - time.monotonic())
            await self.page(browser, "regular", RELOAD)
            next_at = max(next_at + 1, time.monotonic())

    async def newcomer(self):
        browser = Browser(self.port, person_address(next(self.numbers)))
        for number in range(PAGES):
            if not (await self.page(browser, "later" if number else "first", RELOAD)).served:
                break
            await asyncio.sleep(READING)
        browser.close()

    async def reader(self):
        browser = Browser(
            self.port, person_address(next(self.numbers)), READER, lasts=False, keeps=False)
        await self.page(browser, "feed", None)

    async def page(self, browser, kind, reload):
        """One page, however often it takes to ask for it. `reload`: after how many seconds, where
        the answer does not say it; `None`: asks once."""
        seen = Seen(kind, time.monotonic())
        if seen.began < self.end:
            self.seen.append(seen)
        try:
            async with asyncio.timeout(PATIENCE):
                while not seen.served:
                    answer = await browser.get(self.path)
                    seen.served = answer.is_page()
                    if not seen.served:
                        seen.refused = seen.refused or "refresh" not in answer.fields
                        if reload is None:
                            break
                        await asyncio.sleep(max(0.5, answer.comes_again() or reload))
        except TimeoutError:
            seen.refused = True
        seen.took = time.monotonic() - seen.began if seen.served else PATIENCE
        return seen

    def wait(self):
        """The pages begun before the end, once each of them was had or given up."""
        seen = self.results.get()
        self.process.join()
        return seen

    def stop(self):
        self.process.kill()
        self.process.join()


class Robot:
    """One identity of the swarm: has a page or is refused, and is gone, unless it `keeps` cookies:
    then it comes again as it is told to, and for as many pages as a person."""

    def __init__(self, browser):
        self.browser, self.left = browser, PAGES if browser.keeps else 1

    def next_in(self, answer):
        """The seconds after which it comes again, if it does."""
        if answer.is_page():
            self.left -= 1
            return SWARM_PAUSE if self.left else None
        return answer.comes_again() if self.browser.keeps else None


class Swarm:
    """Ever-new addresses, each of which asks once, in a process of its own from `start`.

    With `connections`, that many ask at once, each again when it was answered, and a second after
    it asked if it was refused. With `rate`, that many ask each second, whatever is answered. The
    part `keep` comes back as it is told to. `alike`: what it has in common, one of `ALIKE`.
    """

    def __init__(self, port, start, path, connections, rate, addresses, keep, alike):
        self.port, self.path, self.rate, self.keep = port, path, rate, keep
        self.addresses, self.numbers, self.chance = addresses, itertools.count(), random.Random(1)
        self.headers = ROBOT if alike == "agent" else NAVIGATION
        self.networks = (OWN_NET, 1) if alike == "network" else (1, NETS)
        self.due, self.tasks = [], set()
        self.patience = OPEN_PATIENCE if rate else PATIENCE
        self.served = multiprocessing.Value("q", 0, lock=False)
        self.process = multiprocessing.Process(target=self.run, args=(start, connections))
        self.process.start()

    def run(self, start, connections):
        os.sched_setaffinity(0, {contest.SERVER_CORE})
        asyncio.run(self.crawl(start, connections))

    async def crawl(self, start, connections):
        await asyncio.sleep(start - time.monotonic())
        if self.rate:
            await self.arrive()
        await asyncio.gather(*(self.connection() for _ in range(connections)))

    async def connection(self):
        while True:
            began = time.monotonic()
            if not await self.ask(self.next_due() or self.new()):
                await asyncio.sleep(began + SWARM_PAUSE - time.monotonic())

    async def arrive(self):
        started, came = time.monotonic(), 0
        while True:
            while came < (time.monotonic() - started) * self.rate:
                came += 1
                self.begin(self.new())
            while robot := self.next_due():
                self.begin(robot)
            await asyncio.sleep(1 / self.rate)

    def begin(self, robot):
        task = asyncio.create_task(self.ask(robot))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def new(self):
        address = swarm_address(next(self.numbers), self.addresses, *self.networks)
        keeps = self.chance.random() < self.keep
        return Robot(Browser(self.port, address, self.headers, lasts=False, keeps=keeps))

    def next_due(self):
        if self.due and self.due[0][0] <= time.monotonic():
            return heapq.heappop(self.due)[2]
        return None

    async def ask(self, robot):
        """Whether it got its page."""
        try:
            async with asyncio.timeout(self.patience):
                answer = await robot.browser.get(self.path)
        except TimeoutError:
            answer = Answer(b"")
        self.served.value += answer.is_page()
        if (pause := robot.next_in(answer)) is not None:
            # Robots themselves have no order, which the heap asks for where times are equal.
            heapq.heappush(self.due, (time.monotonic() + pause, id(robot), robot))
        return answer.is_page()

    def stop(self):
        self.process.kill()
        self.process.join()
