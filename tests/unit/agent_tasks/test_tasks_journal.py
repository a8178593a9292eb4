"""The journal: what it holds, how it survives, and that secrets are not in it."""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from runtime.agent.link.identity import MachineParts
from runtime.agent.tasks.classify import Sent, Stop, StopReason
from runtime.agent.tasks.journal import FILE_NAME, open_journal
from runtime.agent.tasks.ownership import keep_to_machine
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.protocol.states import Kind, Status
from runtime.protocol.tasks import AssignedGpu, HealthProbe, RegistryAuth, TaskSpec, TaskWarning, Volume

SPEC = TaskSpec(
    name="t",
    kind=Kind.TRAINING,
    image="a/b:1",
    command=["x"],
    env={"TOKEN": "very-secret-value"},
    registry_auth=RegistryAuth("r", "u", "very-secret-password"),
    volumes=[Volume("/data/x", "/x")],
    health=HealthProbe("http", 80),
    timeout_s=5.5,
)
CLAIM = ClaimRecord(
    key=Key("uid-1", 3),
    task_id="a",
    control_plane_id="cp",
    claim_token="token",
    stage=Stage.RUNNING,
    spec=SPEC,
    gpus=(AssignedGpu("GPU-1", 0, "nvidia"),),
    container_id="c" * 64,
    started_mark="boot/1",
    started_mono=12.5,
    started_wall=1e9,
    ready=True,
    stop=Stop(StopReason.TIMEOUT, 1e9, Sent.SENT),
    pull_attempts=2,
    pull_spent_s=3.5,
    mounts=(("/data/x", 1, 2),),
)
LETTER = Letter(
    *(Key("uid-1", 3), "a", "cp", "token", Status.RUNNING, Status.FAILED, "exited", 3, "e", "tail", "t", "c"),
    warnings=(TaskWarning("oom_inside", "a process in it was killed for memory"),),
)


def test_a_claim_comes_back_as_it_was_without_its_secrets(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.save(CLAIM)
    journal.close()
    again = open_journal(tmp_path)
    (found,) = again.claims()
    assert found == dataclasses.replace(CLAIM, spec=dataclasses.replace(SPEC, env=None, registry_auth=None))
    again.close()
    for path in tmp_path.iterdir():
        assert b"very-secret" not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0


def test_a_conclusion_stays_in_the_outbox(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.save(CLAIM)
    journal.conclude(CLAIM, LETTER)
    assert (journal.undelivered(), journal.claims()[0].stage) == (1, Stage.CONCLUDED)
    assert journal.letter(CLAIM.key) == LETTER
    journal.delivered(CLAIM, "stored")
    assert (journal.undelivered(), journal.claims()[0].stage) == (0, Stage.DONE)
    journal.forget(CLAIM.key)
    assert journal.claims() == []
    kept = journal.letter(CLAIM.key)
    assert kept is not None and kept.outcome == "stored" and kept.delivered_at is not None
    journal.prune(30)
    assert journal.letter(CLAIM.key) is not None
    journal.prune(-1)
    assert journal.letter(CLAIM.key) is None


def test_an_undelivered_conclusion_is_never_pruned(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.conclude(CLAIM, LETTER)
    journal.prune(-1)
    assert journal.undelivered() == 1


@pytest.mark.parametrize("content", [b"", b"torn" * 2000])
def test_a_torn_file_is_set_aside_with_one_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        journal = open_journal(tmp_path)
    assert len(caplog.records) == 1
    assert "set aside" in caplog.text
    assert journal.claims() == []
    journal.save(CLAIM)
    assert len([path for path in tmp_path.iterdir() if ".broken-" in path.name]) == 1


def test_a_damaged_page_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = open_journal(tmp_path)
    for number in range(200):
        journal.save(dataclasses.replace(CLAIM, key=Key(f"uid-{number}", 1)))
    journal.close()
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    data[8192:12288] = b"\xff" * 4096
    path.write_bytes(data)
    assert open_journal(tmp_path).claims() == []
    assert "set aside" in caplog.text


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be written"):
        open_journal(tmp_path / "missing")


def test_instructions_and_facts(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.save_instruction("image", "1", {"state": "begun"})
    journal.save_fact("engine_id", "e")
    assert journal.instruction("image", "1") == {"state": "begun"}
    assert journal.instructions("image") == {"1": {"state": "begun"}}
    assert (journal.instruction("image", "2"), journal.fact("engine_id"), journal.fact("x")) == (None, "e", None)


@pytest.mark.parametrize("damage", ["not JSON", '{"spec": {}}', '{"spec": 5, "gpus": []}'])
def test_one_bad_record_never_hides_the_good_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    journal = open_journal(tmp_path)
    journal.save(CLAIM)
    journal.save(dataclasses.replace(CLAIM, key=Key("uid-2", 1)))
    journal.save(dataclasses.replace(CLAIM, key=Key("uid-3", 1)))
    journal.conclude(dataclasses.replace(CLAIM, key=Key("uid-4", 1)), dataclasses.replace(LETTER, key=Key("uid-4", 1)))
    journal.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as raw, raw:
        raw.execute("UPDATE claims SET body = ? WHERE uid = 'uid-2'", (damage,))
        raw.execute("UPDATE claims SET stage = 'of a later release' WHERE uid = 'uid-3'")
        raw.execute("UPDATE outbox SET body = ? WHERE uid = 'uid-4'", (damage,))
    journal = open_journal(tmp_path)
    assert [claim.key.uid for claim in journal.claims()] == ["uid-1", "uid-4"]
    assert journal.letter(Key("uid-4", 1)) is None
    assert sum("cannot be read" in record.message for record in caplog.records) == 3
    journal.close()


def test_what_another_machine_wrote_is_kept_and_never_acted_on(tmp_path: Path) -> None:
    """A copy of a state folder concluded its original's claims."""
    journal = open_journal(tmp_path)
    journal.save(CLAIM)
    other = dataclasses.replace(CLAIM, key=Key("uid-2", 1), task_id="b")
    journal.conclude(other, dataclasses.replace(LETTER, key=other.key))
    journal.save_instruction("images", "i1", {"op": "pull"})
    assert journal.set_aside() == 2
    assert (journal.claims(), journal.undelivered(), journal.instructions("images")) == ([], 0, {})
    with pytest.raises(OSError, match="another instance"):
        journal.save(dataclasses.replace(CLAIM, stage=Stage.CONCLUDED))  # a step that was under way
    journal.save(dataclasses.replace(CLAIM, key=Key("uid-3", 1)))
    assert journal.set_aside() == 1
    journal.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as reading:
        kept = reading.execute("SELECT what, uid, attempt FROM set_aside ORDER BY what, uid").fetchall()
    assert kept == [("claims", "uid-1", 3), ("claims", "uid-2", 1), ("claims", "uid-3", 1), ("outbox", "uid-2", 1)]


@pytest.mark.parametrize(
    ("before", "now", "copied", "left"),
    [
        (("m", "p"), ("m", "p"), False, 1),
        (("m", None), ("m", "p"), False, 1),
        (("m", "p"), (None, None), False, 1),
        (("m", "p"), ("x", "p"), False, 0),
        (None, ("m", "p"), True, 0),
        (None, ("m", "p"), False, 1),
    ],
)
def test_whose_journal_it_is(
    tmp_path: Path, before: MachineParts | None, now: MachineParts, copied: bool, left: int
) -> None:
    """Also where the identity beside it was lost: the journal says itself which machine wrote it."""
    journal = open_journal(tmp_path)
    if before is not None:
        keep_to_machine(journal, before, copied=False)
    journal.save(CLAIM)
    keep_to_machine(journal, now, copied=copied)
    assert len(journal.claims()) == left
    keep_to_machine(journal, now, copied=False)
    assert len(journal.claims()) == left
    journal.close()
