#!/usr/bin/env python3
"""Fair tokens in front of a language model: nothing in front, nginx, Evenkeel and LiteLLM.

An engine that only takes time (`model-engine`) batches as vLLM does and says what it served to
whom; clients of its API (`model-load`) ask it directly or through what is in front. Each line
is a figure of a scene with its bar, if it has one, and whether Evenkeel meets it. A figure that a
contestant cannot have is "-". nginx, which passes everything on at once, is only in `latency`: it
shows what any proxy adds on this machine.

How to run: bench/tokens/run.py [--scene fair light ...] [--contestants nothing nginx evenkeel
litellm] [--rounds 1] [--proxy LINES] [--nice -10]. --list says what each scene is. With --rounds
the median is shown. --proxy has more lines of Evenkeel's `proxy`, to see what they change. The
variable EVENKEEL names the program; else it is built. LiteLLM is installed from PyPI into
target/litellm, as ci/pins/litellm.txt says, and takes half a minute to start, in each scene. A
scene takes 6 to 60 s for each contestant, and all of them half an hour. On a machine that does
other work, `latency` is only meaningful under `chrt -f 10`.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import contest  # noqa: E402
import scenes  # noqa: E402
import stage  # noqa: E402

CONTESTANTS = ("nothing", "nginx", "evenkeel", "litellm")
TITLES = {"nothing": "nothing", "nginx": "nginx", "evenkeel": "Evenkeel", "litellm": "LiteLLM"}


def opener(contestant, kept, proxy):
    """What a scene opens its stage with."""
    @contextlib.contextmanager
    def opened(**given):
        with contest.Bench() as bench:
            given["evenkeel"] = proxy + given.get("evenkeel", "")
            yield stage.Stage(bench, kept, contestant, **given)
    return opened


def play(scene, contestants, asked):
    """The figures of each contestant: medians, where they are numbers. Nothing that a contestant
    has left to do is done while another one is measured."""
    found = {name: [] for name in contestants}
    for _ in range(asked.rounds):
        for name in contestants:
            with contest.Bench() as kept:
                figures = scene(opener(name, kept, asked.proxy))
            if scene is scenes.latency and found.get("nothing"):
                scenes.added(figures, found["nothing"][-1])
            found[name].append(figures)
    return {name: middle(each) for name, each in found.items()}


def middle(rounds):
    """Of each figure the median over all rounds; of texts the last."""
    figures = {}
    for name in rounds[-1]:
        values = [one[name] for one in rounds if name in one]
        figures[name] = values[-1] if isinstance(values[-1], str) else statistics.median(values)
    return figures


def compared(scene, found):
    """The figures that need two contestants."""
    if scene is scenes.cpu and {"evenkeel", "litellm"} <= found.keys():
        ours, theirs = (found[name]["CPU of a stream"] for name in ("evenkeel", "litellm"))
        found["evenkeel"]["times LiteLLM's"] = theirs / ours
    return found


def rows(name, scene, found):
    for figure in scene.figures.values():
        values = {one: found.get(one, {}).get(figure.name) for one in CONTESTANTS}
        cells = ["-" if value is None else figure.show(value) for value in values.values()]
        met = ""
        # A figure without the one that it is compared with meets no goal.
        is_known = values["evenkeel"] is not None and (
            values["nothing"] is not None or not figure.is_relative)
        if figure.is_met and is_known:
            met = "yes" if figure.is_met(values["evenkeel"], values["nothing"]) else "NO"
        if any(cell != "-" for cell in cells):
            yield [name, figure.name, figure.bar, *cells, met]


def line(cells):
    print(f"| {' | '.join(cells)} |", flush=True)


def show(name, asked):
    scene, began = scenes.SCENES[name], time.monotonic()
    contestants = [one for one in asked.contestants if one in scene.contestants]
    found = compared(scene, play(scene, contestants, asked))
    for cells in rows(name, scene, found):
        line(cells)
    print(f"# {name}: {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}",
          file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", nargs="+", choices=list(scenes.SCENES),
                        default=list(scenes.SCENES))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--proxy", default="", metavar="LINES",
                        type=lambda text: "".join(f"  {one}\n" for one in text.split("\\n") if one))
    parser.add_argument("--nice", type=int, default=0, help="for everything that is measured")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    if asked.list:
        for name, scene in scenes.SCENES.items():
            print(f"{name}: {' '.join(scene.__doc__.split())}")
        return
    contest.prefer(asked.nice)
    contest.raise_file_limit(20_000)
    contest.need("taskset", *{"nginx"}.intersection(asked.contestants))
    versions = [contest.first_line(contest.evenkeel(), "--version")]
    stage.programs()
    if "nginx" in asked.contestants:
        versions.append(contest.first_line("nginx", "-v"))
    if "litellm" in asked.contestants:
        stage.install_litellm()
        versions.append(stage.litellm_version())
    os.sched_setaffinity(0, {contest.LOAD_CORE})
    contest.describe(*versions)
    line(["scene", "figure", "bar", *TITLES.values(), "met"])
    line(["---"] * 8)
    for name in asked.scene:
        show(name, asked)


main()
