"""The look itself: all rules over one folder, and the newest of what they prove.

Frameworks are of two kinds. Megatron, DeepSpeed and TensorFlow keep a pointer beside their checkpoints, and only what
the pointer says was saved by all ranks: folders that a pointer is about are judged by its rule alone. Of the others
(Transformers, PyTorch, the marker) each folder proves itself, and the number that its name ends in is its training
step. With ``auto`` the highest proven step wins, whichever rule proved it; of two equal ones the pointer's.

A marker that is there and does not hold is evidence against its folder, whatever else is in it.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Collection
from dataclasses import dataclass
from typing import Optional, Union

from runtime.agent.checkpoints import deepspeed, marker, megatron, pytorch, tensorflow, transformers
from runtime.agent.checkpoints.folder import LINK, Budget, Folder, GivenUp
from runtime.agent.checkpoints.names import is_plain, shown, step_of, unfinished
from runtime.agent.checkpoints.verdict import Checkpoint, Incomplete, Look, Pointed, Rejected

AUTO = "auto"
FRAMEWORKS = (AUTO, megatron.NAME, deepspeed.NAME, tensorflow.NAME, pytorch.NAME, transformers.NAME, marker.NAME)

REJECTED_LIMIT = 50
TRIES = 3
"""How often all is looked at while something changes."""

CANDIDATES = 1000
"""Folders, from the highest number downwards, that are looked into."""


def find_newest(
    folder: Union[int, str],
    inside: str = "",
    framework: str = AUTO,
    *,
    seen_as: str = "",
    hidden: Collection[str] = (),
    budget: Optional[Budget] = None,
) -> Look:
    """The newest checkpoint that is proven complete in ``folder`` (a handle, O_PATH will do, or a path) or below it.

    ``inside`` goes down from there. ``seen_as`` is the path by which the training program knows the place: paths in
    the answer begin with it. ``hidden``: names in the place that the program sees something else at. ``framework`` is
    one of FRAMEWORKS, else ValueError. OSError when the file system does not answer: nothing is known then, neither
    that there is a checkpoint nor that there is none.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(f"{framework!r} is none of {', '.join(FRAMEWORKS)}")
    base = seen_as or (posixpath.join(folder, inside) if isinstance(folder, str) else inside) or "."
    budget = budget or Budget()
    try:
        for _ in range(TRIES):
            budget.changed = False
            with Folder.at(folder, inside, budget) as root:
                look = _Search(root, framework, base, hidden).run()
            if not budget.changed:
                break
        return look
    except Incomplete as lack:
        return Look(rejected=(Rejected(base, str(lack)),))
    except OSError as error:
        reason = _no_place(error)
        if reason is None:
            raise
        return Look(rejected=(Rejected(base, reason),) if reason else ())


def _no_place(error: OSError) -> Optional[str]:
    """Why there is no folder to look at; empty: nothing is there (yet); None: nobody knows."""
    if error.errno == errno.ENOENT:
        return ""
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return f"is no folder, or on the way to it there {LINK}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be looked at (permission denied)"
    return None


@dataclass(frozen=True)
class _Candidate:
    """A folder that has to prove itself. ``marked``: it has a marker (read or not)."""

    name: str
    step: int
    marked: bool = False
    fault: Optional[str] = None


class _Search:
    def __init__(self, root: Folder, framework: str, base: str, hidden: Collection[str]) -> None:
        self._root = root
        self._framework = framework
        self._base = base
        self._hidden = frozenset(hidden)
        self._found: Optional[Checkpoint] = None
        self._rejected: list[Rejected] = []
        self._schedulers: Optional[bool] = None

    def run(self) -> Look:
        try:
            claimed = self._pointers()
            self._folders(claimed)
            self._itself()
        except GivenUp as given_up:
            self._rejected.insert(0, Rejected(self._base, f"the look was ended: {given_up}"))
        return Look(self._found, tuple(self._rejected[:REJECTED_LIMIT]))

    def _asks(self, name: str) -> bool:
        return self._framework in (AUTO, name)

    # Pointers

    def _pointers(self) -> frozenset[str]:
        claimed: frozenset[str] = frozenset()
        rules = (
            (megatron.NAME, megatron.look),
            (deepspeed.NAME, deepspeed.look),
            (tensorflow.NAME, lambda root: tensorflow.look(root, self._base)),
        )
        for name, look in rules:
            if self._asks(name):
                pointed = look(self._root)
                claimed |= pointed.claimed
                self._take_pointed(name, pointed)
        return claimed

    def _take_pointed(self, framework: str, pointed: Pointed) -> None:
        for name, reason in pointed.rejected.items():
            self._reject(name, reason)
        if pointed.name is None:
            return
        if pointed.name in self._hidden:
            self._reject(pointed.name, "another volume is mounted over it")
        elif self._is_newer(pointed.step):
            self._found = Checkpoint(self._path(pointed.name), framework, pointed.step)

    # Folders that prove themselves

    def _folders(self, claimed: frozenset[str]) -> None:
        for candidate in self._candidates(claimed):
            if not self._is_newer(candidate.step):
                return
            framework = self._judged(candidate)
            if framework is not None:
                self._found = Checkpoint(self._path(candidate.name), framework, candidate.step)
                return

    def _candidates(self, claimed: frozenset[str]) -> list[_Candidate]:
        numbered = [(step, name) for name, kind in self._root.kinds.items() if kind in ("folder", "link")
                    for step in [step_of(name)] if step is not None]  # fmt: skip
        found = []
        for step, name in sorted(numbered, reverse=True)[:CANDIDATES]:
            candidate = self._candidate(name, step)
            if candidate.marked or name not in claimed:
                found.append(candidate)
        return sorted(found, key=lambda one: (one.step, one.name), reverse=True)

    def _candidate(self, name: str, step: int) -> _Candidate:
        """With the step of its marker, where there is one: a folder may be numbered by epochs."""
        if not is_plain(name) or unfinished(name) or self._root.kinds[name] == "link" or not self._asks(marker.NAME):
            return _Candidate(name, step)
        try:
            inside = self._root.sub(name)
            if not inside.has(marker.MARKER):
                return _Candidate(name, step)
            return _Candidate(name, marker.read(inside).step, marked=True)
        except Incomplete as lack:
            return _Candidate(name, step, marked=True, fault=str(lack))

    def _judged(self, candidate: _Candidate) -> Optional[str]:
        """The rule that proves it; else it is rejected, or no checkpoint at all."""
        name = candidate.name
        try:
            self._refuse_name(name)
            if candidate.fault is not None:
                raise Incomplete(candidate.fault)
            inside = self._root.sub(name)
            framework = self._by_rule(inside, candidate)
            inside.settle()
            return framework
        except Incomplete as lack:
            self._reject(name, str(lack))
            return None

    def _refuse_name(self, name: str) -> None:
        if not is_plain(name):
            raise Incomplete("has a name that cannot be handed on (not UTF-8, or with control characters)")
        if unfinished(name):
            raise Incomplete("has the name of a save that was not finished")
        if name in self._hidden:
            raise Incomplete("another volume is mounted over it")

    def _by_rule(self, inside: Folder, candidate: _Candidate) -> Optional[str]:
        """The rule's name, or None for what is no checkpoint. Raises Incomplete."""
        if candidate.marked:
            marker.judge(inside, marker.read(inside))
            return marker.NAME
        if self._framework == marker.NAME:
            raise Incomplete(f"{marker.MARKER} is missing")
        if self._framework == pytorch.NAME or (self._framework == AUTO and _is_distributed(inside)):
            pytorch.judge(inside)
            return pytorch.NAME
        if self._framework == transformers.NAME or (self._framework == AUTO and self._is_trainers(inside, candidate)):
            transformers.judge(inside, candidate.step, self._others_have)
            return transformers.NAME
        lack = _of_no_pointer(inside)
        if lack is not None:
            raise Incomplete(lack)
        return None

    @staticmethod
    def _is_trainers(inside: Folder, candidate: _Candidate) -> bool:
        return transformers.recognises(inside) or transformers.CHECKPOINT.fullmatch(candidate.name) is not None

    def _others_have(self, name: str) -> bool:
        """Whether any checkpoint of the Trainer here has a file of that name."""
        if self._schedulers is None:
            folders = [one for one in self._root.folders() if transformers.CHECKPOINT.fullmatch(one)]
            self._schedulers = any(self._root.holds(folder, name) for folder in folders[:CANDIDATES])
        return self._schedulers

    # The place itself

    def _itself(self) -> None:
        """The place may be a checkpoint, rather than hold some."""
        root, name = self._root, ""
        step = step_of(posixpath.basename(self._base.rstrip("/")))
        try:
            if self._asks(marker.NAME) and root.has(marker.MARKER):
                marked = marker.read(root)
                marker.judge(root, marked)
                name = marked.name if is_plain(marked.name) and marked.name in root.kinds else ""
                framework, step = marker.NAME, marked.step
            elif self._asks(pytorch.NAME) and _is_distributed(root):
                framework = pytorch.NAME
                pytorch.judge(root)
            elif self._asks(transformers.NAME) and transformers.STATE in root.kinds:
                if step is None:
                    return  # what a run leaves beside its checkpoints when it has ended
                framework = transformers.NAME
                transformers.judge(root, step, lambda name: False)
            else:
                return
            root.settle()
        except Incomplete as lack:
            self._reject("", str(lack))
            return
        if self._is_newer(step):
            self._found = Checkpoint(self._path(name), framework, step)

    def _is_newer(self, step: Optional[int]) -> bool:
        """Than what was found; one whose step nobody knows is only better than none."""
        if self._found is None:
            return True
        return step is not None and (self._found.step is None or step > self._found.step)

    def _reject(self, name: str, reason: str) -> None:
        self._rejected.append(Rejected(self._path(shown(name)) if name else self._base, reason))

    def _path(self, name: str) -> str:
        return posixpath.join(self._base, name) if name else self._base


def _is_distributed(folder: Folder) -> bool:
    """Whether it is, or was to be, a distributed checkpoint, and not one inside a Trainer's."""
    return not transformers.recognises(folder) and (
        pytorch.recognises(folder)
        or f"{pytorch.METADATA}.tmp" in folder.kinds
        or any(name.endswith(pytorch.SUFFIX) for name in folder.kinds)
    )


def _of_no_pointer(folder: Folder) -> Optional[str]:
    """What a folder lacks that looks like a checkpoint of a framework whose pointer is not here."""
    if not folder.kinds:
        return "is empty"
    if any(megatron.RANK.fullmatch(name) for name in folder.kinds):
        return f"there is no {megatron.TRACKER} that names it"
    if any(deepspeed.SHARD.fullmatch(name) for name in folder.kinds):
        return f"there is no file {deepspeed.LATEST} that names it"
    return None
