"""The agent's real build on a lab node, and ``inventory`` as systemd runs it there, with parts of the node hidden or
shown elsewhere to that one process: the node itself is not touched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.demo import fleet as installing
from tests.lab import Lab, Node
from tests.lab.cards.install import LIBRARY, TOOL
from tests.lab.fixtures import lab  # noqa: F401
from tests.lab.process import Progress

FOLDER = "/var/lib/hf-inventory"
AGENT = f"{FOLDER}/heterofleet-agent"
HIDDEN = f"InaccessiblePaths=/{TOOL} /{LIBRARY}"
UNIT = installing.ROOT / "templates" / "heterofleet-agent.service.j2"
WSL = "/usr/lib/wsl/lib"


@dataclass(frozen=True)
class Bare:
    """A node whose cards' tool and library are hidden from what :meth:`inventory` starts."""

    node: Node

    def inventory(self, *words: str, properties: Sequence[str] = ()) -> str:
        """What it prints; it ends with 0."""
        options = [word for one in (f"Environment=PATH={unit_path()}", HIDDEN, *properties) for word in ("-p", one)]
        options += ["-p", f"Environment=PEX_ROOT={FOLDER}/cache"]
        command = ["systemd-run", "--wait", "--pipe", "--quiet", *options, AGENT, "inventory", *words]
        done = self.node.run(command, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def report(self, *words: str, properties: Sequence[str] = ()) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.inventory("--json", *words, properties=properties))
        return found


def unit_path() -> str:
    """PATH of the agent's unit, but for the folder that is to be found without it."""
    lines = UNIT.read_text("utf-8").splitlines()
    (path,) = (line.partition("PATH=")[2] for line in lines if line.startswith("Environment=PATH"))
    assert WSL in path.split(":")
    return ":".join(folder for folder in path.split(":") if folder != WSL)


@pytest.fixture(scope="module")
def bare(lab: Lab) -> Iterator[Bare]:
    (build,) = installing.agent_builds(Progress()).glob("heterofleet-agent-amd64-*")
    node = lab.node(1)
    node.cards.reset()
    node.put(AGENT, build.read_bytes(), 0o755)
    yield Bare(node)
    node.sh(f"rm -rf {FOLDER}; rmdir -p {WSL} 2>/dev/null || true")
