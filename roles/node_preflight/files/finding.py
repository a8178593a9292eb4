"""What a check found: one row of the table."""

from __future__ import annotations

from dataclasses import dataclass

FLEET = ""
"""The host of a finding that concerns the fleet as a whole."""


@dataclass(frozen=True)
class Finding:
    """``refuses``: the host is refused (of the fleet: nothing is done); else it is a warning. No text has a secret."""

    host: str
    check: str
    found: str
    wanted: str
    do: str
    refuses: bool = True

    @property
    def sentence(self) -> str:
        return f"{self.check}: found {self.found}, wanted {self.wanted}; {self.do}"
