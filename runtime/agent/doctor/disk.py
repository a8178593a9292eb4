"""Room where the agent and the engine write: bytes, inodes, and whether anything can be written at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from runtime.agent.deadline import Late, within
from runtime.agent.doctor.findings import Finding, Point, failure, finding, ok, unknown, warning
from runtime.agent.hardware.space import space_of
from runtime.agent.tasks.room import PULL_INODES, WORK_INODES
from runtime.protocol.causes import root_cause

OPT = "/opt/heterofleet"
PLACE_S = 4.0
OWN_MIB = 64
"""Below this the state folder or a release cannot be relied on to be written; twice as much is a warning."""


@dataclass(frozen=True)
class Place:
    """One folder, as its file system tells. ``free_inodes`` None: the file system does not count them.
    ``needs_mib``: with less nothing works there. ``runs``: programs are started from it."""

    what: str
    path: str
    needs_mib: int
    runs: bool = False
    error: str = ""
    free_mib: Optional[int] = None
    free_inodes: Optional[int] = None
    read_only: bool = False
    no_exec: bool = False


def look_at_disks(state_dir: str, engine_root: Optional[str], disk_min_free_mib: int) -> list[Place]:
    """The state folder, the releases and the engine's images; the engine's only when it told where they are."""
    places = [Place("state folder", state_dir, OWN_MIB), Place("releases", OPT, OWN_MIB, runs=True)]
    if engine_root is not None:
        places.append(Place("images", engine_root, disk_min_free_mib))
    return [_measured(place) for place in places]


def _measured(place: Place) -> Place:
    path = Path(place.path)
    try:
        numbers = within(PLACE_S, lambda: os.statvfs(_nearest(path)))
    except Late:
        return replace(place, error=f"did not answer in {PLACE_S:g} s")
    except OSError as error:
        return replace(place, error=root_cause(error))
    space = space_of(numbers)
    return replace(
        place,
        free_mib=space.free_mib,
        free_inodes=space.free_inodes,
        read_only=bool(numbers.f_flag & os.ST_RDONLY),
        no_exec=bool(numbers.f_flag & os.ST_NOEXEC),
    )


def _nearest(path: Path) -> Path:
    """The folder itself, or the one that it would be made in."""
    for folder in (path, *path.parents):
        try:
            if folder.is_dir():
                return folder
        except OSError:
            continue  # closed to this user; what holds it is on the way up
    return Path("/")


def judge_disk(places: Sequence[Place], engine_answers: bool) -> Finding:
    points: list[Point] = []
    for place in places:
        points += _judge_place(place)
    if not engine_answers:
        points.append(unknown("where the engine keeps its images is not known: no engine answers", "see engine"))
    return finding("disk", points)


def _judge_place(place: Place) -> list[Point]:
    where = f"{place.path} ({place.what})"
    if place.error:
        return [failure(f"{where}: {place.error}", "a folder that answers", "look at its disk or file server")]
    free, inodes = place.free_mib, place.free_inodes
    if free is None:
        return [unknown(f"{where}: how much is free there is not known", f"df {place.path}")]
    points: list[Point] = []
    if place.read_only:
        points.append(failure(f"{where} is mounted read-only", "a writable file system", "look at dmesg, then remount"))
    if place.runs and place.no_exec:
        words = f"{where} is mounted noexec: the agent cannot start from it"
        points.append(failure(words, "a file system that programs start from", "mount it without noexec"))
    advice = f"free space on the file system of {place.path}"
    if place.what == "images":
        advice += " (docker system df shows what holds it); disk_min_free_mib is the limit"
    if free < place.needs_mib:
        points.append(failure(f"{where} has {free} MiB free", f"{place.needs_mib} MiB", advice))
    elif free < 2 * place.needs_mib:
        words = f"{where} has {free} MiB free, little above the limit"
        points.append(warning(words, f"{2 * place.needs_mib} MiB", advice))
    if inodes is not None and inodes < PULL_INODES:
        severity = failure if inodes < WORK_INODES or place.what == "images" else warning  # no pull begins with fewer
        words = f"{where} has {inodes} inodes free"
        points.append(severity(words, f"{PULL_INODES}", f"remove small files on the file system of {place.path}"))
    return points or [ok(f"{where} has {free} MiB free")]
