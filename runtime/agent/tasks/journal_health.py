"""How it stands with the journal's file, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class SetAside:
    """A journal that could not be trusted: its name now, when that was (RFC 3339), and why. The last two are empty
    where they are not known any more."""

    file: str
    at: str
    why: str


@dataclass(frozen=True)
class JournalHealth:
    """``fault``: why nothing can be written now, and ``since`` when; None while all is well. ``set_aside``: the
    journals beside this one that could not be trusted, oldest first."""

    fault: Optional[str] = None
    since: Optional[str] = None
    set_aside: tuple[SetAside, ...] = ()
