"""Whose the processes are that hold cards: what the kernel says of where each runs, and memory that none holds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional

from runtime.protocol.hardware import Gpu, GpuHolder, GpuStats

PROC = Path("/proc")

PATIENCE = 3
"""Collections in a row before a process that the kernel does not know, or memory that no process holds, is believed:
processes and memory are read one after the other, and a process that ends is gone from one before the other."""

ORPHANED_MIB = 1024
ORPHANED_SHARE = 0.05
"""What more than both is in use on a card without any process: drivers keep a few hundred MiB to themselves."""

_CONTAINER = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"(?:^|/)(heterofleet-task-[^/]+?)(?:\.service)?(?=/|$)")
_GROUP = re.compile(r"/heterofleet-tasks/([^/\s]+)")


def place_in(cgroup: str, own: str = "") -> Optional[str]:
    """What of ours, or which container, a process runs in, by its ``/proc/PID/cgroup``: a container's id, a task's
    unit, or the name of its control group; None: in neither. ``own``: the reader's, whose containers are around both.
    """
    task = _UNIT.search(cgroup) or _GROUP.search(cgroup)
    if task is not None:
        return task.group(1)
    around = set(_CONTAINER.findall(own))
    inside = [found for line in cgroup.splitlines() for found in _CONTAINER.findall(line) if found not in around]
    return inside[-1] if inside else None


class Places:
    """Fills in ``container_id``. One for each detector; asked once a collection."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._unseen: dict[int, int] = {}
        self._alone: dict[str, int] = {}

    def of(self, holders: Iterable[GpuHolder]) -> list[GpuHolder]:
        """With where each runs. ``ours`` is None for a process that the kernel does not show, until it has been so
        for long enough."""
        own = self._cgroup("self") or ""
        found: list[GpuHolder] = []
        unseen: dict[int, int] = {}
        for holder in holders:
            if holder.pid is None:
                found.append(holder)
                continue
            cgroup = self._cgroup(str(holder.pid))
            if cgroup is None:
                unseen[holder.pid] = self._unseen.get(holder.pid, 0) + 1
                doubted = unseen[holder.pid] < PATIENCE
                found.append(dataclasses.replace(holder, ours=None) if doubted else holder)
            else:
                found.append(dataclasses.replace(holder, container_id=place_in(cgroup, own)))
        self._unseen = unseen
        return found

    def without_process(
        self, gpus: Sequence[Gpu], stats: Sequence[GpuStats], holders: Sequence[GpuHolder]
    ) -> list[GpuHolder]:
        """An entry for each whole card whose memory is in use though no process holds it."""
        slices = {gpu.parent_uuid for gpu in gpus}
        held = {holder.uuid for holder in holders} | slices
        used = {one.uuid: one.memory_used_mib for one in stats}
        alone = {gpu.uuid: used.get(gpu.uuid) for gpu in gpus if gpu.parent_uuid is None and gpu.uuid not in held}
        totals: Mapping[str, Optional[int]] = {gpu.uuid: gpu.memory_total_mib for gpu in gpus}
        self._alone = {
            uuid: self._alone.get(uuid, 0) + 1
            for uuid, size in alone.items()
            if size is not None and size > max(ORPHANED_MIB, ORPHANED_SHARE * (totals[uuid] or 0))
        }
        return [
            GpuHolder(uuid, memory_mib=alone[uuid], ours=False)
            for uuid, times in self._alone.items()
            if times >= PATIENCE
        ]

    def _cgroup(self, pid: str) -> Optional[str]:
        try:
            return (self._proc / pid / "cgroup").read_text("utf-8", "replace")
        except OSError:
            return None
