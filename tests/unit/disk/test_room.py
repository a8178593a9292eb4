"""Whether there is room: bytes and inodes apart, and what nobody knows is neither full nor free."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.spare import Spare
from runtime.agent.tasks import room
from runtime.agent.tasks.images import classify_pull_error, classify_start_error
from runtime.agent.tasks.room import Room
from runtime.protocol.reasons import CLASS_OF, Reason, ReasonClass


@pytest.mark.case("FC-032")
@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Room("/d", 5000, 100_000), None),
        (Room("/d", 2048, 10_000), None),
        (Room("/d", 2047, 100_000), ["2047 MiB free, 2048 MiB are wanted"]),
        (Room("/d", 33_000, 0), ["0 inodes free, 10000 are wanted"]),
        (Room("/d", 12, 3), ["12 MiB free", "3 inodes free"]),
        (Room("/d", 5000, None), None),  # btrfs counts none
        (None, None),
    ],
)
def test_a_disk_is_full_when_bytes_or_inodes_are_gone(found: Room | None, words: list[str] | None) -> None:
    """Docker said that no space was left on a disk with 33 GB free: all inodes were taken by image layers."""
    said = room.shortage(found, 2048, room.PULL_INODES)
    assert (said is None) == (words is None)
    assert all(word in (said or "") for word in words or ())


def statvfs(**numbers: Any) -> Any:
    base = {"f_blocks": 1 << 21, "f_bavail": 1 << 20, "f_frsize": 4096, "f_files": 1000, "f_favail": 500}
    return lambda path: SimpleNamespace(**{**base, **numbers})


def test_free_is_what_is_left_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", statvfs())
    assert room.look("/d") == Room("/d", 4096, 500)
    monkeypatch.setattr(os, "statvfs", statvfs(f_files=0, f_favail=0))
    assert room.look("/d") == Room("/d", 4096, None)


def test_what_cannot_be_looked_at_is_unknown(tmp_path: Path) -> None:
    assert room.look(None) is None
    assert room.look("") is None
    assert room.look(str(tmp_path / "not" / "there")) is None
    assert room.before_pull(str(tmp_path / "nothing"), 1 << 40) is None


def test_a_node_that_allows_less_goes_as_low_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", statvfs(f_bavail=30 * 256))
    assert room.to_work("/d", 2048) is not None
    assert room.to_work("/d", 10) is None


@pytest.mark.parametrize(
    "text",
    [
        "write /var/lib/docker/tmp/GetImageBlob1: no space left on device",
        "failed to register layer: Error processing tar file(exit status 1): write /x: no space left on device",
        "failed to register layer: ApplyLayer exit status 1 stdout:  stderr: mkdir /a: No Space Left On Device",
        "mkdir /var/lib/docker/overlay2/ab-init: no space left on device",
        "failed to extract layer sha256:ab: write /x: disk quota exceeded: unknown",
        "failed to copy: failed to send write: write /var/lib/containerd/ingest/data: no space left on device: unknown",
        "devmapper: Thin Pool has 117 free data blocks which is less than minimum required 163840 free data blocks",
        "open /var/lib/docker/containers/x/.tmp-config.v2.json: ENOSPC",
        "not enough space on the disk",
    ],
)
def test_a_full_disk_in_the_words_of_engines(text: str) -> None:
    for verdict in (classify_pull_error(text), classify_start_error(text)):
        assert (verdict.reason, verdict.permanent) == (Reason.DISK_FULL, True)
    assert CLASS_OF[Reason.DISK_FULL] is ReasonClass.INFRASTRUCTURE


@pytest.mark.parametrize(
    "text",
    [
        "OCI runtime create failed: mkdir /sys/fs/cgroup/memory/docker/ab: cgroup: no space left on device: unknown",
        "runc: write /sys/fs/cgroup/cpuset/docker/ab/cpuset.cpus: no space left on device",
        "inotify_add_watch /run: no space left on device",
        "join session keyring: create session key: disk quota exceeded",
    ],
)
def test_what_the_kernel_calls_a_full_disk_and_is_none(text: str) -> None:
    assert classify_start_error(text).reason is Reason.START_FAILED


def test_what_may_be_removed_is_said_with_numbers() -> None:
    assert "3 image(s) without a name, up to 120 MiB (docker image prune)" in Spare(3, 120, 0).in_words()
    assert "2 container(s) that are not of this fleet" in Spare(0, 0, 2).in_words()
    assert "docker system df" in Spare(0, 0, 0).in_words()
