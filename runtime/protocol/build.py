"""The version triple of this build: version, commit, build time, and whether the tree was dirty.

``heterofleet artifacts build`` stamps ``runtime/_build.json``; a plain checkout has none and says
``dev/unknown``.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

STAMP = Path(__file__).resolve().parent.parent / "_build.json"

ARCHES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""``uname -m`` -> the architecture's name in builds and manifests."""


@dataclass(frozen=True)
class Build:
    """``built_at`` is the commit's time (RFC 3339); ``dirty`` None means not known."""

    version: str
    commit: str
    built_at: Optional[str] = None
    dirty: Optional[bool] = None

    def __str__(self) -> str:
        return f"{self.version}/{self.commit}" + ("-dirty" if self.dirty else "")


DEV = Build("dev", "unknown")


def this_build(stamp: Path = STAMP) -> Build:
    """The stamp of the running program; ``dev/unknown`` where there is none."""
    try:
        data = json.loads(stamp.read_text("utf-8"))
    except FileNotFoundError:
        return DEV
    return Build(data["version"], data["commit"], data.get("built_at"), data.get("dirty"))


def this_arch() -> str:
    """``amd64``, ``arm64``, or what the machine calls itself."""
    machine = platform.machine()
    return ARCHES.get(machine, machine)
