"""One look at the models at one path, by a child with a short deadline."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.models.child import Order
from runtime.agent.models.names import hub_name
from runtime.agent.models.roots import read_mounts
from runtime.agent.models.scanner import MOUNTS, ask, models_of
from runtime.protocol.heartbeat import DiscoveredModel
from runtime.protocol.paths import is_within

DEADLINE_S = 15.0
BUDGET_S = 8.0


class NoLook(Exception):
    """There is nothing to look at, or it may not be looked at; the message names the path."""


def look_at(runner: ToolRunner, path: str, mounts: Path = MOUNTS) -> list[DiscoveredModel]:
    """What a folder holds, or the model that a file is (of a set of parts: that begins with it).

    Raises ToolError when it hangs, NoLook when the path cannot be looked at.
    """
    try:
        below = sorted(mount.path for mount in read_mounts(mounts.read_bytes()) if is_within(mount.path, path))
    except OSError:
        below = []
    hub = hub_name(path)  # whose files are links to others of the repository
    whole = hub is None
    answer = _walked(runner, path, hub[1] if hub is not None else path, [mount for mount in below if mount != path])
    if answer.get("error") == errno.ENOTDIR:
        answer = _walked(runner, path, os.path.dirname(path), [])  # noqa: PTH120
        whole = False
    if "error" in answer:
        raise NoLook(f"{path}: {answer['text']}")
    models = models_of(answer)
    return models if whole else [model for model in models if model.path == path]


def _walked(runner: ToolRunner, path: str, root: str, mounts: list[str]) -> dict[str, Any]:
    orders = [Order(root, mounts)]
    return ask(runner, f"the look at {path}", orders, deadline_s=DEADLINE_S, seconds=BUDGET_S)[0]
