"""Before nodes are given up the server doubts itself: a pure decision.

Nothing becomes lost while the brake holds. It lets go by itself when its cause is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_S = 30.0
"""Nodes that fell silent within this time fell silent together."""
LAG_S = 2.0
"""A round, the database or the wall clock that is off by more than this makes the server doubt itself."""


@dataclass(frozen=True)
class NodeSilence:
    """A node that was neither lost nor offline: when it was heard last (monotonic seconds), and whether it is
    silent for longer than a node should be."""

    heard_at: float
    silent: bool


@dataclass(frozen=True)
class Self:
    """What the server knows of itself. ``clock_jump_s``: wall clock against monotonic clock since last time."""

    up_for_s: float
    loop_lag_s: float = 0.0
    database_lag_s: float = 0.0
    clock_jump_s: float = 0.0


@dataclass(frozen=True)
class Brake:
    """``causes`` is empty when the brake is off. Codes: starting, loop_lag, database_lag, clock_jump,
    many_silent."""

    causes: tuple[str, ...] = ()
    text: str = ""

    @property
    def on(self) -> bool:
        return bool(self.causes)


def decide(nodes: Sequence[NodeSilence], own: Self, *, grace_s: float, fraction: float, at_least: int) -> Brake:
    """Whether nodes may be given up now. The brake is off when none is silent: there is nothing to hold back."""
    silent = sorted(node.heard_at for node in nodes if node.silent)
    if not silent:
        return Brake()
    causes: list[tuple[str, str]] = []
    if own.up_for_s < grace_s:
        causes.append(("starting", f"the server started {own.up_for_s:.0f} s ago"))
    if own.loop_lag_s > LAG_S:
        causes.append(("loop_lag", f"the server's own round came {own.loop_lag_s:.1f} s late"))
    if own.database_lag_s > LAG_S:
        causes.append(("database_lag", f"the database took {own.database_lag_s:.1f} s"))
    if abs(own.clock_jump_s) > LAG_S:
        causes.append(("clock_jump", f"the wall clock jumped by {own.clock_jump_s:+.1f} s"))
    together = _most_within(silent, WINDOW_S)
    if together >= at_least and together > fraction * len(nodes):
        causes.append(("many_silent", f"{together} of {len(nodes)} nodes fell silent within {WINDOW_S:.0f} s"))
    return Brake(tuple(code for code, _ in causes), "; ".join(text for _, text in causes))


def _most_within(moments: Sequence[float], window: float) -> int:
    """The largest number of ``moments`` (sorted) that lie within ``window`` of one another."""
    most = start = 0
    for end, moment in enumerate(moments):
        while moment - moments[start] > window:
            start += 1
        most = max(most, end - start + 1)
    return most
