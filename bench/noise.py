"""What disturbs the site of `protection`, or the servers of `proxy`, while they are measured: the
kinds of `--noise`.

`spin` has a busy process on each core. The scheduler shares a core between it and the site's PHP,
which is a session of its own, however many of its processes are busy (`sched_autogroup`). `copy`
has processes there that copy 32 MB again and again, so the caches have nothing of others. `rival`
has the same processes in one cgroup with the site, where each process is worth the same: the more
requests are in flight, the larger is the site's part of the core. `cgroup` puts the site into a
cgroup that may use 0.3 to 1.0 of a core, another part each 50 ms to 5 s, in periods of 80 to 120 ms
(containers are limited in periods of 100 ms). `stop` stops one PHP worker after the other for 0.1
to 1 s, with pauses as long between. `rival` and `cgroup` need root. The same seed makes the same
noise. All of it ends with the measurement, or with the process that measures. Only the standard
library is used.
"""

import math
import multiprocessing
import os
import random
import signal
import sys
import time

KINDS = ["spin", "copy", "rival", "cgroup", "stop"]
COPIED_BYTES = 32 << 20
PARTS, PART_SECONDS = (0.3, 1.0), (0.05, 5.0)
PERIOD_US = (80_000, 120_000)
STOP_SECONDS = (0.1, 1.0)


class Noise:
    """Some kinds of noise, each in processes of its own, as long as the `with` lasts."""

    def __init__(self, kinds, site, seed):
        self.kinds, self.site, self.seed = kinds, site, seed
        self.processes, self.group, self.workers = [], None, []

    def __enter__(self):
        try:
            if "spin" in self.kinds or "rival" in self.kinds:
                for core in range(os.cpu_count()):
                    self.begin(spin, core)
            if "copy" in self.kinds:
                for core in range(os.cpu_count()):
                    self.begin(copy, core)
            if "rival" in self.kinds or "cgroup" in self.kinds:
                rivals = [process.pid for process in self.processes if "rival" in self.kinds]
                self.group = CpuGroup()
                self.group.move_in(self.site.nginx.family() + self.site.php.family() + rivals)
            if "cgroup" in self.kinds:
                self.begin(squeeze, self.group, self.seed)
            if "stop" in self.kinds:
                self.workers = self.site.php.family()[1:]
                self.begin(stop_workers, self.workers, self.seed)
        except BaseException:
            self.__exit__()
            raise

    def begin(self, task, *args):
        process = multiprocessing.Process(target=task, args=(os.getpid(), *args))
        process.start()
        self.processes.append(process)

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()
        resume(self.workers)
        if self.group:
            self.group.remove()


def spin(parent, core):
    os.sched_setaffinity(0, {core})
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


def copy(parent, core):
    os.sched_setaffinity(0, {core})
    source, target = bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)
    while os.getppid() == parent:
        target[:] = source


def squeeze(parent, group, seed):
    chance = random.Random(seed)
    while os.getppid() == parent:
        # With one period of 100 ms the human's request each 200 ms would always meet the same
        # part of it.
        group.limit(chance.uniform(*PARTS), chance.randint(*PERIOD_US))
        # Each length is as probable as its double.
        time.sleep(math.exp(chance.uniform(*map(math.log, PART_SECONDS))))


def stop_workers(parent, workers, seed):
    chance = random.Random(seed)
    while os.getppid() == parent:
        time.sleep(chance.uniform(*STOP_SECONDS))
        worker = chance.choice(workers)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(chance.uniform(*STOP_SECONDS))
        os.kill(worker, signal.SIGCONT)


def resume(workers):
    for pid in workers:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


class CpuGroup:
    """A new cgroup, of version 2 if that has the cpu controller here, else of version 1."""

    def __init__(self):
        for line in open("/proc/self/mounts"):
            _, self.parent, kind, options = line.split()[:4]
            if kind == "cgroup2" or kind == "cgroup" and "cpu" in options.split(","):
                self.path = f"{self.parent}/bench-{os.getpid()}"
                if self.made():
                    return
        sys.exit("no cgroup with the cpu controller can be made: that needs root")

    def made(self):
        try:
            os.mkdir(self.path)
        except OSError:
            return False
        if any(os.path.exists(f"{self.path}/{name}") for name in ("cpu.max", "cpu.cfs_quota_us")):
            return True
        os.rmdir(self.path)
        return False

    def move_in(self, pids):
        move(self.path, pids)

    def limit(self, part, period):
        quota = int(part * period)
        if os.path.exists(f"{self.path}/cpu.max"):
            write(f"{self.path}/cpu.max", f"{quota} {period}")
        else:
            write(f"{self.path}/cpu.cfs_period_us", period)
            write(f"{self.path}/cpu.cfs_quota_us", quota)

    def remove(self):
        move(self.parent, open(f"{self.path}/cgroup.procs").read().split())
        os.rmdir(self.path)


def move(group, pids):
    for pid in pids:
        write(f"{group}/cgroup.procs", pid)


def write(path, value):
    with open(path, "w") as file:
        file.write(str(value))
