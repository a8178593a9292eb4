"""What is to be done now about one card that owes a probe: a table of facts to a step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from runtime.agent.card_probe.owed import NOT_YET

LINE_CHARS = 200
"""So much of what an engine or a program says is told on."""


class Do(str, Enum):
    """``wait``: nothing now. ``run``: make and start a container. ``void``: its end says nothing of the card.
    ``failed``: it ended badly, another try comes later. ``passed``: it ended with 0. All but the first two end the
    probe that is under way."""

    WAIT = "wait"
    RUN = "run"
    VOID = "void"
    FAILED = "failed"
    PASSED = "passed"


@dataclass(frozen=True)
class Underway:
    """The card's probe container. ``there`` False: somebody removed it. ``exit_code`` counts once it has ``ended``;
    ``start_error``: the engine's words when it refused to start it."""

    ran_s: float
    there: bool = True
    ended: bool = False
    exit_code: Optional[int] = None
    start_error: Optional[str] = None
    last_line: str = ""


@dataclass(frozen=True)
class Situation:
    """``well``: what the card's tool says now, None when it cannot be told. ``users_known``: whether it is known which
    containers hold cards; ``held_by``: who holds this one. ``leftover``: an earlier probe's container of this card is
    still there. ``due``: the pause after the last try is over."""

    well: Optional[bool]
    timeout_s: float
    underway: Optional[Underway] = None
    users_known: bool = True
    held_by: Optional[str] = None
    leftover: bool = False
    due: bool = True


@dataclass(frozen=True)
class Step:
    """``said``: how far the probe is, in words; None: as before."""

    do: Do
    said: Optional[str] = None


def next_step(card: Situation) -> Step:
    """The step for this card."""
    if card.underway is not None:
        return _of_probe(card, card.underway)
    if not card.well:
        return Step(Do.WAIT, NOT_YET)
    if card.leftover:
        return Step(Do.WAIT)  # two at once on one card could each take the other's memory for a fault
    if not card.users_known:
        return Step(Do.WAIT, f"{NOT_YET}: it is not known which containers hold cards")
    if card.held_by is not None:
        # Beside a task a probe would disturb the work, or fail for want of memory. The card stays out until then: its
        # holder's end would free it for the next task at once.
        return Step(Do.WAIT, f"{NOT_YET}: {card.held_by} holds the card")
    return Step(Do.RUN, "probe container runs") if card.due else Step(Do.WAIT)


def _of_probe(card: Situation, probe: Underway) -> Step:
    if card.well is False:
        return Step(Do.VOID, NOT_YET)
    if not probe.there:
        return Step(Do.FAILED, "probe container was removed before its end")
    if probe.start_error is not None:
        return Step(Do.FAILED, f"probe container could not be started: {probe.start_error}")
    if probe.ended and probe.exit_code == 0:
        return Step(Do.PASSED)
    if probe.ended:
        code = "ended without an exit code" if probe.exit_code is None else f"exited with {probe.exit_code}"
        return Step(Do.FAILED, f"probe container {code}" + (f": {probe.last_line}" if probe.last_line else ""))
    if probe.ran_s >= card.timeout_s:
        return Step(Do.FAILED, f"probe container did not end in {card.timeout_s:g} s")
    return Step(Do.WAIT, "probe container runs")


def last_line(output: bytes) -> str:
    """The last words of an output, as they can be shown."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return "".join(char if char.isprintable() else "?" for char in lines[-1])[:LINE_CHARS] if lines else ""
