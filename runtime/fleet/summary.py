"""What came of a run: of each host, of all, and the exit code. Decided from the run's state alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from runtime.cli.errors import ExitCode
from runtime.fleet.actions import VERIFY, Action
from runtime.fleet.progress import CONTROLLER, Host, Progress, Stage
from runtime.fleet.reasons import rows_of

INTERRUPTED = 130
"""The exit code of whatever ends by Ctrl-C."""
REFUSING_ROLE = "node_preflight"
REFUSING_PARTS = (("control_plane", "look"),)
"""What fails in them is found before any change."""
ENDED_BEFORE = "the run ended before its turn"


class Result(str, Enum):
    """What came of one host; in the order in which the summary shows them."""

    FAILED = "failed"
    RESTORED = "restored"
    DIFFERS = "differs"
    CUT = "cut"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    SKIPPED = "skipped"
    UNTOUCHED = "untouched"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    EQUAL = "equal"


WELL = (Result.CHANGED, Result.UNCHANGED, Result.EQUAL)
LEFT = (Result.CUT, Result.SKIPPED, Result.UNTOUCHED)
"""Hosts that the run did not bring to where they were to be, and did not harm."""


class Stop(str, Enum):
    """How a person ended the run before its time."""

    BETWEEN_HOSTS = "between_hosts"
    NOW = "now"


@dataclass(frozen=True)
class Row:
    host: str
    result: Result
    before: str | None = None
    after: str | None = None
    reason: str | None = None
    wave: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Summary:
    """``outcome``: done, failed, unreachable, refused, interrupted, or broken (Ansible itself went wrong)."""

    outcome: str
    exit_code: int
    rows: tuple[Row, ...]
    errors: tuple[str, ...] = field(default=())

    def sentence(self) -> str:
        """``2 changed, 1 failed``."""
        counts = Counter(row.result for row in self.rows)
        return ", ".join(f"{counts[result]} {result.value}" for result in Result if counts[result]) or "no host"


def summarise(action: Action, progress: Progress, rc: int | None, stop: Stop | None) -> Summary:
    """``rc``: Ansible's exit code; None when it was not left to end."""
    rows = [_row(action, progress, host, rc, stop) for host in progress.hosts.values()]
    if progress.controller.failing:
        rows.insert(0, _controller(progress))
    outcome, code = _outcome(rows, rc, stop)
    return Summary(outcome, code, tuple(rows), tuple(progress.errors) if outcome == "broken" else ())


def _controller(progress: Progress) -> Row:
    """What failed once for all hosts."""
    host = progress.controller
    nodes = progress.verdict.get("nodes")
    if progress.verdict:
        if progress.verdict.get("compared") is False:
            return Row(CONTROLLER, Result.FAILED, reason=" ".join(str(progress.verdict.get("text") or "").split()))
        # Its words are the whole table; which hosts differ stands in their own rows.
        places = rows_of(progress.verdict.get("places"))
        count = len(nodes) if isinstance(nodes, Mapping) else 0
        first = str(progress.verdict.get("text") or "").partition("\n")[0]
        return Row(CONTROLLER, Result.DIFFERS, reason=first if places or not count else f"{count} host(s) differ")
    return Row(CONTROLLER, Result.REFUSED if _refused(host) else Result.FAILED, reason=host.fault or None)


def _refused(host: Host) -> bool:
    return host.fault_part[0] == REFUSING_ROLE or host.fault_part in REFUSING_PARTS


def _outcome(rows: Sequence[Row], rc: int | None, stop: Stop | None) -> tuple[str, int]:
    found = {row.result for row in rows}
    if stop is not None and found & set(LEFT):
        return "interrupted", INTERRUPTED
    if found & {Result.FAILED, Result.RESTORED, Result.DIFFERS, Result.CUT, Result.SKIPPED}:
        return "failed", ExitCode.FAILED
    if Result.UNREACHABLE in found:
        return "unreachable", ExitCode.UNREACHABLE
    if Result.REFUSED in found:
        return "refused", ExitCode.REFUSED
    if rc != 0:
        return ("interrupted", INTERRUPTED) if stop is not None else ("broken", ExitCode.FAILED)
    return "done", ExitCode.OK


def _row(action: Action, progress: Progress, host: Host, rc: int | None, stop: Stop | None) -> Row:
    result, reason = _result(action, progress, host, rc, stop)
    wave = next((wave.number for wave in progress.waves if host.name in wave.hosts), None)
    took = host.ended - host.began if host.ended is not None and host.began is not None else None
    if result in (Result.UNTOUCHED, Result.SKIPPED):
        took = None  # it was looked at, and nothing more
    return Row(host.name, result, _word(host, "from"), _word(host, "to"), reason, wave, took)


def _result(
    action: Action, progress: Progress, host: Host, rc: int | None, stop: Stop | None
) -> tuple[Result, str | None]:
    said = str(host.said.get("result") or "")
    if action is VERIFY and progress.verdict:
        return _compared(progress.verdict, host)
    if rc is None and host.stage is Stage.UNDER_WAY:
        return Result.CUT, f"{host.phase}, when the run was stopped; the next run sets it right"
    if said == "refused" and host.unanswered:
        return Result.UNREACHABLE, _word(host, "reason")
    if host.unreachable and said not in ("restored", "failed"):
        return Result.UNREACHABLE, host.fault or None
    if said:
        well = said in [result.value for result in WELL]
        if well and progress.failed(host):
            return Result.FAILED, host.fault or None
        return Result(said), _word(host, "reason")
    if progress.failed(host):
        if _refused(host):
            return Result.REFUSED, host.fault or None
        return Result.FAILED, host.fault or None
    if rc == 0 and (progress.reached(host) or stop is None):
        # The playbook went through, and nothing was said of this host in particular.
        return (Result.CHANGED if host.changes else Result.UNCHANGED), None
    if not progress.reached(host):
        return Result.UNTOUCHED, ENDED_BEFORE if stop is None else "the run was stopped before its turn"
    return Result.CUT, "the run ended before it did; the next run sets it right"


def _compared(verdict: Mapping[str, Any], host: Host) -> tuple[Result, str | None]:
    nodes, equal = verdict.get("nodes"), verdict.get("equal")
    if isinstance(nodes, Mapping) and host.name in nodes:
        return (Result.UNREACHABLE if host.unanswered else Result.DIFFERS), " ".join(str(nodes[host.name]).split())
    if isinstance(equal, Sequence) and host.name in equal:
        return Result.EQUAL, None
    return Result.UNTOUCHED, "it was not compared"


def _word(host: Host, name: str) -> str | None:
    value = host.said.get(name)
    return " ".join(str(value).split()) if value not in (None, "") else None


def document(run_id: str, action: Action, summary: Summary, progress: Progress, **more: Any) -> dict[str, Any]:
    """The one document that ``-o json`` prints; null where nothing is known."""
    return {
        "run_id": run_id,
        "action": action.name,
        "outcome": summary.outcome,
        **more,
        "waves": {"done": progress.waves_done, "total": progress.waves_total},
        "hosts": [
            {
                "host": row.host,
                "outcome": row.result.value,
                "from": row.before,
                "to": row.after,
                "reason": row.reason,
                "wave": row.wave,
                "seconds": round(row.seconds, 1) if row.seconds is not None else None,
            }
            for row in summary.rows
        ],
        "findings": [dict(row) for row in progress.findings],
        "places": [dict(row) for row in rows_of(progress.verdict.get("places"))],
        "errors": list(summary.errors),
    }
