"""From a task to the place of its checkpoints and back to what is told, as tables."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from runtime.agent.checkpoints import Checkpoint, Look, Rejected
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.tasks import resuming
from runtime.agent.tasks.checks import CheckFailed
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.tasks.resuming import Place, Resuming, conclusion, place_of
from runtime.protocol.problems import Fault, ProblemDocument
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Kind
from runtime.protocol.tasks import TaskSpec, Volume
from runtime.server.services.tasks.check import check
from tests.unit.checkpoints import layouts as made

RECORD = ClaimRecord(Key("u-1", 2), "train", "cp", "token", Stage.CLAIMED, TaskSpec(name="train"))


@pytest.mark.parametrize(
    ("path", "targets", "place"),
    [
        ("/ck", ("/ck",), Place(0, ".", frozenset())),
        ("/ck/", ("/ck",), Place(0, ".", frozenset())),
        ("/ck/run/7", ("/data", "/ck"), Place(1, "run/7", frozenset())),
        ("//ck//run/./7/", ("/ck/",), Place(0, "run/7", frozenset())),
        ("/data/ck/a", ("/data", "/data/ck"), Place(1, "a", frozenset())),
        ("/data/ck", ("/data/ck/x/y", "/data", "/data/ck/z", "/other"), Place(1, "ck", frozenset({"x", "z"}))),
        ("/database", ("/data",), None),
        ("/", ("/data",), None),
        ("/ck", (), None),
    ],
)
def test_the_innermost_volume_around_the_path(path: str, targets: tuple[str, ...], place: Optional[Place]) -> None:
    assert place_of(path, [Volume("/srv/x", target) for target in targets]) == place


@pytest.mark.parametrize("path", ["/ck", "/ck/", "//ck/run", "/database", "/"])
def test_server_and_agent_agree_whether_it_is_in_a_volume(path: str) -> None:
    spec = TaskSpec(name="t", kind=Kind.TRAINING, image="x", volumes=[Volume("/srv/x", "/ck")], checkpoint_path=path)
    faults: list[Fault] = check(spec, [], None).faults
    assert (place_of(path, spec.volumes) is None) == any(fault.path == "checkpoint_path" for fault in faults)


def test_what_is_told() -> None:
    rejected = tuple(Rejected(f"/ck/step_{number}", "is empty") for number in range(30))
    told = conclusion(RECORD, Look(Checkpoint("/ck/step_1", "marker", 1), rejected))
    assert (told.attempt, told.claim_token, told.found) == (2, "token", True)
    assert (told.path, told.framework, told.step) == ("/ck/step_1", "marker", 1)
    assert [one.path for one in told.rejected] == [f"/ck/step_{number}" for number in range(resuming.TOLD_LIMIT)]
    none = conclusion(RECORD, Look())
    assert (none.found, none.path, none.framework, none.step, none.rejected) == (False, None, None, None, [])


class Volumes:
    """Holds one folder for every volume."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def opened(self, held: Any, number: int) -> Iterator[int]:
        handle = os.open(self._folder, os.O_PATH)
        try:
            yield handle
        finally:
            os.close(handle)


def spec(**members: Any) -> TaskSpec:
    return TaskSpec(name="t", volumes=[Volume("/srv/x", "/ck")], **{"checkpoint_path": "/ck", **members})


def look(folder: Path, wanted: TaskSpec) -> Optional[Look]:
    held: Any = SimpleNamespace(record=RECORD, key=RECORD.key)
    parts: Any = SimpleNamespace()
    volumes: Any = Volumes(folder)
    return Resuming(parts, volumes).look(held, wanted)


def test_nothing_is_looked_up_where_nobody_asks(tmp_path: Path) -> None:
    assert look(tmp_path, spec(checkpoint_path=None)) is None
    assert look(tmp_path, spec(resume_from_checkpoint="anything")) is None


def test_a_task_never_begins_from_scratch_because_its_folder_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale NFS handle is no empty folder: the task goes back, to be started where the folder can be seen."""
    made.transformers(tmp_path, 100)

    def stale(*words: Any, **more: Any) -> Look:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    found = look(tmp_path, spec())
    assert found is not None and found.found is not None and found.found.path == "/ck/checkpoint-100"
    monkeypatch.setattr(resuming, "find_newest", stale)
    with pytest.raises(CheckFailed) as failed:
        look(tmp_path, spec())
    assert failed.value.reason is Reason.START_FAILED and "Stale file handle" in failed.value.text


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (spec(checkpoint_path="/elsewhere"), Reason.VOLUME_REJECTED),
        (spec(checkpoint_framework="of-next-year"), Reason.PROFILE_REJECTED),
    ],
)
def test_what_a_newer_server_may_send(tmp_path: Path, wanted: TaskSpec, reason: Reason) -> None:
    with pytest.raises(CheckFailed) as failed:
        look(tmp_path, wanted)
    assert failed.value.reason is reason


class Server:
    """Away at first; keeps what it is told."""

    control_plane_id = "cp"

    def __init__(self, away: int, error: Exception) -> None:
        self.away, self.error = away, error
        self.told: list[tuple[str, Any]] = []

    def checkpoint_resume(self, task_id: str, told: Any) -> None:
        if self.away:
            self.away -= 1
            raise self.error
        self.told.append((task_id, told))


KEY_REFUSED = ProblemDocument(401, "bad_api_key", "the key is not known here")


@pytest.mark.parametrize("error", [Unavailable("nobody is there", retry_after=7.0), Refused(KEY_REFUSED, again_s=7.0)])
def test_it_is_told_until_the_server_has_it(error: Exception) -> None:
    pauses: list[float] = []
    server = Server(40, error)
    parts: Any = SimpleNamespace(
        client=server,
        reports=SimpleNamespace(submit=lambda name, work: queue.append(work)),
        timers=SimpleNamespace(after=lambda name, pause, work: (pauses.append(pause), queue.append(work))),
    )
    queue: list[Any] = []
    held: Any = SimpleNamespace(record=dataclasses.replace(RECORD))
    mounting: Any = None
    Resuming(parts, mounting).tell(held, Look())
    while queue:
        queue.pop(0)()
    assert [task_id for task_id, _ in server.told] == ["train"]
    assert len(pauses) == 40 and all(7.0 <= pause <= resuming.TELL_MAX_S for pause in pauses)
