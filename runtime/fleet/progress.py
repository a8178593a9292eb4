"""What a run is at any moment, made from Ansible's events alone: no clock, no file, no terminal.

A host waits, is under way (in a phase), and ends. The last word on a host is the role's own (the fact
``agent_outcome``, or the control plane's); without one, the task that failed there, or that it was not reached. What
works once for all hosts is no host's, whatever name Ansible gives it: it is the controller's. A wave is one batch of a
play that has ``serial``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from runtime.fleet.phases import JUDGES_HOSTS, TELLS, does_something, of_the_run, part, phase
from runtime.fleet.reasons import Line, reason_of, rows_of, spoken

OUTCOME_FACTS = ("agent_outcome", "control_plane_outcome")
SUMMARY_FACT, VERDICT_FACT, FINDINGS_FACT = "agent_summary", "distribution_verdict", "node_preflight_findings"
"""What the roles leave: of a host, of all hosts at the end, of places and nodes that were compared, and what the
preflight has against settings and hosts."""
CONTROLLER = "localhost"
RESULTS = ("unchanged", "changed", "restored", "failed", "refused", "skipped")
KEPT_ERRORS = 20


class Stage(str, Enum):
    WAITING = "waiting"
    UNDER_WAY = "under way"
    ENDED = "ended"


@dataclass
class Host:
    """``said``: the role's own outcome. ``fault``: what failed here last; ``failing``, ``unreachable``: and nothing
    went on since, so it was not rescued. Times are the run's."""

    name: str
    stage: Stage = Stage.WAITING
    phase: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    fault_part: tuple[str, str] = ("", "")
    failing: bool = False
    unreachable: bool = False
    unanswered: bool = False  # at some time
    changes: int = 0
    began: float | None = None
    ended: float | None = None


@dataclass
class Wave:
    number: int
    began: float
    hosts: list[str] = field(default_factory=list)
    ended: float | None = None


class Progress:
    """``apply`` takes one event as ansible-runner gives it, and returns what is worth a line."""

    def __init__(self, hosts: Sequence[str], serial_plays: Sequence[str] = (), sizes: Sequence[int] | None = None):
        self.hosts: dict[str, Host] = {name: Host(name) for name in hosts}
        self.sizes = list(sizes) if sizes is not None else None
        self.waves: list[Wave] = []
        self.controller = Host(CONTROLLER)
        self.verdict: Mapping[str, Any] = {}
        self.findings: list[Mapping[str, Any]] = []
        self.step = ""  # what is done once for all hosts
        self.errors: list[str] = []
        self.finished = False
        self.stats: Mapping[str, Any] = {}
        self._serial = set(serial_plays)
        self._playing = False
        self._batch_at: float | None = None  # a batch was opened, and nothing is done in it yet
        self._not_its_own: Counter[str] = Counter()  # failures that Ansible counts as the host's

    @property
    def wave(self) -> Wave | None:
        """The wave that is under way."""
        return self.waves[-1] if self.waves and self.waves[-1].ended is None else None

    @property
    def waves_done(self) -> int:
        return sum(1 for wave in self.waves if wave.ended is not None)

    @property
    def waves_total(self) -> int | None:
        """None: nobody knows (yet)."""
        return len(self.sizes) if self.sizes is not None else None

    def reached(self, host: Host) -> bool:
        """Whether the run came to this host: to its wave, where there are waves, and not only to look at it before."""
        if self._serial:
            return any(host.name in wave.hosts for wave in self.waves)
        return host.stage is not Stage.WAITING

    def failed(self, host: Host) -> bool:
        """Whether a task failed here that nothing has rescued."""
        failures = self.stats.get("failures")
        if self.finished and isinstance(failures, Mapping) and host is not self.controller:
            return int(failures.get(host.name) or 0) > self._not_its_own[host.name]
        return host.failing

    def count(self, stage: Stage) -> int:
        return sum(1 for host in self.hosts.values() if host.stage is stage)

    def apply(self, event: Mapping[str, Any], at: float) -> list[Line]:
        kind = str(event.get("event") or "")
        given = event.get("event_data")
        data: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        if kind == "playbook_on_play_start":
            return self._play(str(data.get("name") or data.get("play") or ""), at)
        if kind == "playbook_on_stats":
            return self._end(data, at)
        if kind == "error" or (kind == "verbose" and not self._playing):
            self._complain(event)
        if kind.startswith("runner_") and data.get("host"):
            return self._task(kind, data, at)
        return []

    def _play(self, name: str, at: float) -> list[Line]:
        lines = self._close_wave(at)
        self._playing = True
        for host in self.hosts.values():
            if self._serial and host.stage is Stage.UNDER_WAY and not self.reached(host):
                host.stage, host.began, host.phase = Stage.WAITING, None, ""  # it was looked at, and waits for its wave
        self._batch_at = at if name in self._serial else None
        return lines

    def _task(self, kind: str, data: Mapping[str, Any], at: float) -> list[Line]:
        name = str(data["host"])
        host = self.controller if name == CONTROLLER else self.hosts.setdefault(name, Host(name))
        if kind == "runner_on_start":
            return self._begin(host, data, at)
        result = data.get("res") if isinstance(data.get("res"), Mapping) else {}
        assert isinstance(result, Mapping)
        if kind == "runner_on_ok":
            host.changes += result.get("changed") is True
            facts = result.get("ansible_facts")
            return self._facts(host, facts, at) if isinstance(facts, Mapping) else spoken(data, result)
        if kind == "runner_on_unreachable":
            host.unreachable = host.unanswered = True
            host.fault = reason_of(data, result)
            return self._ended(host, at, f"cannot be reached: {host.fault}", bad=True)
        if kind == "runner_on_failed" and data.get("ignore_errors") is not True:
            return self._fault(host, data, reason_of(data, result))
        return []

    def _fault(self, host: Host, data: Mapping[str, Any], reason: str) -> list[Line]:
        if part(data) == TELLS:
            self._not_its_own[host.name] += 1
            return []
        if of_the_run(data) and part(data) != JUDGES_HOSTS:
            self._not_its_own[host.name] += 1
            host = self.controller
        host.fault, host.fault_part, host.failing = reason, part(data), True
        return []

    def _facts(self, host: Host, facts: Mapping[str, Any], at: float) -> list[Line]:
        lines = []
        summed, verdict = facts.get(SUMMARY_FACT), facts.get(VERDICT_FACT)
        for said in (facts.get(name) for name in OUTCOME_FACTS):
            if isinstance(said, Mapping):
                lines += self._said(host, said, at)
        if isinstance(summed, Mapping):
            for row in rows_of(summed.get("rows")):
                # What the control plane says at the end is newer than what the host said in its wave.
                if row.get("host") in self.hosts and row.get("result") in RESULTS:
                    self.hosts[str(row["host"])].said = row
        if isinstance(verdict, Mapping):
            self.verdict = verdict
        if FINDINGS_FACT in facts:
            self.findings = rows_of(facts[FINDINGS_FACT])
        return lines

    def _begin(self, host: Host, data: Mapping[str, Any], at: float) -> list[Line]:
        words = of_the_run(data)
        if words:
            fresh, self.step = words != self.step, words
            return [Line(words)] if fresh else []
        untouched = host.said.get("result") in ("refused", "skipped")
        if not does_something(data) or untouched or host is self.controller:
            return []  # the play's own steps, or what follows the last word on a host that has had no turn
        lines = self._open_wave(at)
        if self.wave is not None and host.name not in self.wave.hosts:
            self.wave.hosts.append(host.name)
        now = phase(data)
        if host.stage is Stage.WAITING:
            host.began = at
        if host.stage is not Stage.UNDER_WAY or now != host.phase:
            lines.append(Line(now, host.name))
        # What goes on after a failure, or after no answer, was rescued.
        host.stage, host.phase, host.failing, host.unreachable = Stage.UNDER_WAY, now, False, False
        return lines

    def _said(self, host: Host, said: Mapping[str, Any], at: float) -> list[Line]:
        result = str(said.get("result") or "")
        if result not in RESULTS:
            return []
        host.said = said
        words = " ".join(part for part in (result, told(said)) if part)
        return self._ended(host, at, words, bad=result in ("restored", "failed", "refused"))

    def _ended(self, host: Host, at: float, text: str, bad: bool) -> list[Line]:
        host.stage, host.ended = Stage.ENDED, at
        return [Line(text, host.name, bad)]

    def _open_wave(self, at: float) -> list[Line]:
        if self._batch_at is None:
            return []
        self.waves.append(Wave(len(self.waves) + 1, self._batch_at))
        self._batch_at = None
        total = self.waves_total
        of = f" of {total}" if total is not None and total >= len(self.waves) else ""
        return [Line(f"wave {len(self.waves)}{of} begins")]

    def _close_wave(self, at: float) -> list[Line]:
        wave, self._batch_at = self.wave, None
        if wave is None:
            return []
        wave.ended = at
        for name in wave.hosts:
            host = self.hosts[name]
            if host.stage is Stage.UNDER_WAY and host.said:
                host.stage, host.ended = Stage.ENDED, at
        count = len(wave.hosts)
        text = f"wave {wave.number} has ended: {count} host{'s' * (count != 1)} in {at - wave.began:.0f} s"
        if self.waves_total is not None and self.waves_total >= wave.number:
            text += f", {self.waves_total - wave.number} left"
        return [Line(text)]

    def _end(self, data: Mapping[str, Any], at: float) -> list[Line]:
        lines = self._close_wave(at)
        self.finished, self.stats = True, data
        for host in self.hosts.values():
            if host.stage is Stage.UNDER_WAY:
                host.stage, host.ended = Stage.ENDED, at
        return lines

    def _complain(self, event: Mapping[str, Any]) -> None:
        text = str(event.get("stdout") or "").strip()
        if text and len(self.errors) < KEPT_ERRORS:
            self.errors.append(text)


def told(said: Mapping[str, Any]) -> str:
    """``from -> to: reason`` of an outcome, as far as it says them."""
    before, after, reason = (str(said.get(name) or "") for name in ("from", "to", "reason"))
    moved = f"{before} -> {after}" if before and after and before != after else after or before
    return ": ".join(part for part in (moved, reason) if part)


def remaining_s(progress: Progress, at: float) -> float | None:
    """About how long the waves that are left take, judged by those that have ended; None: nobody can know, also not of
    a wave that takes longer than they did."""
    total = progress.waves_total
    took = [wave.ended - wave.began for wave in progress.waves if wave.ended is not None]
    if total is None or not took or len(progress.waves) > total:
        return None
    mean = sum(took) / len(took)
    spent = at - progress.wave.began if progress.wave is not None else 0.0
    return mean * (total - len(took)) - spent if spent <= mean else None
