"""Random faults against a fleet that works, in waves; after each wave all is healed and every invariant is checked.

    python -m tests.faults.chaos --minutes 10 [--seed N] [--record]        make chaos MINUTES=10

The seed is printed. It gives the same tasks and troubles in the same order; when exactly they meet is the machine's.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.__main__ import record
from tests.bench.measure import Figure
from tests.faults import facts
from tests.faults.agent_process import UNIT
from tests.faults.checker import report
from tests.faults.fleet import Fleet, fleet
from tests.faults.stream import Stream
from tests.faults.troubles import Troubles
from tests.faults.world import Invariant, Scenario, Violation
from tests.integration.waiting import until
from tests.lab import Lab

WAVE_S = 45.0
SETTLE_S = 150.0
EXCUSED = frozenset({"engine_restarted", "host_restarted", "end_unknown"})
"""What power cuts and restarts of engines do to programs."""
MOST_NODES = 3
WANTED = {
    "lost": (Invariant.TASK, Invariant.CONTAINER),
    "doubled": (Invariant.ONCE, Invariant.TOGETHER),
    "wrong ends": (Invariant.END, Invariant.LEDGER),
    "leftovers": (Invariant.LEFTOVER, Invariant.CARDS),
}


@dataclass
class Sums:
    """Over all waves."""

    tasks: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    found: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        wrong = [f"{sum(one.invariant in kinds for one in self.found)} {what}" for what, kinds in WANTED.items()]
        ends = ", ".join(f"{count} {reason}" for reason, count in self.ends.most_common())
        met = ", ".join(f"{count} x {name}" for name, count in self.met.most_common())
        return f"{self.tasks} tasks: {', '.join(wrong)}; ends: {ends}; troubles: {met}"


def wave(built: Fleet, seed: str, seconds: float, sums: Sums) -> None:
    """Faults for ``seconds``, then peace, and the checker's word about every task of the wave."""
    built.forget_tasks()
    stream = Stream(built, random.Random(seed), f"c{secrets.token_hex(2)}")
    troubles = Troubles(built, random.Random(f"{seed}-troubles").getrandbits(32))
    stream.start()
    troubles.start()
    end = time.monotonic() + seconds
    try:
        until("the wave is over", lambda: time.monotonic() > end or troubles.errors, seconds + 5)
    finally:
        troubles.stop()
        stream.stop()
    _offer_all(built)
    scenario = Scenario(deleted=frozenset(stream.deleted), excused=EXCUSED, contact=troubles.contact)
    world, found = facts.settle(built.plane, built.nodes, built.accepted, scenario, SETTLE_S)
    sums.tasks += len(built.accepted)
    sums.ends.update(str(task["reason"] or task["status"]) for task in world.tasks.values() if task is not None)
    sums.met.update(troubles.met)
    sums.found += found
    print(report(world, found), flush=True)


def _offer_all(built: Fleet) -> None:
    """A node that ended many tasks in a row by its troubles was taken out of service; now it is well."""
    for place in built.places:
        node = built.plane.get(f"/api/v1/nodes/{place.name}")
        if (node.get("cordon") or {}).get("owner") == "system":
            built.plane.request("POST", f"/api/v1/nodes/{place.name}/uncordon", {})


def evidence(built: Fleet, found: list[Violation]) -> Path:
    """What agents, engines and the control plane say for themselves, in a folder that stays."""
    folder = Path(tempfile.mkdtemp(prefix="hf-chaos-"))
    for place in built.places:
        for unit in (UNIT, "docker.service"):
            text = place.node.run(["journalctl", "-u", unit, "-o", "short-precise", "--no-pager"]).stdout
            (folder / f"{place.name}.{unit}.log").write_text(text)
        (folder / f"{place.name}.ledger").write_text("\n".join(map(str, [*place.ledger.lines(), *place.ledger.told()])))
    shutil.copy(built.plane.log, folder / "control-plane.log")
    for task_id in {violation.subject for violation in found} & set(built.accepted):
        task = built.plane.request("GET", f"/api/v1/tasks/{task_id}")[1]
        events = built.plane.request("GET", f"/api/v1/events?task={task_id}&limit=1000")[1]
        (folder / f"{task_id}.json").write_text(json.dumps([task, events], indent=1))
    return folder


def run(built: Fleet, seed: int, seconds: float, wave_s: float = WAVE_S) -> Sums:
    """Waves until ``seconds`` of faults are over; the first violation ends it, with the world as it is."""
    sums = Sums()
    began = time.monotonic()
    number = 0
    while time.monotonic() - began < seconds and not sums.found:
        print(f"wave {number} of seed {seed}:", flush=True)
        wave(built, f"{seed}-{number}", wave_s, sums)
        number += 1
    if sums.found:
        print(f"what all sides say of it: {evidence(built, sums.found)}", flush=True)
    return sums


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--record", action="store_true", help="add the figures to tests/bench/RESULTS.md")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    nodes = Lab.attach().nodes[:MOST_NODES]
    with fleet(nodes, name="chaos") as built:
        sums = run(built, options.seed, options.minutes * 60)
    print(sums)
    for violation in sums.found:
        print(f"  {violation}")
    if options.record:
        what = f"chaos: {options.minutes:g} minutes on {len(nodes)} nodes, seed {options.seed}"
        record([Figure(what, str(sums), "0 of each", not sums.found)])
    return 1 if sums.found else 0


if __name__ == "__main__":
    sys.exit(main())
