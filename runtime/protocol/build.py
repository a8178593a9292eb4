"""The version triple of this build: version, commit, build time, and whether the tree was dirty.

``heterofleet artifacts build`` stamps ``runtime/_build.json``; a plain checkout has none and says
``dev/unknown``.
"""

from __future__ import annotations

import json
import platform
import re
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


DISTRIBUTION = "heterofleet"
DEV = Build("dev", "unknown")


def this_build(stamp: Path = STAMP) -> Build:
    """The stamp of the running program; ``dev/unknown`` where there is none."""
    try:
        data = json.loads(stamp.read_text("utf-8"))
    except FileNotFoundError:
        return DEV
    return Build(data["version"], data["commit"], data.get("built_at"), data.get("dirty"))


def release_of(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare releases by; a checkout, which has none, counts as the release that it is
    the source of, as its distribution says. Empty where nobody knows."""
    if not re.search(r"\d", version):
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            version = installed(DISTRIBUTION)
        except PackageNotFoundError:
            return ()
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def this_arch() -> str:
    """``amd64``, ``arm64``, or what the machine calls itself."""
    machine = platform.machine()
    return ARCHES.get(machine, machine)
