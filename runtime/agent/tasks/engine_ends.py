"""Whether an engine's going down ended a container, or the program ended by itself. Pure.

Exit codes do not tell: an engine that stops sends SIGTERM, and a program may answer that with any code. What tells is
the order of things, by the monotonic clock: the wall clock, by which engines date, may be set at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

START_S = 15.0
"""An engine that was killed finds what it left running within that time of its next start, and ends it."""

SLACK_S = 0.5
"""Clocks are read one after the other."""


@dataclass(frozen=True)
class AroundEnd:
    """What is known around one end; times in seconds of the monotonic clock.

    ``ended``: when it may have been, by all ways to read the engine's date. ``asked``: the container did not start
    before that. ``engine_began``: the engine's present run. ``engine_stopping``: the run before began to end.
    ``by_itself``: the engine told of the end as it happened, and of no signal before it. ``silent``: the engine was
    away at one of ``ended``, or about to be. ``watched``: this agent had seen the engine at work before them.
    ``outlives``: the engine leaves its containers alone when it goes.
    """

    ended: tuple[float, ...] = ()
    asked: Optional[float] = None
    engine_began: Optional[float] = None
    engine_stopping: Optional[float] = None
    by_itself: bool = False
    silent: bool = False
    watched: bool = True
    outlives: bool = False


def ended_with_engine(seen: AroundEnd) -> bool:
    """In doubt it was the engine: its end is no proof of what the program did."""
    if seen.outlives or seen.by_itself:
        return False
    began = seen.engine_began
    if began is None:
        return seen.silent
    if seen.asked is not None and began <= seen.asked:
        return False  # one run of the engine, from before the start until now
    if seen.ended and all(moment > began + START_S for moment in seen.ended):
        return False
    if seen.engine_stopping is not None and seen.engine_stopping <= began and seen.ended:
        return any(moment >= seen.engine_stopping - SLACK_S for moment in seen.ended)
    return seen.silent or not seen.watched or not seen.ended
