"""One reconciliation of 250 running and 250 ended containers, 20 of them unreported, on a lab node's engine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.bench.measure import Figure
from tests.integration.agent_reconcile.crowd import crowd
from tests.integration.agent_tasks.agent_bench import Plane
from tests.lab import Lab

RUNNING = int(os.environ.get("BENCH_RUNNING", "250"))
ENDED = int(os.environ.get("BENCH_ENDED", "250"))
UNREPORTED = int(os.environ.get("BENCH_UNREPORTED", "20"))
LIMIT_S = 1.0


def measure() -> list[Figure]:
    lab = Lab.up(nodes=1)
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as folder:
        plane = Plane(Path(folder) / "server")
        try:
            with crowd(plane, lab.node(1), Path(folder) / "agent", RUNNING, ENDED, UNREPORTED) as seen:
                pass
        finally:
            plane.close()
    what = f"reconciliation at the start, {RUNNING} running and {ENDED} ended containers, {UNREPORTED} unreported"
    right = seen.lists == 1 and sorted(seen.inspected) == sorted(seen.unreported)
    return [
        Figure(
            what,
            f"{seen.seconds:.2f} s, {seen.lists} list call(s), {len(seen.inspected)} inspects",
            f"below {LIMIT_S:g} s, one list call, {UNREPORTED} inspects",
            seen.seconds < LIMIT_S and right,
        )
    ]
