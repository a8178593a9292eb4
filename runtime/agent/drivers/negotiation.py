"""Which version of Docker's API is spoken with an engine. Pure.

The engine says at each connection what it speaks; nothing is pinned, and no variable of the environment is asked. A
newer engine than is known here is spoken to in the newest version that is known, or in its own oldest one.
"""

from __future__ import annotations

import re
from typing import Any

from runtime.agent.drivers.errors import EngineUnavailable

OLDEST = (1, 25)
"""Mounts by folder and the init process came with it."""

NEWEST = (1, 51)
"""Of Docker Engine 28. Later ones have refused what is older than 1.44 so far."""

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")


def choose(said: Any) -> str:
    """The version to speak, from the engine's answer to ``/version``. Raises EngineUnavailable with the reason when
    the answer is none, or when there is no version that both know."""
    if not isinstance(said, dict):
        raise EngineUnavailable("the engine's answer about its version has an unknown shape")
    highest = _parsed(said.get("ApiVersion"))
    lowest = _parsed(said.get("MinAPIVersion") or said.get("ApiVersion"))
    if highest < OLDEST:
        engine = str(said.get("Version") or "unknown")[:40]
        raise EngineUnavailable(
            f"Docker's API goes up to {_text(highest)} (engine {engine}); this agent needs {_text(OLDEST)} or later: "
            "update Docker"
        )
    return _text(min(highest, max(lowest, NEWEST)))


def _parsed(text: Any) -> tuple[int, int]:
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise EngineUnavailable(f"the engine names its API version as {str(text)[:40]!r}, which is none")
    return int(found.group(1)), int(found.group(2))


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
