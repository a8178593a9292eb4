"""A real control plane, a real agent and this machine's engine: what the task is told, and what the server is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.fence.yard import Alarm
from tests.integration.waiting import until
from tests.unit.checkpoints import layouts as made

VARIABLE = "HETEROFLOW_RESUME_FROM_CHECKPOINT"


@pytest.fixture
def data(agent: Agent, tmp_path: Path) -> Path:
    """A folder that the node allows as a volume."""
    folder = agent.folder / "data" / tmp_path.name
    (folder / "run" / "ck").mkdir(parents=True)
    return folder


def volume(folder: Path, target: str) -> dict[str, Any]:
    return {"host": str(folder), "container": target, "read_only": False}


def events(plane: Plane, task_id: str) -> list[dict[str, Any]]:
    return list(plane.call("GET", f"/events?kind=checkpoint_resume&task={task_id}")[1]["events"])


def event(plane: Plane, task_id: str) -> dict[str, Any]:
    (found,) = until("the conclusion is an event", lambda: events(plane, task_id))
    return dict(found)


def say(agent: Agent, *volumes: dict[str, Any], **spec: Any) -> str:
    """A task that prints what it was told."""
    return agent.submit("env", VARIABLE, kind="training", volumes=list(volumes), **spec)


LAYOUTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "transformers": (lambda ck: made.transformers(ck, 1000), "checkpoint-1000"),
    "pytorch": (lambda ck: made.distributed(ck / "step-1000"), "step-1000"),
    "tensorflow": (lambda ck: made.state(ck, made.tensorflow(ck, 1000)), "model.ckpt-1000"),
    "deepspeed": (lambda ck: (made.deepspeed(ck, 1000), made.latest(ck, "global_step1000")), "global_step1000"),
    "megatron": (lambda ck: (made.megatron(ck, 1000), made.tracker(ck, "1000")), "iter_0001000"),
    "marker": (lambda ck: made.marked(ck, 1000), "step_1000"),
}


def test_each_framework_s_task_is_told_by_its_own_path(plane: Plane, agent: Agent, data: Path) -> None:
    tasks = {}
    for framework, (build, _) in LAYOUTS.items():
        build(data / "run" / framework)
        where = {"checkpoint_path": f"/data/run//{framework}/", "checkpoint_framework": framework}
        tasks[framework] = say(agent, volume(data, "/data"), **where)
    for framework, task_id in tasks.items():
        path = f"/data/run/{framework}/{LAYOUTS[framework][1]}"
        task = plane.ended(task_id)
        assert (task["status"], task["log_tail"]) == ("completed", f"{VARIABLE}={path}\n"), task
        told = event(plane, task_id)
        assert (told["code"], told["attempt"], told["node_id"]) == ("found", 1, agent.node_id)
        assert told["detail"] == f"goes on from {path} ({framework}, step 1000)"


def test_nothing_proven_is_from_scratch_and_said(plane: Plane, agent: Agent, data: Path) -> None:
    folder = made.transformers(data / "run" / "ck", 1000)
    (folder / "trainer_state.json").unlink()
    task_id = say(agent, volume(data, "/data"), checkpoint_path="/data/run/ck")
    assert plane.ended(task_id)["log_tail"] == f"unset: {VARIABLE}\n"
    told = event(plane, task_id)
    assert told["code"] == "none"
    assert told["detail"] == (
        "starts from scratch: no checkpoint is proven complete; "
        "rejected: /data/run/ck/checkpoint-1000: trainer_state.json is missing"
    )


def test_a_path_that_is_not_there_yet_is_from_scratch(plane: Plane, agent: Agent, data: Path) -> None:
    task_id = say(agent, volume(data, "/data"), checkpoint_path="/data/not/yet")
    assert plane.ended(task_id)["log_tail"] == f"unset: {VARIABLE}\n"
    assert event(plane, task_id)["detail"] == "starts from scratch: no checkpoint is proven complete"


def test_what_the_operator_says_is_passed_on_unseen(plane: Plane, agent: Agent, data: Path) -> None:
    made.transformers(data / "run" / "ck", 1000)
    said = "s3://bucket/step 7"
    task_id = say(agent, volume(data, "/data"), checkpoint_path="/data/run/ck", resume_from_checkpoint=said)
    assert plane.ended(task_id)["log_tail"] == f"{VARIABLE}={said}\n"
    assert events(plane, task_id) == []
    assert not [path for _, path, _ in agent.proxy.seen if path == f"/api/v1/tasks/{task_id}/checkpoint-resume"]


def test_a_volume_in_a_volume_is_what_the_task_sees_there(plane: Plane, agent: Agent, data: Path) -> None:
    """A checkpoint below the place where another volume is mounted over it is not there for the task."""
    made.transformers(data / "run" / "ck", 1000)
    made.transformers(data / "run" / "ck", 2000)
    made.transformers(data / "inner", 500)
    (data / "cover").mkdir()
    outer, inner = volume(data / "run", "/run-7"), volume(data / "inner", "/run-7/inner")
    task_id = say(agent, outer, inner, checkpoint_path="/run-7/inner")
    assert plane.ended(task_id)["log_tail"] == f"{VARIABLE}=/run-7/inner/checkpoint-500\n"
    cover = volume(data / "cover", "/run-7/ck/checkpoint-2000")
    task_id = say(agent, outer, cover, checkpoint_path="/run-7/ck")
    assert plane.ended(task_id)["log_tail"] == f"{VARIABLE}=/run-7/ck/checkpoint-1000\n"
    assert "checkpoint-2000: another volume is mounted over it" in event(plane, task_id)["detail"]


def test_a_link_to_the_checkpoints_is_not_followed(plane: Plane, agent: Agent, data: Path) -> None:
    made.transformers(data / "run" / "ck", 1000)
    (data / "ck").symlink_to("run/ck")
    task_id = say(agent, volume(data, "/data"), checkpoint_path="/data/ck")
    assert plane.ended(task_id)["log_tail"] == f"unset: {VARIABLE}\n"
    assert "links are not followed" in event(plane, task_id)["detail"]


@pytest.mark.case("FC-037")
def test_the_agent_reads_nothing_outside_the_volume(plane: Plane, agent: Agent, data: Path, tmp_path: Path) -> None:
    """Newer checkpoints lie outside, and links, a pointer and a pickle lead to them; a trap there would tell."""
    ck, out = data / "run" / "ck", tmp_path / "out"
    made.transformers(ck, 100)
    made.transformers(out, 900)
    made.deepspeed(ck, 200)
    made.latest(ck, str(out))
    made.put(ck / "step-300" / ".metadata", made.metadata([f"{out}/checkpoint-900/optimizer.pt"]))
    (ck / "checkpoint-900").symlink_to(out / "checkpoint-900")
    (made.transformers(ck, 800) / "optimizer.pt").unlink()
    (ck / "checkpoint-800" / "optimizer.pt").symlink_to(out / "checkpoint-900" / "optimizer.pt")
    alarm = Alarm([out, *sorted(out.rglob("*"))])
    try:
        task_id = say(agent, volume(data, "/data"), checkpoint_path="/data/run/ck")
        assert plane.ended(task_id)["log_tail"] == f"{VARIABLE}=/data/run/ck/checkpoint-100\n"
        assert alarm.rung() == []
        assert (out / "checkpoint-900" / "optimizer.pt").read_bytes() and alarm.rung(), "the trap is a real one"
    finally:
        alarm.close()
    detail = event(plane, task_id)["detail"]
    for name in ("checkpoint-900", "checkpoint-800", "step-300", "latest"):
        assert f"/data/run/ck/{name}: " in detail
    assert str(out) not in detail


@pytest.mark.parametrize("fault", [503, "drop"])
def test_no_start_waits_until_the_server_was_told(plane: Plane, agent: Agent, data: Path, fault: int | str) -> None:
    """It is told as soon as the server listens, though the task has ended by then."""
    made.transformers(data / "run" / "ck", 1000)
    away = threading.Event()
    asked: list[str] = []

    def rule(method: str, path: str, body: Any) -> str | int | None:
        if not path.endswith("/checkpoint-resume"):
            return None
        asked.append(path)
        return None if away.is_set() or (fault == "drop" and len(asked) > 1) else fault

    agent.proxy.rule = rule
    try:
        task_id = say(agent, volume(data, "/data"), checkpoint_path="/data/run/ck")
        assert plane.ended(task_id)["log_tail"] == f"{VARIABLE}=/data/run/ck/checkpoint-1000\n"
        agent.gone(task_id)
        if fault == 503:
            assert events(plane, task_id) == []
        away.set()
        detail = event(plane, task_id)["detail"]
        assert detail == "goes on from /data/run/ck/checkpoint-1000 (transformers, step 1000)"
        until("it was asked again", lambda: len(asked) > 1)
        assert len(events(plane, task_id)) == 1
    finally:
        agent.proxy.rule = lambda method, path, body: None


def test_a_checkpoint_path_outside_every_volume_is_refused(plane: Plane, agent: Agent, data: Path) -> None:
    body = {"name": "t", "image": "x", "volumes": [volume(data, "/data")], "checkpoint_path": "/database/ck"}
    status, answer = plane.call("POST", "/tasks", body)
    assert (status, answer["code"]) == (422, "invalid_task")
    assert [fault["path"] for fault in answer["errors"]] == ["checkpoint_path"]


def test_a_volume_that_cannot_be_written_to_is_warned_of(plane: Plane, agent: Agent, data: Path) -> None:
    task_id = say(agent, {"host": str(data), "container": "/data"}, checkpoint_path="/data/run")
    assert [warning["code"] for warning in plane.ended(task_id)["warnings"]] == ["checkpoint_read_only"]
