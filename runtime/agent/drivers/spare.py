"""What could be removed from an engine to make room: said to people, and left to them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional

from runtime.agent.drivers.driver import LABEL_UID
from runtime.agent.drivers.engine import DockerEngine
from runtime.agent.drivers.errors import DriverError

LOOK_S = 20.0
MIB = 1 << 20
DANGLING = json.dumps({"dangling": ["true"]})
ENDED = json.dumps({"status": ["exited", "dead", "created"]})


@dataclass(frozen=True)
class Spare:
    """``dangling`` images without a name take at most ``dangling_mib``; ``ended`` containers of others do not run.
    Containers of tasks are not counted: they go by themselves when their results are delivered."""

    dangling: int
    dangling_mib: int
    ended: int

    def in_words(self) -> str:
        found = []
        if self.dangling:
            found.append(f"{self.dangling} image(s) without a name, up to {self.dangling_mib} MiB (docker image prune)")
        if self.ended:
            found.append(f"{self.ended} container(s) that are not of this fleet and do not run (docker rm)")
        if not found:
            return "nothing there is evidently spare: docker system df shows what takes the room"
        return f"what may be removed there: {' and '.join(found)}; docker system df shows all"


def spare(engine: DockerEngine) -> Optional[Spare]:
    """None when the engine could not be asked."""
    try:
        images = engine.call("GET", "/images/json", params={"filters": DANGLING}, timeout_s=LOOK_S)
        boxes = engine.call("GET", "/containers/json", params={"all": "1", "filters": ENDED}, timeout_s=LOOK_S)
    except DriverError:
        return None
    rows = [row for row in images or () if isinstance(row, dict)]
    others = [row for row in boxes or () if isinstance(row, dict) and LABEL_UID not in (row.get("Labels") or {})]
    return Spare(len(rows), sum(_size(row) for row in rows) // MIB, len(others))


def _size(row: dict[str, Any]) -> int:
    size = row.get("Size")
    return size if isinstance(size, int) and size > 0 else 0
