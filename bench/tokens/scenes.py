"""The scenes of bench/tokens: what clients do, and what is read from it.

A scene is a function. It gets `stage`, which opens a `Stage` with the contestant in front and the
options that it names, and returns its figures by name. `Figure` says how one is shown and what its
bar is.
"""

import collections
import random

from contest import percentile
from stage import weighted

# An engine that is slow enough for all contestants: 16 sequences make 667 tokens a second.
SLOW = {"max_num_seqs": 16, "max_batched_tokens": 512, "kv_tokens": 16_384, "cache_tokens": 0,
        "step_us": 20_000, "sequence_us": 250, "prefill_us": 50}
# An engine that takes no time.
INSTANT = {"max_num_seqs": 1024, "max_batched_tokens": 65_536, "kv_tokens": 10_000_000,
           "cache_tokens": 0, "step_us": 0, "sequence_us": 0, "prefill_us": 0}

# If `is_relative`, `is_met` gets Evenkeel's value and the one with nothing in front.
Figure = collections.namedtuple("Figure", "name show bar is_met is_relative",
                                defaults=("", None, False))
SCENES = {}


def scene(*figures, contestants=("nothing", "evenkeel", "litellm")):
    """Makes a function a scene with these figures."""
    def add(play):
        play.figures, play.contestants = {one.name: one for one in figures}, contestants
        SCENES[play.__name__.replace("_", "-")] = play
        return play
    return add


def at_most(most):
    return lambda value, _: value <= most


def at_least(least):
    return lambda value, _: value >= least


def within(least, most):
    return lambda value, _: least <= value <= most


def digits(count):
    return f"{{:.{count}f}}".format


def ms(value):
    return f"{value:.0f} ms" if value >= 20 else f"{value:.2f} ms"


def percent(value):
    return f"{value:.1%}"


def mib(value):
    return f"{value / 2**20:.1f} MiB"


def service_of(outcome, names, begin, end):
    """The weighted service of each tenant in this time."""
    times, services = outcome.services(names)
    inside = [index for index, at in enumerate(times) if begin <= at <= end]
    return [service[inside[-1]] - service[inside[0]] for service in services]


@scene(Figure("difference of service, of the bound", percent, "<= 100 %", at_most(1.0)),
       Figure("the same in weighted tokens", digits(0)))
def fair(stage):
    """Two backlogged tenants: long prompts with short outputs, three times as many of them, and
    short prompts with long outputs. The bound is that of the Virtual Token Counter: 2 x max(w_in
    L_in, w_out M), with the longest prompt L_in and the most tokens M in a running batch."""
    engine = SLOW | {"max_num_seqs": 8, "kv_tokens": 4096, "scale": 4}
    with stage(**engine) as on:
        outcome = on.run([
            {"name": "prompts", "connections": 48, "prompt": [400, 600], "output": [5, 10]},
            {"name": "outputs", "connections": 16, "prompt": [10, 30], "output": [40, 60]},
        ], 16)
    times, (prompts, outputs) = outcome.services(["prompts", "outputs"])
    # Both wait from the first second on.
    ahead = [one - other for at, one, other in zip(times, prompts, outputs) if 1 <= at <= 16]
    difference = max(ahead) - min(ahead)
    bound = 2 * max(600, 4 * outcome.stats[0]["kv_peak"])
    return {"difference of service, of the bound": difference / bound,
            "the same in weighted tokens": difference}


@scene(Figure("Jain's index", digits(3), ">= 0.98", at_least(0.98)),
       Figure("least and most, of the mean", str),
       Figure("Jain's index, first seconds", digits(3)),
       Figure("the same with per_second", digits(3)))
def tenants(stage):
    """Sixteen backlogged tenants of unlike mixes, with 16 to 46 connections each, for 30 s: the
    second half, and the first one. Evenkeel also with `per_second` as the engine is."""
    chance = random.Random(16)
    clients = []
    for number in range(16):
        prompt, output = chance.choice([20, 100, 400]), chance.choice([5, 20, 60])
        clients.append({"name": f"tenant-{number}", "connections": 16 + 2 * number,
                        "prompt": [prompt // 2, 2 * prompt], "output": [output // 2, 2 * output]})
    names = [one["name"] for one in clients]
    with stage(**SLOW | {"scale": 4}) as on:
        outcome = on.run(clients, 30)
    services = service_of(outcome, names, 15, 30)
    mean = sum(services) / 16
    figures = {"Jain's index": jain(services),
               "least and most, of the mean":
                   f"{min(services) / mean:.0%} - {max(services) / mean:.0%}",
               "Jain's index, first seconds": jain(service_of(outcome, names, 1, 15))}
    if on.contestant == "evenkeel":
        rate = round(sum(services) / 15)
        with stage(evenkeel=f"  tokens: {{per_second: {rate}}}\n", **SLOW | {"scale": 4}) as on:
            outcome = on.run(clients, 15)
        figures["the same with per_second"] = jain(service_of(outcome, names, 1, 15))
    return figures


def jain(services):
    return sum(services) ** 2 / (len(services) * sum(one * one for one in services))


@scene(Figure("first byte p50 alone", ms), Figure("beside the other", ms),
       Figure("first byte p95 alone", ms), Figure("p95 beside the other", ms),
       Figure("p95, times alone", digits(2), "<= 1.5", at_most(1.5)))
def light(stage):
    """A tenant with two requests a second, alone and beside one with a hundred a second, which is
    four times what the engine can do. Long enough that the few times when the tenant has several
    requests at once do not decide."""
    mix = {"prompt": [30, 90], "output": [15, 45]}
    with stage(**SLOW) as on:
        alone = on.run([{"name": "light", "rate": 2} | mix], 60, 5)
        beside = on.run([{"name": "light", "rate": 2} | mix,
                         {"name": "heavy", "rate": 100, "start": 0.5} | mix], 120)
    p50, p95 = (alone.first_ms("light", part) for part in (50, 95))
    after = [beside.first_ms("light", part, 2) for part in (50, 95)]
    return {"first byte p50 alone": p50, "beside the other": after[0],
            "first byte p95 alone": p95, "p95 beside the other": after[1],
            "p95, times alone": after[1] / p95}


@scene(Figure("first byte p50 before", ms), Figure("beside them", ms),
       Figure("first byte p95 before", ms), Figure("p95 beside them", ms),
       Figure("refused", digits(0), "0", at_most(0)))
def newcomers(stage):
    """A tenant with a short request every three seconds, which is a third of an equal part, and
    after ten seconds 24 new tenants at once, each with one stream after the other of half a minute,
    before anything is known of the engine."""
    with stage(**SLOW | {"kv_tokens": 65_536}) as on:
        outcome = on.run(
            [{"name": "known", "rate": 1 / 3, "prompt": [30, 90], "output": [15, 45]}]
            + [{"name": f"new-{number}", "connections": 1, "start": 10, "prompt": [50, 150],
                "output": [1000, 1300]} for number in range(24)], 100)
    requests = outcome.of("known")
    before = [1000 * (one.first - one.sent) for one in requests if one.sent < 10 and one.first]
    beside = {part: outcome.first_ms("known", part, 10) for part in (50, 95)}
    return {"first byte p50 before": percentile(before, 50), "beside them": beside[50],
            "first byte p95 before": percentile(before, 95), "p95 beside them": beside[95],
            "refused": sum(one.status == 503 for one in requests)}


@scene(Figure("tokens/s", digits(0), ">= 97 % of nothing",
              lambda value, nothing: value >= 0.97 * nothing, True),
       Figure("requests/s", digits(1)),
       Figure("tokens/s, outputs of 20 to 60", digits(0), ">= 97 % of nothing",
              lambda value, nothing: value >= 0.97 * nothing, True))
def throughput(stage):
    """Eight backlogged tenants with the same mix, so that the order does not change the work: with
    outputs of 100 to 300 tokens, and with short ones. A request that is sent when another one has
    ended comes a step too late, so that each request costs a step of one sequence."""
    def run(output):
        clients = [{"name": f"tenant-{number}", "connections": 6, "prompt": [50, 250],
                    "output": output} for number in range(8)]
        with stage(**SLOW) as on:
            return on.run(clients, 65)

    long, brief = run([100, 300]), run([20, 60])
    return {"tokens/s": long.tokens_per_second(5, 65), "requests/s": len(long.done()) / 65,
            "tokens/s, outputs of 20 to 60": brief.tokens_per_second(5, 65)}


@scene(Figure("short p50", ms, "70 % less than nothing",
              lambda value, nothing: value <= 0.3 * nothing, True),
       Figure("short p95", ms), Figure("long p50", ms),
       Figure("short p50, one key for all", ms))
def short(stage):
    """Four tenants with short requests, one after the other, beside one with long outputs; and the
    same requests with one key for all, where no tenants are known."""
    def clients(**key):
        return [{"name": f"short-{number}", "connections": 1, "pause": 0.05, "prompt": [20, 60],
                 "output": [5, 15], "start": 1} | key for number in range(4)] + [
                {"name": "long", "connections": 40, "prompt": [50, 200],
                 "output": [150, 300]} | key]
    with stage(**SLOW | {"scale": 4}) as on:
        outcome = on.run(clients(), 15)
        one = on.run(clients(authorization="Bearer one"), 15)

    def wholes(of, part):
        return percentile([took for number in range(4) for took in ended_ms(of, f"short-{number}")],
                          part)
    return {"short p50": wholes(outcome, 50), "short p95": wholes(outcome, 95),
            "long p50": outcome.whole_ms("long", 50),
            "short p50, one key for all": wholes(one, 50)}


def ended_ms(outcome, name):
    """The times of requests that ended after two seconds. One that did not end took until the end
    of the scene."""
    end = outcome.plan["seconds"]
    spans = [(one.sent, one.last if one.end == "done" and one.last else end)
             for one in outcome.of(name) if one.status in (0, 200)]
    return [1000 * (ended - sent) for sent, ended in spans if ended >= 2]


LIMIT, LIMIT_REQUEST = 6000, 200


@scene(Figure("overshoot, in requests", digits(1), "<= 1", at_most(1)),
       Figure("served, of the allowance", percent),
       Figure("overshoot without max_tokens", digits(1), "<= 1", at_most(1)),
       Figure("overshoot of streams", digits(1), "<= 1", at_most(1)),
       contestants=("evenkeel", "litellm"))
def limit(stage):
    """A limit of 6000 tokens a minute, and 100 requests of 200 tokens at once, again and again. The
    allowance of Evenkeel is a bucket: it grows while the scene runs, LiteLLM's does not. Tokens of
    prompts and outputs count alike."""
    more = f"""\
  limits:
    - {{name: minute, by: header:authorization, rate: {LIMIT}/m, unit: tokens}}
"""
    client = {"connections": 100, "pause": 0.5, "prompt": [100, 100], "output": [100, 100]}
    kinds = {"": {"stream": False}, "without": {"stream": False, "max_tokens": 0}, "streams": {}}
    over, parts = {}, {}
    for kind, change in kinds.items():
        with stage(evenkeel=more, limit=LIMIT, **SLOW | {"max_num_seqs": 128, "scale": 4,
                                                         "kv_tokens": 65_536}) as on:
            outcome = on.run([{"name": f"tenant-{kind}"} | client | change], 4, 2)
        served = sum(outcome.tenant(f"tenant-{kind}"))
        last = max((one.sent for one in outcome.done()), default=0)
        allowance = LIMIT + (LIMIT * last / 60 if on.contestant == "evenkeel" else 0)
        over[kind], parts[kind] = (served - allowance) / LIMIT_REQUEST, served / allowance
    return {"overshoot, in requests": over[""], "served, of the allowance": parts[""],
            "overshoot without max_tokens": over["without"], "overshoot of streams":
            over["streams"]}


@scene(Figure("first byte p50", ms), Figure("first byte p99", ms), Figure("whole p50", ms),
       Figure("whole p99", ms),
       Figure("first byte p99 added", ms, "<= 1 ms", at_most(1)),
       Figure("whole p99 added", ms, "<= 1 ms", at_most(1)),
       contestants=("nothing", "nginx", "evenkeel", "litellm"))
def latency(stage):
    """One request after the other at an engine that takes no time."""
    with stage(**INSTANT) as on:
        client = {"name": "one", "connections": 1, "prompt": [100, 100], "output": [20, 20],
                  "pause": 0.002}
        on.run([client], 1)
        outcome = on.run([client], 6)
    times = {"first byte": outcome.first_ms, "whole": outcome.whole_ms}
    return {f"{kind} p{part}": at("one", part) for kind, at in times.items() for part in (50, 99)}


def added(figures, nothing):
    """What `latency` has beside what was measured."""
    if nothing:
        for kind in ("first byte", "whole"):
            figures[f"{kind} p99 added"] = figures[f"{kind} p99"] - nothing[f"{kind} p99"]


@scene(Figure("CPU of a stream", ms), Figure("streams/s of a core", digits(0)),
       Figure("times LiteLLM's", digits(1), ">= 10", at_least(10)),
       contestants=("evenkeel", "litellm"))
def cpu(stage):
    """Streams of 50 tokens, 32 at once, a token every 10 ms."""
    engine = SLOW | {"max_num_seqs": 64, "kv_tokens": 65_536, "step_us": 10_000, "sequence_us": 0,
                     "prefill_us": 0}
    with stage(**engine) as on:
        client = {"name": "one", "connections": 32, "prompt": [100, 100], "output": [50, 50]}
        on.run([client], 1, 3)
        outcome = on.run([client], 6, 5)
    each = outcome.cpu_seconds / max(1, len(outcome.done()))
    return {"CPU of a stream": 1000 * each, "streams/s of a core": 1 / max(each, 1e-9)}


@scene(Figure("first byte p50", ms), Figure("first byte p95", ms),
       Figure("streams that ended", digits(0)), Figure("seconds until the last ended", digits(1)),
       Figure("CPU seconds", digits(2)), Figure("memory", mib),
       Figure("late steps of the engine", digits(0)))
def crowd(stage):
    """A thousand streams at once, of 60 tokens, one every 50 ms."""
    engine = INSTANT | {"step_us": 50_000}
    with stage(**engine) as on:
        client = {"name": "one", "connections": 1000, "count": 1000, "prompt": [100, 100],
                  "output": [60, 60]}
        outcome = on.run([client], 5, 12)
    done = outcome.done()
    figures = {"first byte p50": outcome.first_ms("one", 50),
               "first byte p95": outcome.first_ms("one", 95), "streams that ended": len(done),
               "late steps of the engine": outcome.stats[0]["late_steps"]}
    if done:
        figures["seconds until the last ended"] = max(one.last for one in done)
    if on.server:
        figures |= {"CPU seconds": outcome.cpu_seconds, "memory": outcome.memory_bytes}
    return figures


@scene(Figure("charged, of what was made", percent, "98 - 105 %", within(0.98, 1.05)),
       Figure("tokens made after the client left", digits(1)),
       Figure("the same, asked for usage", percent, "98 - 105 %", within(0.98, 1.05)),
       Figure("tokens that clients saw", digits(0)))
def hang_ups(stage):
    """Clients that disconnect after 5 to 50 of 200 tokens."""
    figures = {}
    for asks, name in ((False, "charged, of what was made"), (True, "the same, asked for usage")):
        with stage(**SLOW | {"max_num_seqs": 32, "kv_tokens": 65_536}) as on:
            outcome = on.run([{"name": "gone", "connections": 32, "prompt": [50, 150],
                               "output": [200, 200], "hang_up": [5, 50], "count": 160,
                               "include_usage": asks}], 10, 5)
            if on.contestant == "evenkeel":
                figures[name] = charged_part(on, outcome)
        gone = [one for one in outcome.requests if one.end == "hung up"]
        saw = sum(one.tokens for one in outcome.requests)
        figures["tokens that clients saw"] = saw
        figures["tokens made after the client left"] = (
            (outcome.tenant("gone")[2] - saw) / max(1, len(gone)))
    return figures


ATTACKS = {
    "max_tokens: 1": {"connections": 64, "prompt": [10, 30], "output": [1, 1]},
    "huge prompts": {"connections": 16, "prompt": [3000, 4000], "output": [5, 10]},
    "asks 1, gets 200": {"connections": 32, "prompt": [20, 60], "output": [200, 200],
                         "max_tokens": 1},
    "asks 100000, gets 10": {"connections": 64, "prompt": [20, 60], "output": [10, 10],
                             "max_tokens": 100_000},
}


@scene(*[Figure(f"honest part: {name}", percent, ">= 45 %", at_least(0.45)) for name in ATTACKS],
       *[Figure(f"honest first byte p95: {name}", ms) for name in ATTACKS],
       *[Figure(f"charged, of what was made: {name}", percent, "98 - 102 %",
                within(0.98, 1.02)) for name in ATTACKS])
def flood(stage):
    """A tenant that always has requests waiting, beside one that does something odd. The part of
    the weighted service that the first gets; half would be fair."""
    figures = {}
    for name, attack in ATTACKS.items():
        with stage(**SLOW | {"scale": 4}) as on:
            outcome = on.run([
                {"name": "honest", "connections": 24, "prompt": [50, 150], "output": [30, 70]},
                {"name": "odd"} | attack], 7, 0)
            honest, odd = service_of(outcome, ["honest", "odd"], 2, 7)
            if on.contestant == "evenkeel":
                figures[f"charged, of what was made: {name}"] = charged_part(on, outcome)
        figures[f"honest part: {name}"] = honest / max(1, honest + odd)
        figures[f"honest first byte p95: {name}"] = outcome.first_ms("honest", 95, 2)
    return figures


def charged_part(stage, outcome):
    """The charges of Evenkeel to all tenants, in relation to the service of the engines. Its keys
    are hashes, so they cannot be matched with tenants. Both include requests cut at the end."""
    served = sum(weighted(outcome.tenant(one["name"])) for one in outcome.plan["clients"])
    return sum(stage.charged().values()) / max(1, served)


@scene(*[Figure(f"{kind}, {count} engines", show) for count in (2, 4)
         for kind, show in (("cached part of prompts", percent), ("requests/s", digits(1)),
                            ("first byte p50", ms))])
def engines(stage):
    """Forty conversations with 600 tokens in common, before two and four engines that remember
    20 and 10 of them. With nothing in front, requests take turns among the engines."""
    figures = {}
    for count in (2, 4):
        with stage(engines=count, **SLOW | {"cache_tokens": 30_000 // count, "kv_tokens": 30_000,
                                            "prefill_us": 200}) as on:
            outcome = on.run([{"name": f"tenant-{number}", "connections": count,
                               "prompt": [640, 680], "output": [5, 15], "prefix": 600,
                               "prefixes": 5} for number in range(8)], 9)
        prompt, cached, _ = map(sum, zip(*(outcome.tenant(f"tenant-{number}")
                                           for number in range(8))))
        waits = sorted(one.first - one.sent for one in outcome.done())
        figures[f"cached part of prompts, {count} engines"] = cached / max(1, prompt + cached)
        figures[f"requests/s, {count} engines"] = len(waits) / 9
        figures[f"first byte p50, {count} engines"] = 1000 * (waits or [0])[len(waits) // 2]
    return figures


@scene(Figure("streams that differ, usage not asked for", digits(0), "0", at_most(0)),
       Figure("streams that differ, usage asked for", digits(0), "0", at_most(0)),
       Figure("streams compared", digits(0)), contestants=("evenkeel",))
def bytes_equal(stage):
    """5000 random streams without `include_usage` and 5000 with it, each compared with the stream
    that the engine sends to a direct client."""
    figures, compared = {}, 0
    with stage(**INSTANT) as on:
        for asks, name in ((False, "not asked for"), (True, "asked for")):
            client = [{"name": "one", "connections": 50, "count": 5000, "random": 1,
                       "include_usage": asks}]
            through = on.run(client, 60, 10)
            front, on.ports = on.ports, on.engines
            direct = {one.number: one for one in on.run(client, 60, 10).requests}
            on.ports = front
            differ = [one for one in through.requests
                      if (one.hash, one.end) != (direct[one.number].hash, "done")]
            figures[f"streams that differ, usage {name}"] = len(differ)
            figures.setdefault("differing seeds", []).extend(1 + one.number for one in differ)
            compared += len(through.requests)
    figures["streams compared"] = compared
    if seeds := figures.pop("differing seeds"):
        print(f"# seeds of streams that differ: {sorted(set(seeds))[:20]}", flush=True)
    return figures
