"""How little is asked of the engine, however many containers there are."""

from __future__ import annotations

from pathlib import Path

from tests.integration.agent_reconcile.crowd import crowd
from tests.integration.agent_tasks.agent_bench import Plane
from tests.lab import Node


def test_one_list_and_an_inspection_for_each_end_that_nobody_told(plane: Plane, node: Node, tmp_path: Path) -> None:
    """The short form; the long one is `python -m tests.bench reconcile`."""
    with crowd(plane, node, tmp_path / "agent", running=20, ended=20, unreported=4) as seen:
        assert seen.lists == 1
        assert sorted(seen.inspected) == sorted(seen.unreported)
        assert len(seen.inspected) == 4
