"""The kernel's words on NVIDIA cards: which of them condemn one, and for how long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.detector import Cards
from runtime.agent.hardware.kmsg import KernelLog
from runtime.agent.hardware.nvidia import with_xids
from runtime.agent.hardware.xid import HOLD_COLLECTIONS, Xid, XidWatch, parse_xid
from runtime.protocol.hardware import Gpu, GpuDetection
from runtime.protocol.nodes import EventKind
from runtime.server.services.cards import Cards as Health
from runtime.server.services.cards import Limits, Observation, advance

FALLEN = "NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "xid"),
    [
        (
            FALLEN.format(bus=0x4C),
            Xid("00000000:4C:00.0", 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        ),
        ("NVRM: Xid (PCI:0008:01:00): 119, Timeout", Xid("00000008:01:00.0", 119, "Timeout")),
        ("[ 12.3] NVRM: Xid (0000:17:00): 13, Graphics Exception", Xid("00000000:17:00.0", 13, "Graphics Exception")),
        ("NVRM: Xid (PCI:0000:17:00): 48", Xid("00000000:17:00.0", 48, "")),
        ("NVRM: GPU at PCI:0000:17:00: GPU-1", None),
        ("usb 1-1: 79, new device", None),
        ("", None),
    ],
)
def test_lines_of_the_kernel_log(line: str, xid: Optional[Xid]) -> None:
    assert parse_xid(line) == xid


def cards_of(count: int) -> list[Gpu]:
    return [Gpu(f"GPU-{index}", "nvidia", index, pci_bus_id=f"00000000:{index:02X}:00.0") for index in range(count)]


@pytest.mark.case("FC-044")
def test_faults_of_programs_condemn_no_card_and_a_card_that_answers_again_comes_back() -> None:
    """What happened: a bad memory access in a program took its card out for ever."""
    gpus = cards_of(5)
    lines = [[], [f"NVRM: Xid (PCI:0000:{at:02x}:00): {code}, pid=1" for at, code in enumerate((13, 31, 43, 45, 79))]]
    watch = XidWatch(lambda: lines.pop(0) if lines else [])
    health, told = Health(), []
    failed: list[list[Any]] = []
    for _ in range(12):
        watch.look()
        seen = with_xids(Cards(gpus), gpus, watch)
        failed.append([failure.uuid for failure in seen.failures])
        detection = [GpuDetection("nvidia", True, loss_detection="full")]
        health, changes = advance(health, Observation(seen.gpus, seen.failures, None, detection), Limits())
        told += [(change.kind, change.uuid) for change in changes]
    assert failed == [[], *[["GPU-4"]] * HOLD_COLLECTIONS, *[[]] * (11 - HOLD_COLLECTIONS)]
    assert told == [
        (EventKind.GPU_SUSPECT, "GPU-4"),
        (EventKind.GPU_LOST, "GPU-4"),
        (EventKind.GPU_RETURNED, "GPU-4"),
    ]


def test_what_the_log_held_before_the_start_condemns_nobody_and_is_told() -> None:
    watch = XidWatch(lambda: [FALLEN.format(bus=1), "NVRM: Xid (PCI:0000:00:00): 31, pid=1"])
    gpus = cards_of(2)
    watch.look()
    seen = with_xids(Cards(gpus), gpus, watch)
    assert seen.failures == []
    assert [(note.uuid, note.code, note.text[:7]) for note in seen.notes] == [("GPU-1", "xid", "Xid 79:")]


def test_a_fallen_card_that_is_not_listed_any_more_keeps_its_place() -> None:
    gpus = cards_of(3)
    lines = [[], [FALLEN.format(bus=1)]]
    watch = XidWatch(lambda: lines.pop(0))
    watch.look()
    watch.look()
    seen = with_xids(Cards([gpus[0], gpus[2]]), gpus, watch)
    assert sorted(gpu.uuid for gpu in seen.gpus) == ["GPU-0", "GPU-1", "GPU-2"]
    assert [failure.uuid for failure in seen.failures] == ["GPU-1"]


def test_a_log_is_read_on_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    log = KernelLog(pipe)
    assert list(log.lines()) == []  # nobody writes yet
    writer = os.open(pipe, os.O_WRONLY)
    try:
        os.write(writer, b"4,17,200,-;NVRM: one; two\n SUBSYSTEM=pci\n DEVICE=+pci\n")
        assert list(log.lines()) == ["NVRM: one; two"]
        assert list(log.lines()) == []
        os.write(writer, b"4,18,201,-;\xff three\n")
        assert list(log.lines()) == ["\ufffd three"]
    finally:
        os.close(writer)
        log.close()


def test_a_log_that_may_not_be_read_has_no_lines(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert list(log.lines()) == [] and list(log.lines()) == []
