"""Roll-outs cut short at moments drawn over the whole run, then run again.

``python -m tests.e2e.roles.waves.interrupted [--points N] [--seed S]``, with ``HF_LAB_NODES`` and ``HF_LAB_PORT``.

Two moments are always among them: the link switch, and the wait for the first beat. Everything that an uncut run leaves
is compared: each path under /opt/heterofleet and /etc/heterofleet, the unit, what the control plane hears, cordons, and
the containers of ten tasks on each node.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.roles.ansible import Fleet, Run
from tests.e2e.roles.bare import make_bare, publish
from tests.e2e.roles.builds import Builds
from tests.e2e.roles.waves.cuts import MOMENTS, cut, wait_for_moment
from tests.e2e.roles.waves.site import Site
from tests.lab import Lab, LabError
from tests.lab.control_plane import ControlPlane

HOWS = ("interrupt", "kill", "kill all")
FOREIGN = "new fans"
"""The reason of an operator's cordon, on the last node all the time."""


@dataclass(frozen=True)
class Point:
    """``moment``: one of MOMENTS on ``node``; without one, when ``share`` of the run's results are there."""

    how: str
    share: float = 0.0
    pause: float = 0.0
    moment: str = ""
    node: int = 0

    def __str__(self) -> str:
        where = f"{self.moment} of node {self.node + 1}" if self.moment else f"{self.share:.0%} + {self.pause:.2f} s"
        return f"{self.how} at {where}"


def draw(points: int, seed: int) -> list[Point]:
    """``points`` of them, the same for the same seed."""
    chance = random.Random(seed)
    always = [Point(chance.choice(HOWS), moment=moment, node=chance.randrange(3)) for moment in MOMENTS]
    # One in each slice of the run, so that a draw cannot leave half of it out.
    slices = max(0, points - len(always))
    others = [
        Point(chance.choice(HOWS), share=(number + chance.random()) / slices, pause=chance.uniform(0, 0.5))
        for number in range(slices)
    ]
    drawn = always + others
    chance.shuffle(drawn)
    return drawn


def _results(run: Run) -> int:
    return sum(1 for one in run.events() if one["event"] == "result")


def _cut_at(site: Site, run: Run, point: Point, whole: int) -> None:
    if point.moment:
        wait_for_moment(site.nodes[point.node], point.moment)
    else:
        while run.process.poll() is None and _results(run) < point.share * whole:
            time.sleep(0.02)
        time.sleep(point.pause)
    cut(run, point.how, site.nodes)


def _faults(site: Site, release: str, wanted: dict, at_work: dict) -> list[str]:
    """What is not as after a run that was not cut."""
    found = []
    for node in site.nodes:
        state = site.state(node)
        for path in sorted(set(state) | set(wanted[node.name])):
            if state.get(path) != wanted[node.name].get(path):
                found.append(f"{node.name}: {path}: found {state.get(path)}, wanted {wanted[node.name].get(path)}")
    found += [
        f"{name}: the control plane does not hear {release}" for name, well in site.runs(release).items() if not well
    ]
    *ours, last = site.ids()
    found += [f"{name}: cordoned: {site.cordon(name)}" for name in ours if site.cordon(name) is not None]
    if (site.cordon(last) or {}).get("reason") != FOREIGN:
        found.append(f"{last}: the operator's cordon is {site.cordon(last)}")
    if site.containers() != at_work:
        found.append(f"containers: found {site.containers()}, wanted {at_work}")
    return found


def trial(site: Site, points: list[Point]) -> int:
    """Returns how many points did not come out right."""
    site.call(site.ids()[-1], "cordon", reason=FOREIGN)
    at_work = site.containers()
    wanted, whole = {}, 0
    for kind in ("newer", "first"):
        release = site.offer(kind)
        played = site.play("upgrade.yml")
        wanted[kind], whole = site.states(), sum(1 for one in played.events if one["event"] == "result")
        assert site.runs(release) == dict.fromkeys(site.ids(), True)
    bad, kind = 0, "first"
    for number, point in enumerate(points, 1):
        kind = "newer" if kind == "first" else "first"
        release = site.offer(kind)
        run = site.fleet.start("upgrade.yml")
        found = []
        try:
            _cut_at(site, run, point, whole)
        except LabError as error:
            found.append(str(error))
        code = run.wait().rc
        here = ", ".join("new" if site.current(node) == release else "old" for node in site.nodes)
        again = site.play("upgrade.yml", check=False)
        found += [f"the second run ended with {again.rc}:\n{again.output[-3000:]}"] if again.rc else []
        found += _faults(site, release, wanted[kind], at_work)
        bad += bool(found)
        print(f"{number:2} {point}: rc {code}, then {here}; again: {'right' if not found else 'WRONG'}", flush=True)
        for fault in found:
            print(f"     {fault}", flush=True)
    if site.end_tasks() != site.wanted_results():
        print("results of tasks are missing or wrong", flush=True)
        bad += 1
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None, help="as an earlier run has printed it")
    words = parser.parse_args()
    seed = words.seed if words.seed is not None else secrets.randbelow(2**32)
    print(f"seed {seed}", flush=True)
    lab, plane, builds = Lab.attach(), ControlPlane("cuts"), Builds()
    folder = Path(tempfile.mkdtemp(prefix="hf-cuts-"))
    nodes = lab.nodes[:3]
    make_bare(nodes)
    plane.remove()
    plane.start()
    try:
        site = Site(lab, plane, Fleet(plane, nodes, folder, fleet_wave=[1, "100%"]), builds)
        publish(plane, builds.first)
        site.offer("first")
        site.play("deploy.yml", fleet_wave=["100%"])
        site.start_tasks()
        bad = trial(site, draw(words.points, seed))
    finally:
        make_bare(nodes)
        plane.remove()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{words.points - bad} of {words.points} came out right; seed {seed}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
