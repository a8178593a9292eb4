"""What a check found: a state, what is there, what was wanted, what to do. Pure, and the same for people and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

EXIT_GOOD = 0
EXIT_WARNINGS = 1
EXIT_FAILURES = 2

_NAME_WIDTH = 10
_STATE_WIDTH = 8
_WIDTH = 118


class State(str, Enum):
    """In order of weight: of several points the heaviest one counts."""

    OK = "ok"
    UNKNOWN = "unknown"
    """Could not be looked at. Never good news, and no accusation either."""
    WARNING = "warning"
    FAILURE = "failure"

    @property
    def weight(self) -> int:
        return list(State).index(self)


@dataclass(frozen=True)
class Point:
    """One fact with its verdict. ``wanted`` and ``advice`` may be empty where all is well."""

    state: State
    found: str
    wanted: str = ""
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.found}; wanted {self.wanted}" if self.wanted and self.state is not State.OK else self.found


def ok(found: str, advice: str = "") -> Point:
    return Point(State.OK, found, advice=advice)


def unknown(found: str, advice: str = "") -> Point:
    return Point(State.UNKNOWN, found, advice=advice)


def warning(found: str, wanted: str = "", advice: str = "") -> Point:
    return Point(State.WARNING, found, wanted, advice)


def failure(found: str, wanted: str = "", advice: str = "") -> Point:
    return Point(State.FAILURE, found, wanted, advice)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's: all points of one check."""

    name: str
    points: tuple[Point, ...]

    @property
    def state(self) -> State:
        return max((point.state for point in self.points), key=lambda state: state.weight, default=State.UNKNOWN)

    @property
    def text(self) -> str:
        """What was found, the heaviest first."""
        ranked = sorted(self.points, key=lambda point: -point.state.weight)
        return ". ".join(str(point) for point in ranked) or "nothing was looked at"

    @property
    def advice(self) -> str:
        ranked = sorted(self.points, key=lambda point: -point.state.weight)
        return ". ".join(dict.fromkeys(point.advice for point in ranked if point.advice))


def finding(name: str, points: Iterable[Point]) -> Finding:
    return Finding(name, tuple(points))


def exit_code(findings: Sequence[Finding]) -> int:
    """0 all good, 1 warnings or something unknown, 2 failures."""
    states = {one.state for one in findings}
    if State.FAILURE in states:
        return EXIT_FAILURES
    return EXIT_GOOD if states <= {State.OK} else EXIT_WARNINGS


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    checks = [{"name": f.name, "state": f.state.value, "text": f.text, "advice": f.advice} for f in findings]
    return {"checks": checks, "exit_code": exit_code(findings)}


def as_text(findings: Sequence[Finding]) -> str:
    """A line a check, folded below its name; advice on a line of its own; the sum at the end."""
    lines = []
    for one in findings:
        head = f"{one.state.value:<{_STATE_WIDTH}} {one.name:<{_NAME_WIDTH}} "
        lines += _folded(head, one.text)
        if one.advice:
            lines += _folded(" " * len(head) + "-> ", one.advice)
    counts = [
        f"{sum(one.state is state for one in findings)} {words}"
        for state, words in ((State.FAILURE, "failed"), (State.WARNING, "to look at"), (State.UNKNOWN, "not known"))
        if any(one.state is state for one in findings)
    ]
    lines.append(", ".join(counts) or f"all {len(findings)} checks are good")
    return "\n".join(lines)


def _folded(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
