"""Whose the processes are that hold cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.drivers.driver import LABEL_CONTROL_PLANE, LABEL_NODE, LABEL_TASK, Seen
from runtime.agent.hardware.holders import PATIENCE, Places, place_in
from runtime.agent.tasks.holding import Known, owned
from runtime.protocol.hardware import Gpu, GpuHolder, GpuStats

ONE, OTHER, NODE = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.parametrize(
    ("cgroup", "own", "place"),
    [
        (f"0::/system.slice/docker-{ONE}.scope\n", "0::/system.slice/heterofleet-agent.service\n", ONE),
        (f"4:memory:/docker/{ONE}\n0::/\n", "", ONE),
        (f"0::/kubepods/pod1/cri-containerd-{ONE}.scope\n", "", ONE),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "", None),
        ("", "", None),
        # The agent's own machine is a container.
        (f"0::/docker/{NODE}/system.slice/sshd.service\n", f"0::/docker/{NODE}/system.slice/x.service", None),
        (f"0::/docker/{NODE}/docker/{ONE}\n", f"0::/docker/{NODE}/system.slice/x.service", ONE),
        ("0::/system.slice/heterofleet-task-train-7.service\n", "", "heterofleet-task-train-7"),
        ("0::/\n3:cpu:/heterofleet-tasks/01J-abc\n", "", "01J-abc"),
        ("0::/system.slice/heterofleet-agent.service\n", "", None),
    ],
)
def test_where_a_process_runs(cgroup: str, own: str, place: Optional[str]) -> None:
    assert place_in(cgroup, own) == place


def proc(tmp_path: Path, **groups: str) -> Path:
    for pid, text in groups.items():
        folder = tmp_path / pid.lstrip("p")
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(text)
    return tmp_path


def test_a_process_that_the_kernel_does_not_show_is_believed_only_when_it_stays(tmp_path: Path) -> None:
    places = Places(proc(tmp_path, pself="0::/\n", p8=f"0::/docker/{ONE}\n"))
    holders = [GpuHolder("GPU-0", 7, ours=False), GpuHolder("GPU-0", 8, ours=False)]
    found = [places.of(holders) for _ in range(PATIENCE)]
    assert [one[0].ours for one in found] == [None] * (PATIENCE - 1) + [False]
    assert all(one[1] == GpuHolder("GPU-0", 8, container_id=ONE, ours=False) for one in found)
    places.of([])
    assert places.of(holders)[0].ours is None


@pytest.mark.parametrize(
    ("used", "total", "sliced", "holders", "told"),
    [
        (60_000, 81_559, False, [], True),
        (60_000, 81_559, False, [GpuHolder("GPU-0", 1)], False),
        (60_000, 81_559, True, [], False),
        (700, 81_559, False, [], False),
        (3_000, 81_559, False, [], False),
        (None, 81_559, False, [], False),
        (2_000, None, False, [], True),
    ],
)
def test_memory_that_no_process_holds(
    used: Any, total: Any, sliced: bool, holders: list[GpuHolder], told: bool
) -> None:
    """``told`` after a while: memory and processes are read one after the other."""
    gpus = [Gpu("GPU-0", "nvidia", memory_total_mib=total)]
    gpus += [Gpu("MIG-1", "nvidia", parent_uuid="GPU-0")] if sliced else []
    places = Places()
    stats = [GpuStats("GPU-0", memory_used_mib=used)]
    found = [places.without_process(gpus, stats, holders) for _ in range(PATIENCE)]
    assert found[:-1] == [[]] * (PATIENCE - 1)
    assert found[-1] == ([GpuHolder("GPU-0", memory_mib=used, ours=False)] if told else [])


def seen(container: str, control_plane: str = "cp", node: str = "n1", name: str = "task-x") -> Seen:
    labels = {LABEL_CONTROL_PLANE: control_plane, LABEL_NODE: node, LABEL_TASK: "x"}
    return Seen(container, name, "running", labels)


INSIDE = GpuHolder("GPU-0", 7, container_id=ONE, ours=False)


@pytest.mark.parametrize(
    ("containers", "complete", "listed_at", "control_plane", "ours", "task"),
    [
        ([seen(ONE)], True, 5.0, "cp", True, "x"),
        ([seen(ONE, control_plane="older")], True, 5.0, "cp", False, "x"),
        ([seen(ONE, node="n2")], True, 5.0, "cp", False, "x"),
        ([seen(ONE)], True, 5.0, None, None, "x"),
        ([seen(OTHER)], True, 15.0, "cp", False, None),
        ([seen(OTHER)], True, 5.0, "cp", None, None),
        ([], False, 15.0, "cp", None, None),
        ([], True, None, "cp", False, None),
    ],
)
def test_whose_a_container_is(
    containers: list[Seen], complete: bool, listed_at: Any, control_plane: Any, ours: Any, task: Any
) -> None:
    """Seen first at 10: a listing from before it cannot tell that a container is nobody's."""
    found = owned(INSIDE, Known(containers, complete, listed_at), 10.0, control_plane, "n1")
    assert (found.ours, found.task_id) == (ours, task)


def test_a_plain_process_is_found_by_the_name_of_its_unit() -> None:
    holder = GpuHolder("GPU-0", 7, container_id="heterofleet-task-x", ours=False)
    found = owned(holder, Known([seen("record-1", name="heterofleet-task-x")], True, 1.0), 10.0, "cp", "n1")
    assert (found.ours, found.container_id) == (True, "record-1")


def test_what_keeps_no_task_off_a_card_stays_so() -> None:
    display = GpuHolder("GPU-0", 7, container_id=ONE, ours=None)
    assert owned(display, Known([seen(ONE, control_plane="o")], True, 15.0), 10.0, "cp", "n1").ours is None
    assert owned(GpuHolder("GPU-0", 7, ours=None), Known([], True, 15.0), 10.0, "cp", "n1").ours is None
