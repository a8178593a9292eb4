"""What a look at a folder comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional


class Incomplete(Exception):
    """A candidate is not proven complete. The message says what it lacks; of a file's content it quotes at most a
    plain name."""


@dataclass(frozen=True)
class Checkpoint:
    """``path`` is what the training program is given: a folder, or for TensorFlow the prefix of its files. ``step`` is
    None where nothing tells it: the only one there is, or the one that a pointer names."""

    path: str
    framework: str
    step: Optional[int]


@dataclass(frozen=True)
class Rejected:
    """A candidate that was not taken, or a file that leads nowhere; ``reason`` is a sentence without its subject."""

    path: str
    reason: str


@dataclass(frozen=True)
class Look:
    """``found`` is None when nothing is proven complete. ``rejected``: at most as many as anybody reads."""

    found: Optional[Checkpoint] = None
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class Pointed:
    """What a rule found by a file that names the newest checkpoint (a pointer).

    ``name`` is that of an entry in the folder, ``step`` the number it ends in, if it does. ``rejected``: names with
    reasons, in the order of looking. ``claimed``: folders that this rule alone may judge, since the pointer is about
    them.
    """

    name: Optional[str] = None
    step: Optional[int] = None
    rejected: Mapping[str, str] = field(default_factory=dict)
    claimed: frozenset[str] = frozenset()
