"""What tasks and engines say for themselves, outside the product: the folder ``/srv/hf-ledger`` on each node.

``*.ledger`` is written by the tasks (``ledger.sh``), one line at each start and each end. ``engine.jsonl`` is
written by the witness, a unit of its own that follows the engine's events: which container belongs to which
attempt (by its labels), and the exit code of each end, also of containers that are long removed. Neither goes
through agent, server or proxies.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import Node, task_image

FOLDER = "/srv/hf-ledger"
INSIDE = "/ledger"
UNIT = "hf-ledger-witness"
_SCRIPT = Path(__file__).with_name("ledger.sh")
_WITNESS = f"""\
since=$(tail -n 1 {FOLDER}/engine.jsonl 2>/dev/null | sed -n 's/.*"time":\\([0-9]*\\),.*/\\1/p')
exec docker events --since "${{since:-0}}" --filter type=container --filter label=heterofleet.uid \
    --format '{{{{json .}}}}' >> {FOLDER}/engine.jsonl
"""
_UNIT = f"""\
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh {FOLDER}/witness.sh
Restart=always
RestartSec=0.2
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Line:
    """``kind``: start, end, or torn (a line that nobody can read). ``at``: centiseconds of the machine's uptime.
    ``box`` and ``born`` together are one start of one container."""

    node: str
    kind: str
    run: str
    box: str = ""
    born: str = ""
    at: int = 0
    code: int | None = None


@dataclass(frozen=True)
class Told:
    """What an engine's events say of one container. ``codes``: of each of its ends, in their order."""

    node: str
    box: str
    task_id: str
    uid: str
    attempt: int
    codes: tuple[int, ...] = ()
    starts: int = 0
    last_end: float | None = None  # seconds since the epoch


def parse_lines(node: str, run: str, text: str) -> list[Line]:
    """The lines of one task's file."""
    return [_line(node, run, line) for line in text.splitlines()]


def _line(node: str, run: str, text: str) -> Line:
    words = text.split(" ")
    if len(words) == 5 + (words[0] == "end") and words[0] in ("start", "end") and words[1] == run:
        kind, _, box, born, at, *code = words
        if at.isdigit() and all(word.isdigit() for word in code):
            return Line(node, kind, run, box, born, int(at), int(code[0]) if code else None)
    return Line(node, "torn", run)


def parse_events(node: str, lines: Iterable[str]) -> list[Told]:
    """Events as ``docker events --format '{{json .}}'`` prints them; repetitions and torn lines are passed over."""
    boxes: dict[str, dict[str, Any]] = {}
    seen: set[tuple[str, str, int]] = set()
    for line in lines:
        try:
            event = json.loads(line)
            said = event["Actor"]["Attributes"]
            key = (event["Actor"]["ID"], event["Action"], int(event["timeNano"]))
            owner = (said["heterofleet.task"], said["heterofleet.uid"], int(said["heterofleet.attempt"]))
        except (ValueError, KeyError, TypeError):
            continue
        if key in seen:
            continue
        seen.add(key)
        box = boxes.setdefault(key[0], {"owner": owner, "codes": [], "starts": 0, "last": None})
        if key[1] == "start":
            box["starts"] += 1
        elif key[1] == "die":
            box["codes"].append(int(said.get("exitCode", -1)))
            box["last"] = key[2] / 1e9
    return [Told(node, key, *box["owner"], tuple(box["codes"]), box["starts"], box["last"])
            for key, box in boxes.items()]  # fmt: skip


class Ledger:
    """The folder on one node, seen from the machine."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def install(self) -> None:
        """Make the folder, empty, and start the witness; it comes back with the node after a power cut."""
        self.remove()
        self.node.sh(f"mkdir -p -m 1777 {FOLDER}")
        self.node.put(f"{FOLDER}/run.sh", _SCRIPT.read_bytes(), 0o755)
        self.node.put(f"{FOLDER}/witness.sh", _WITNESS)
        self.node.put(f"/etc/systemd/system/{UNIT}.service", _UNIT)
        self.node.sh(f"systemctl daemon-reload; systemctl enable -q --now {UNIT}")

    def remove(self) -> None:
        self.node.sh(
            f"systemctl disable -q --now {UNIT} 2>/dev/null || :; systemctl reset-failed {UNIT} 2>/dev/null || :; "
            f"rm -rf {FOLDER} /etc/systemd/system/{UNIT}.service; systemctl daemon-reload"
        )

    def empty(self) -> None:
        """Forget what tasks and engine have said so far."""
        for file in self.place.glob("*.ledger"):
            file.unlink()
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.place / "engine.jsonl", 0)

    @property
    def place(self) -> Path:
        return Path(f"/proc/{self.node.pid}/root{FOLDER}")

    def lines(self) -> list[Line]:
        return [line for file in sorted(self.place.glob("*.ledger"))
                for line in parse_lines(self.node.name, file.stem, file.read_text(errors="replace"))]  # fmt: skip

    def told(self) -> list[Told]:
        try:
            text = (self.place / "engine.jsonl").read_text(errors="replace")
        except FileNotFoundError:
            return []
        return parse_events(self.node.name, text.splitlines())


def body(task_id: str, *words: str, **members: Any) -> dict[str, Any]:
    """The body of a task that keeps the ledger. ``words`` are those of the task image; of a process (``driver`` in
    ``members``) they are its program and arguments."""
    process = members.get("driver") == "process"
    inside = FOLDER if process else INSIDE
    volume = {"host": FOLDER, "container": inside, "read_only": False}
    return {
        "id": task_id,
        "name": task_id,
        **({} if process else {"image": task_image.NAME}),
        "entrypoint": ["/bin/sh", f"{inside}/run.sh"],
        "command": list(words),
        **members,
        "env": {**members.get("env", {}), "HF_RUN": task_id, "HF_LEDGER": inside},
        "volumes": [volume, *members.get("volumes", [])],
    }
