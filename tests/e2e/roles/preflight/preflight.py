"""A play of preflight alone, and what it said: the three entry points, then a step of the hosts that go on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.roles.ansible import Fleet, Played
from tests.lab import Node

MARK = "/run/hf-went-on"
GONE = "hf-gone"
"""A host of the inventory that does not answer: nothing has this address."""
GONE_VARS = {"ansible_host": "198.18.0.250"}
SHOW = "Show all findings"
STEP = "Go on"


def play(fleet: Fleet, *words: str, **extra: Any) -> Played:
    steps = [
        {"name": entry, "ansible.builtin.import_role": {"name": "node_preflight", "tasks_from": entry}}
        for entry in ("settings", "main", "report")
    ]
    step = {"name": STEP, "ansible.builtin.command": {"argv": ["touch", MARK]}, "changed_when": True}
    whole = [{"name": "Preflight", "hosts": "nodes", "gather_facts": False, "tasks": [*steps, step]}]
    fleet.folder.mkdir(parents=True, exist_ok=True)
    path = fleet.folder / "preflight.yml"
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return fleet.play(path, *words, check=False, extra=extra)


def with_gone(fleet: Fleet) -> list[Node]:
    """Two nodes and the host that does not answer make up the group nodes from now on; the nodes."""
    nodes, fleet.nodes = fleet.nodes[:2], []
    fleet.host_vars = {node.name: {"ansible_host": node.address} for node in nodes} | {GONE: dict(GONE_VARS)}
    fleet.groups = {"nodes": list(fleet.host_vars)}
    return nodes


def went_on(node: Node) -> bool:
    return node.run(["test", "-e", MARK], check=False).returncode == 0


def forget(*nodes: Node) -> None:
    for node in nodes:
        node.run(["rm", "-f", MARK])


def table(played: Played) -> str:
    shown = played.results(SHOW, status="ok")
    assert len(shown) == 1, played.output
    return str(shown[0]["said"]["msg"])


def rows(text: str) -> dict[str, str]:
    """Of a rendered table "host check" -> found, wanted and what to do, one after the other without line breaks."""
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    starts = [lines[0].index(head) for head in ("host", "check", "found", "wanted", "what to do")] + [1000]
    found: dict[str, list[str]] = {}
    last = ""
    for line in lines:
        cells = [line[start:end].strip() for start, end in itertools.pairwise(starts)]
        if cells[1]:
            last = f"{cells[0]} {cells[1]}"
        known = found.setdefault(last, ["", "", ""])
        found[last] = [f"{old} {cell}".strip() for old, cell in zip(known, cells[2:], strict=True)]
    del found["host check"]
    return {name: " ".join(cells) for name, cells in found.items()}


def write_private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)
