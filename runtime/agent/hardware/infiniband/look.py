"""One look at the ports of this machine, by a child with a deadline: a driver asks its adapter for what stands in its
files, and that may never answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from runtime.agent.hardware.infiniband import sysfs
from runtime.agent.hardware.infiniband.ports import Port
from runtime.agent.hardware.tools import ToolError, ToolRunner, python_command

LOOK_S = 10.0
CHILD = "runtime.agent.hardware.infiniband.child"


@dataclass(frozen=True)
class Looked:
    """``unreadable``: adapters that are here and tell nothing of their ports."""

    ports: list[Port] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def look(runner: ToolRunner, root: Path = sysfs.ROOT, deadline_s: float = LOOK_S) -> Looked:
    """What is below ``root``; no folder, or an empty one: no adapter. Raises ToolError when there is no answer."""
    try:
        if not any(root.iterdir()):
            return Looked()
    except FileNotFoundError:
        return Looked()
    except OSError:
        return Looked(unreadable=[str(root)])
    name = str(root)
    output = runner.run(name, python_command(CHILD, name), deadline_s=deadline_s)
    try:
        answer = json.loads(output.stdout)
        return Looked(sysfs.ports_of(answer["tree"]), answer["unreadable"])
    except (ValueError, LookupError, TypeError):
        last = output.stderr.strip().rpartition("\n")[2][:200]
        raise ToolError(f"the look at {name} ended with {output.status}{f': {last}' if last else ''}") from None
