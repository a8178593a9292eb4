"""What a shell, a loader or an engine says in the place of a tool that is not there or cannot start."""

from __future__ import annotations

import re
from typing import Optional

from runtime.agent.hardware.reading import Complaint

_MISSING = re.compile(
    r":\s*(?:command )?(not found)\s*$|\b(executable file not found in \$PATH)"
    r"|^(?:.*/)?[\w-]+: (No such file or directory)$"
)
_LOADER = re.compile(r"(error while loading shared libraries: \S+.*)")


def complaint(lines: list[str]) -> Optional[Complaint]:
    """None when the tool itself speaks."""
    for line in lines:
        missing = _MISSING.search(line)
        if missing is not None:
            return Complaint(next(words for words in missing.groups() if words), "tool_missing")
        loader = _LOADER.search(line)
        if loader is not None:
            return Complaint(loader[1].strip(), "not_initialized")
    return None
