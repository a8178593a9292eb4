"""A walk through one root: folders that changed are listed, files that changed are read, the rest is remembered.

Links are never followed into folders, each real folder is entered once, and other mounts are left to walks of their
own: so there are no loops, and what hangs elsewhere hangs there. A link to a file counts where it stays inside the
root (a hub cache is made of them). When the budget is spent the walk ends, and the next one goes on from there.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Callable, Optional

from runtime.agent.models import integrity
from runtime.agent.models.memory import SETTLED_NS, Memory, SeenFile, SeenFolder, mark_of
from runtime.agent.models.names import hub_name, kind_of, walks_into
from runtime.protocol.paths import is_within

FEW_FILES = 20_000
"""Up to so many weights files each walk asks for the size of them all; beyond, whole ones take turns."""
TURNS = 10
_NEVER = (0, -1, -1)
"""The mark of a file that has to be read again."""
_LEADS_NOWHERE = integrity.Verdict(integrity.INCOMPLETE, "is a link that leads nowhere")


@dataclass
class Budget:
    """What one walk may take: names that are looked at, and seconds."""

    entries: int = 400_000
    seconds: float = 20.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds
        self.used = 0

    def spent(self) -> bool:
        return self.used >= self.entries or self.clock() >= self._end


@dataclass
class Looked:
    """How much one walk did: folders entered, folders listed, files asked for their size, files read."""

    folders: int = 0
    listed: int = 0
    asked: int = 0
    read: int = 0


@dataclass
class Walked:
    """``outside``: folder -> bytes of files that others name and that are no weights by their own name.
    ``problems``: path below the root -> why it could not be looked at. ``partial``: not everything was reached yet."""

    memory: Memory
    partial: bool = False
    outside: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    looked: Looked = field(default_factory=Looked)


class Walk:
    """One walk. ``mounts``: paths below the root that are other mounts. :meth:`run` raises OSError when the root
    itself cannot be looked at."""

    def __init__(
        self,
        root: str,
        memory: Memory,
        mounts: Collection[str] = (),
        budget: Optional[Budget] = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._root = root
        self._before = memory
        self._mounts = frozenset(mounts)
        self._budget = budget or Budget()
        self._now_ns = now_ns
        self._after: dict[str, SeenFolder] = {}
        self._entered: set[tuple[int, int]] = set()
        self._gone: set[str] = set()
        self._unread: list[str] = []
        self._result = Walked(Memory(number=memory.number + 1))
        many = sum(len(folder.files) for folder in memory.folders.values()) > FEW_FILES
        self._turn: Optional[int] = memory.number % TURNS if many else None

    def run(self) -> Walked:
        with os.scandir(self._root):  # whatever is wrong with the root is said before anything else
            pass
        waiting = deque([*self._before.pending, ""])
        done: set[str] = set()
        while waiting and not self._budget.spent():
            folder = waiting.popleft()
            if folder not in done:
                done.add(folder)
                waiting.extend(below for below in self._enter(folder) if below not in done)
        left = [folder for folder in dict.fromkeys([*waiting, *self._unread]) if folder not in self._gone]
        result = self._result
        result.memory.pending = left
        result.memory.folders = self._kept(whole=not waiting)
        unknown = [folder for folder in left if folder not in result.memory.folders]
        result.partial = bool(unknown or self._unread)
        return result

    def _kept(self, whole: bool) -> dict[str, SeenFolder]:
        """What this walk saw, and of the walk before what was not reached now and is not known to be gone."""
        lost = tuple(self._result.problems)
        for name, folder in self._before.folders.items():
            if name in self._after or self._is_gone(name):
                continue
            if not whole or any(name == one or is_above(one, name) for one in lost):
                self._after[name] = folder
        return self._after

    def _is_gone(self, name: str) -> bool:
        parts = name.split("/") if self._gone else []
        return any("/".join(parts[:n]) in self._gone for n in range(1, len(parts) + 1))

    def _enter(self, folder: str) -> list[str]:
        """Look at one folder; the folders in it."""
        self._budget.used += 1
        self._result.looked.folders += 1
        path = self._path(folder)
        try:
            found = os.stat(path, follow_symlinks=folder == "")  # noqa: PTH116 (a Path costs more than the call)
            if not stat.S_ISDIR(found.st_mode):
                raise FileNotFoundError
            identity = (found.st_dev, found.st_ino)
            if identity in self._entered:
                return []
            self._entered.add(identity)
            before = self._before.folders.get(folder)
            seen = self._listing(folder, path, found, before)
        except (FileNotFoundError, NotADirectoryError):
            self._gone.add(folder)
            return []
        except OSError as error:
            self._result.problems[folder] = error.strerror or str(error)
            return []
        self._after[folder] = seen
        self._look(folder, path, seen, before)
        return [_join(folder, name) for name in seen.folders]

    def _listing(self, folder: str, path: str, found: os.stat_result, before: Optional[SeenFolder]) -> SeenFolder:
        mark = mark_of(found, self._now_ns())
        if before is not None and before.mark is not None and before.mark == mark:
            return SeenFolder(mark, before.folders, dict(before.files))
        self._result.looked.listed += 1
        folders: list[str] = []
        files: dict[str, SeenFile] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                self._budget.used += 1
                name = entry.name
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                except OSError as error:  # one bad entry hides none of the others
                    self._result.problems[_join(folder, name)] = error.strerror or str(error)
                    mark = None  # listed again, whether or not the folder changes
                    continue
                if is_folder:
                    if walks_into(name) and f"{path}/{name}" not in self._mounts:
                        folders.append(name)
                    continue
                kind = kind_of(name)
                if kind is not None and (not entry.is_symlink() or self._stays_inside(path, name)):
                    files[name] = SeenFile(kind, _NEVER, None)
        if before is not None:
            here = set(folders)
            gone = (_join(folder, name) for name in before.folders if name not in here)
            self._gone.update(path for path in gone if path not in self._result.problems)
        return SeenFolder(mark, sorted(folders), files)

    def _stays_inside(self, path: str, name: str) -> bool:
        """Whether a link's own words lead to something below the root that is on no other mount."""
        try:
            target = os.path.normpath(os.path.join(path, os.readlink(f"{path}/{name}")))  # noqa: PTH115, PTH118
        except OSError:
            return False
        return is_within(target, self._root) and not any(is_within(target, mount) for mount in self._mounts)

    def _look(self, folder: str, path: str, seen: SeenFolder, before: Optional[SeenFolder]) -> None:
        """Ask for every file's size, and read those that changed."""
        old = before.files if before is not None else {}
        rests = self._turn is not None and zlib.crc32(os.fsencode(folder)) % TURNS != self._turn
        for name, file in list(seen.files.items()):
            known = old.get(name)
            if rests and seen.mark is not None and known is not None and _is_whole(known):
                seen.files[name] = known
                continue
            looked = self._file(f"{path}/{name}", file.kind, known)
            if looked is None:
                del seen.files[name]
                continue
            seen.files[name] = looked
            if looked.verdict is None and (not self._unread or self._unread[-1] != folder):
                self._unread.append(folder)
        needed = {
            other
            for file in seen.files.values()
            if file.verdict is not None
            for other, _ in file.verdict.needs
            if other not in seen.files
        }
        if needed:
            self._result.outside[folder] = self._sizes(path, needed)

    def _file(self, path: str, kind: str, known: Optional[SeenFile]) -> Optional[SeenFile]:
        self._result.looked.asked += 1
        try:
            found = os.stat(path)  # noqa: PTH116
            if not stat.S_ISREG(found.st_mode):
                return None
            mark = (found.st_size, found.st_mtime_ns, found.st_ino)
            if known is not None and known.mark == mark and known.verdict is not None:
                return known
            if self._budget.spent():
                return SeenFile(kind, mark, None)
            self._result.looked.read += 1
            verdict = integrity.look(path, kind)
        except FileNotFoundError:
            # In a hub cache every file is a link: one that leads nowhere is a part that was thrown away.
            lost = hub_name(os.path.dirname(path)) is not None and os.path.lexists(path)  # noqa: PTH120
            return SeenFile(kind, _NEVER, _LEADS_NOWHERE) if lost else None
        except OSError as error:
            verdict = integrity.Verdict(integrity.UNKNOWN, f"cannot be read: {error.strerror}")
            return SeenFile(kind, _NEVER, verdict)
        settled = found.st_mtime_ns < self._now_ns() - SETTLED_NS
        return SeenFile(kind, mark if settled else (found.st_size, *_NEVER[1:]), verdict)

    def _sizes(self, path: str, names: Collection[str]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name in names:
            try:
                found = os.stat(f"{path}/{name}")  # noqa: PTH116
            except (OSError, ValueError):
                continue
            if stat.S_ISREG(found.st_mode):
                sizes[name] = found.st_size
        return sizes

    def _path(self, folder: str) -> str:
        return f"{self._root}/{folder}" if folder else self._root


def _join(folder: str, name: str) -> str:
    """A path below the root."""
    return f"{folder}/{name}" if folder else name


def _is_whole(file: SeenFile) -> bool:
    return file.verdict is not None and file.verdict.state == integrity.COMPLETE


def is_above(folder: str, path: str) -> bool:
    """Whether ``path`` is ``folder`` or below it; both are below one root."""
    return folder == "" or path == folder or path.startswith(f"{folder}/")
