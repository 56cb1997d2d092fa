"""The stage of the scenes of bench/tokens: simulated engines, a contestant in front, the load.

The engines and the load have one core, what is in front has the other, as everywhere in `bench`. An
engine takes a fixed time for each step, so it is a GPU that does not care how busy the CPU is; its
`late_steps` say if that was not so.
"""

import collections
import functools
import json
import os
import secrets
import subprocess
import threading
import time
import urllib.request

import contest
from contest import LOAD_CORE, ROOT, SERVER_CORE, free_port, percentile

Request = collections.namedtuple(
    "Request", "client number sent first last status end tokens hash")

# The weights of tokens, which are Evenkeel's defaults: prompt, prompt in the cache, output.
WEIGHTS = (1.0, 0.25, 4.0)

LITELLM_AUTH = """\
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, user_id=api_key{limit})
"""


def weighted(tokens):
    """`tokens`: of prompts (without those in the cache), in the cache, and of outputs."""
    return sum(count * weight for count, weight in zip(tokens, WEIGHTS))


def get(port, path, data=None):
    url = f"http://127.0.0.1:{port}{path}"
    with urllib.request.urlopen(url, data=data, timeout=10) as answer:
        return json.load(answer)


def options(**given):
    """Words of a command line: `max_num_seqs=8` is `--max-num-seqs 8`."""
    words = []
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


class Outcome:
    """The results of a load, and the service of the engines during it."""

    def __init__(self, plan, requests, stats, timelines, cpu, memory):
        self.plan, self.requests, self.stats, self.timelines = plan, requests, stats, timelines
        self.cpu_seconds, self.memory_bytes = cpu, memory

    def of(self, name, after=0.0):
        numbers = {index for index, one in enumerate(self.plan["clients"]) if one["name"] == name}
        return [one for one in self.requests if one.client in numbers and one.sent >= after]

    def first_ms(self, name, percent, after=0.0):
        """Of requests that were not refused. One that got no byte waited until the end."""
        end = self.plan["seconds"] + self.plan.get("drain", 0)
        waits = [1000 * ((one.first or end) - one.sent) for one in self.of(name, after)
                 if one.status in (0, 200)]
        return percentile(waits, percent)

    def whole_ms(self, name, percent, after=0.0):
        return percentile([1000 * (one.last - one.sent) for one in self.of(name, after)
                           if one.end == "done" and one.status == 200], percent)

    def done(self, name=None):
        return [one for one in (self.requests if name is None else self.of(name))
                if one.end == "done" and one.status == 200]

    def tenant(self, name):
        """The tokens that the engines served to a tenant: prompts, cached, outputs."""
        return tuple(sum(stats["tenants"].get(name, {}).get(kind, 0) for stats in self.stats)
                     for kind in ("prompt", "cached", "output"))

    def services(self, names):
        """The course of the weighted service of tenants: times, and of each tenant a list."""
        timeline, = self.timelines
        # A tenant that the engine has never seen has no place.
        places = [timeline["names"].index(name) if name in timeline["names"] else None
                  for name in names]
        times, services = [], [[] for _ in names]
        for at, _, _, tenants in timeline["samples"]:
            times.append(at - timeline["began"])
            for place, service in zip(places, services):
                is_known = place is not None and place < len(tenants)
                tokens = tenants[place] if is_known else (0, 0, 0)
                service.append(weighted(tokens))
        return times, services

    def tokens_per_second(self, begin, end):
        """Tokens of prompts (without cached ones) and of outputs that the engine made a second."""
        timeline, = self.timelines
        sums = [(at - timeline["began"], sum(one[0] + one[2] for one in tenants))
                for at, _, _, tenants in timeline["samples"]]
        inside = [one for one in sums if begin <= one[0] <= end]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


class Stage:
    """Engines with one contestant in front: `nothing`, `nginx`, `evenkeel` or `litellm`."""

    # The same in all stages, so that LiteLLM, which takes long to start, need not start again.
    engine_ports = [free_port() for _ in range(4)]

    def __init__(self, bench, kept, contestant, engines=1, evenkeel="", limit=None,
                 concurrency=None, **engine):
        """`kept`: a `Bench` for what stays for other stages. `evenkeel`: more of its `proxy`.
        `limit`: LiteLLM's tokens a minute for each key. `concurrency`: Evenkeel's, by default two
        less than the engines run, as the guide says. `engine`: options of the engines."""
        self.bench, self.contestant, self.server, self.admin = bench, contestant, None, None
        self.engines = [self.engine(port, engine) for port in self.engine_ports[:engines]]
        seats = engine.get("max_num_seqs", 64) * engines
        if contestant == "evenkeel":
            self.start_evenkeel(concurrency or max(seats - 2, 1), evenkeel)
        elif contestant == "nginx":
            engine_port, = self.engines
            self.server = bench.nginx_proxy("nginx", free_port(), engine_port,
                                            rule="proxy_buffering off;")
        elif contestant == "litellm":
            name = f"litellm {engines} {limit}"
            before = [server for server in kept.servers if server.name == name]
            self.server = before[0] if before else self.start_litellm(kept, name, limit)
        self.ports = [self.server.port] if self.server else self.engines

    def engine(self, port, given):
        command = [programs()[0], *options(port=port, **given)]
        self.bench.start(f"engine {port}", command, port, LOAD_CORE)
        return port

    def start_evenkeel(self, concurrency, more):
        port, self.admin = free_port(), free_port()
        backends = ", ".join(f"http://127.0.0.1:{engine}" for engine in self.engines)
        path = self.bench.file(f"evenkeel-{port}.yaml", f"""\
admin: {{listen: 127.0.0.1:{self.admin}}}
proxy:
  listen: 127.0.0.1:{port}
  backend: [{backends}]
  preset: openai
  bounds: {{connections: 9000}}
  queue: {{concurrency: {concurrency}}}
{more}""")
        command = [contest.evenkeel(), "serve", "--config", path]
        self.server = self.bench.start(f"evenkeel {port}", command, port, SERVER_CORE)

    def start_litellm(self, kept, name, limit):
        port, folder = free_port(), f"{ROOT}/target/litellm"
        models = "".join(f"""\
- model_name: m
  litellm_params:
    {{model: openai/m, api_base: "http://127.0.0.1:{engine}/v1", api_key: none}}
""" for engine in self.engines)
        slug = name.replace(" ", "-")
        os.mkdir(f"{kept.folder}/{slug}")
        path = kept.file(f"{slug}/config.yaml", f"""\
model_list:
{models}\
litellm_settings: {{num_retries: 0, request_timeout: 600, telemetry: false}}
router_settings: {{num_retries: 0, disable_cooldowns: true}}
general_settings: {{custom_auth: auth.user_api_key_auth}}
""")
        kept.file(f"{slug}/auth.py", LITELLM_AUTH.format(
            limit=f", tpm_limit={limit}" if limit else ""))
        command = [f"{folder}/bin/litellm", "--config", path, "--host", "127.0.0.1", "--port",
                   str(port), "--num_workers", "1", "--telemetry", "False"]
        # Keeps LiteLLM from fetching anything.
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR",
               "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}", "HF_HUB_OFFLINE": "1",
               "DISABLE_ADMIN_UI": "True"}
        return kept.start(name, command, port, SERVER_CORE, env=env, patience=90)

    def run(self, clients, seconds, drain=0.0, seed=1):
        """Runs the clients, and returns their results."""
        plan = {"seed": seed, "seconds": seconds, "drain": drain, "clients": clients}
        for engine in self.engines:
            get(engine, "/reset", b"")
        began = [get(engine, "/stats")["at"] for engine in self.engines]
        cpu = self.server.cpu_seconds() if self.server else 0.0
        with MemoryPeak(self.server) as memory:
            out = self.load(plan)
        cpu = self.server.cpu_seconds() - cpu if self.server else 0.0
        # An engine notices at its next step that a client has disconnected.
        time.sleep(0.1)
        stats = [get(engine, "/stats") for engine in self.engines]
        timelines = [get(engine, "/timeline") | {"began": at}
                     for engine, at in zip(self.engines, began)]
        requests = [Request(*json.loads(line)) for line in out.splitlines()]
        return Outcome(plan, requests, stats, timelines, cpu, memory.peak)

    def load(self, plan):
        ports = ",".join(map(str, self.ports))
        done = subprocess.run(["taskset", "-c", str(LOAD_CORE), programs()[1], ports],
                              input=json.dumps(plan), stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def charged(self):
        """The weighted tokens that Evenkeel has charged, by the name of the client."""
        found = {}
        for limit in get(self.admin, "/api/top")["limits"]:
            for row in limit["rows"]:
                found[row["key"]] = found.get(row["key"], 0) + 1000 * row["cpu_total"]
        return found


class MemoryPeak:
    """The peak memory of a server, sampled ten times a second."""

    def __init__(self, server):
        self.server, self.peak, self.ended = server, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.ended.wait(0.1):
            self.peak = max(self.peak, self.server.memory_bytes())

    def __enter__(self):
        if self.server:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        if self.server:
            self.thread.join()


@functools.cache
def programs():
    """The engine and the load, built if need be."""
    return (contest.service("tokens", "model-engine", "MODEL_ENGINE"),
            contest.service("tokens", "model-load", "MODEL_LOAD"))


def install_litellm():
    """The environment below target with the packages that ci/pins/litellm.txt pins."""
    subprocess.run(["bash", "-c", ". ci/steps && pinned litellm"], cwd=ROOT, check=True)


def litellm_version():
    pins = open(f"{ROOT}/ci/pins/litellm.txt").read().splitlines()
    return next(line.split()[0] for line in pins if line.startswith("litellm=="))
