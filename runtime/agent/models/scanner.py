"""The scan for models, in a loop of its own: the roots on each mount are walked by a child with a deadline.

What could not be looked at keeps its last good result, and that is said with its age. A child that is stuck in the
kernel is left behind, and its mount is not entered again before it ends; the others are.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.agent.hardware.tools import ToolError, ToolRunner, python_command
from runtime.agent.loop import Loop
from runtime.agent.models.child import Order
from runtime.agent.models.roots import Root, read_mounts, roots_of
from runtime.agent.models.walk import Budget
from runtime.protocol.heartbeat import MODELS_CAP, DiscoveredModel, ModelsScan
from runtime.protocol.times import now, to_wire

log = logging.getLogger(__name__)

EVERY_BEATS = 12
DEADLINE_S = 45.0
"""A walk ends itself after 20 s between two calls of the kernel; what takes longer than this hangs in one."""

FOLDER = "models"
MIB = 1 << 20
PROBLEMS = 5
"""Folders that an error names; of more it gives the number."""

MOUNTS = Path("/proc/self/mountinfo")
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True)
class ModelsSnapshot:
    """What the heartbeat says of models. ``models`` None: no folder could be looked at yet, which is not "none"."""

    models: Optional[list[DiscoveredModel]] = None
    scan: Optional[ModelsScan] = None
    truncated: bool = False


@dataclass
class _Result:
    """One root: its last good result, and what could not be looked at since."""

    models: list[DiscoveredModel] = field(default_factory=list)
    at: Optional[str] = None
    partial: bool = False
    truncated: bool = False
    problems: list[str] = field(default_factory=list)


class ModelScanner:
    """Scans at the start (everything anew), then every :data:`EVERY_BEATS` beats (what changed).

    ``interval`` tells the seconds between beats; ``state_dir`` None: nothing is remembered, each scan is a full one.
    ``on_first`` is called once, when the first scan is done. :meth:`snapshot` never blocks.
    """

    def __init__(
        self,
        runner: ToolRunner,
        folders: Sequence[str],
        state_dir: Optional[Path],
        *,
        interval: Callable[[], float] = lambda: 5.0,
        on_first: Callable[[], None] = lambda: None,
        deadline_s: float = DEADLINE_S,
        mounts: Path = MOUNTS,
    ) -> None:
        self._runner = runner
        self._folders = list(folders)
        self._memory = None if state_dir is None else state_dir / FOLDER
        self._interval = interval
        self._on_first = on_first
        self._deadline_s = deadline_s
        self._mounts = mounts
        self._lock = threading.Lock()
        self._results: dict[str, _Result] = {}
        self._fresh: set[str] = set()
        self._snapshot = ModelsSnapshot()
        self._scans = 0
        self.loop = Loop("models", EVERY_BEATS * interval(), self.scan, deadline_s=20 * deadline_s)

    def snapshot(self) -> ModelsSnapshot:
        with self._lock:
            return self._snapshot

    def scan(self) -> None:
        """Walk all roots, one after the other, and publish after each: a root that hangs holds nobody up."""
        self.loop.interval_s = EVERY_BEATS * self._interval()
        roots = self._roots()
        for gone in set(self._results) - {root.path for root in roots}:
            del self._results[gone]
        for root in roots:
            self._results.setdefault(root.path, _Result())
        by_mount: dict[str, list[Root]] = {}
        for root in roots:
            by_mount.setdefault(root.on, []).append(root)
        for together in by_mount.values():
            if self.loop.stopping:
                return
            self._walk(together)
            self._publish()
        self._scans += 1
        if self._scans == 1:
            self._on_first()

    def _roots(self) -> list[Root]:
        try:
            mounts = read_mounts(self._mounts.read_bytes())
        except OSError as error:
            log.warning("%s: %s; other mounts are not told apart", self._mounts, error.strerror)
            mounts = []
        return roots_of(self._folders, mounts)

    def _walk(self, roots: list[Root]) -> None:
        """Have the roots on one mount walked, and keep what comes of each."""
        orders = [
            Order(root.path, list(root.mounts), self._memory_of(root), root.path not in self._fresh) for root in roots
        ]
        name = f"the scan for models on the mount {roots[0].on}"
        try:
            answers = ask(self._runner, name, orders, deadline_s=self._deadline_s)
        except ToolError as error:
            for root in roots:
                self._note(root, [str(error)])
            return
        for root, answer in zip(roots, answers):
            self._keep(root, answer)

    def _keep(self, root: Root, answer: dict[str, Any]) -> None:
        result = self._results[root.path]
        if "error" not in answer:
            self._fresh.add(root.path)
            self._note(root, _take(result, answer))
        elif answer["error"] in _NOT_THERE:
            result.models, result.at, result.partial, result.truncated = [], to_wire(now()), False, False
            self._note(root, [f"{root.path}: no such folder"] if root.wanted else [])
        else:
            self._note(root, [f"{root.path}: {answer['text']}"])

    def _note(self, root: Root, problems: list[str]) -> None:
        result = self._results[root.path]
        if problems and _words(problems) != _words(result.problems):
            log.warning("models: %s", "; ".join(problems))
        result.problems = problems

    def _memory_of(self, root: Root) -> Optional[str]:
        if self._memory is None:
            return None
        try:
            self._memory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            log.warning("%s: %s; every scan for models is a full one", self._memory, error.strerror)
            return None
        return str(self._memory / (hashlib.sha256(root.path.encode("utf-8", "surrogateescape")).hexdigest()[:16]))

    def _publish(self) -> None:
        snapshot = merged(list(self._results.values()))
        with self._lock:
            self._snapshot = snapshot


def _words(problems: Sequence[str]) -> list[str]:
    """What they say but for numbers: how long something hangs is no news."""
    return [re.sub(r"\d+", "", problem) for problem in problems]


def ask(
    runner: ToolRunner, name: str, orders: Sequence[Order], *, deadline_s: float, seconds: float = Budget.seconds
) -> list[dict[str, Any]]:
    """Have a child of ours walk; its answer to each order. Raises ToolError when it hangs, is cut short, or does not
    answer."""
    asked = {
        "orders": [dataclasses.asdict(order) for order in orders],
        "entries": Budget.entries,
        "seconds": seconds,
        "cap": MODELS_CAP,
    }
    output = runner.run(name, python_command("runtime.agent.models.child", json.dumps(asked)), deadline_s=deadline_s)
    try:
        answers = json.loads(output.stdout)["answers"]
    except (ValueError, LookupError, TypeError):
        answers = None
    if output.status != 0 or not isinstance(answers, list):
        last = output.stderr.strip().rpartition("\n")[2][:200]
        raise ToolError(f"{name} ended with {output.status}{f': {last}' if last else ''}")
    return answers


def models_of(answer: dict[str, Any]) -> list[DiscoveredModel]:
    """The models in a child's answer, as the heartbeat tells them."""
    return [
        DiscoveredModel(name, path, kind, -(-size // MIB), source, state, reason)
        for name, path, kind, size, source, state, reason in answer["models"]
    ]


def _take(result: _Result, answer: dict[str, Any]) -> list[str]:
    """A walk's models become the root's; what it could not look at."""
    result.models, result.at, result.partial = models_of(answer), to_wire(now()), answer["partial"]
    result.truncated = answer["count"] > len(result.models)
    problems = [f"{path}: {words}" for path, words in answer["problems"]]
    if len(problems) > PROBLEMS:
        problems[PROBLEMS:] = [f"and {len(problems) - PROBLEMS} more places"]
    return [problem.encode("utf-8", "backslashreplace").decode() for problem in problems]


def merged(results: Sequence[_Result]) -> ModelsSnapshot:
    """What all roots say together. ``at`` is the age of the oldest result; a root that could not be looked at this
    time, or ever, makes it no less true, but partial when there is no result of it."""
    seen = [result for result in results if result.at is not None]
    problems = [problem for result in results for problem in result.problems]
    scan = ModelsScan(
        at=min((result.at for result in seen if result.at is not None), default=None),
        partial=len(seen) < len(results) or any(result.partial for result in seen),
        error="; ".join(dict.fromkeys(problems)) or None,
    )
    if not seen:
        return ModelsSnapshot(None, scan)
    models = [model for result in seen for model in result.models]
    truncated = len(models) > MODELS_CAP or any(result.truncated for result in seen)
    return ModelsSnapshot(models[:MODELS_CAP], scan, truncated)
