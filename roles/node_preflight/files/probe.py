"""What the raw probe of a host says: a few lines of a shell, before any Python is asked for anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

LINE = re.compile(r"^heterofleet-(python|found|uid|path)[ \t]?(.*?)[ \t\r]*$", re.MULTILINE)
TROUBLE_LIMIT = 300
BEGINNINGS = ("Task failed: ", "Action failed: ", "Failed to connect to the host via ssh: ")
"""What Ansible puts before the words that tell something."""


@dataclass(frozen=True)
class Probe:
    """``python``: the interpreter that the agent will use; ``found_python``: what was there instead; ``trouble``: in
    one line what Ansible said when the shell did not answer."""

    unreachable: bool = False
    answered: bool = False
    python: Optional[str] = None
    found_python: Optional[str] = None
    uid: Optional[int] = None
    path: str = ""
    trouble: str = ""


def read_probe(result: Mapping[str, Any]) -> Probe:
    """From what Ansible registered."""
    said = dict(LINE.findall(str(result.get("stdout") or "")))
    words = " ".join(str(result.get("msg") or result.get("stderr") or result.get("stdout") or "").split())
    for beginning in BEGINNINGS:
        words = words.removeprefix(beginning)
    return Probe(
        unreachable=bool(result.get("unreachable")),
        answered="uid" in said,
        python=said.get("python") or None,
        found_python=said.get("found") or None,
        uid=int(said["uid"]) if said.get("uid", "").isdigit() else None,
        path=said.get("path", ""),
        trouble=words[:TROUBLE_LIMIT],
    )
