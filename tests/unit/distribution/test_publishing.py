"""What publishing writes, keeps and removes, as a table; writers take turns, and what one left goes away."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from runtime.artifacts import folders
from runtime.artifacts.errors import BuildError
from runtime.artifacts.publish import Change, plan

A, B, M, OLD, OLDER = "agent-a", "agent-b", "manifest", "agent-old", "agent-older"


@pytest.mark.parametrize(
    ("present", "named", "wanted"),
    [
        ({}, set(), [(A, "write"), (B, "write"), (M, "write")]),
        ({A: "1", B: "2", M: "3"}, {A, B}, [(A, "keep"), (B, "keep"), (M, "keep")]),
        # Equal again: what an earlier change left stays as long as nothing changes.
        ({A: "1", B: "2", M: "3", OLD: "9"}, {A, B}, [(A, "keep"), (B, "keep"), (M, "keep")]),
        # The builds that the manifest there names stay for who has read it; older ones go.
        (
            {M: "0", OLD: "9", OLDER: "8"},
            {OLD},
            [(A, "write"), (B, "write"), (M, "write"), (OLDER, "remove")],
        ),
        # Cut off after the files and before the manifest: the files are taken as they lie there.
        ({A: "1", B: "2", M: "0", OLD: "9"}, {OLD}, [(A, "keep"), (B, "keep"), (M, "write")]),
        # Altered, or no ordinary file.
        ({A: "x", B: None, M: "3"}, {A, B}, [(A, "write"), (B, "write"), (M, "keep")]),
    ],
    ids=["new", "equal", "equal with an old one", "changed", "cut off before", "altered"],
)
def test_the_plan(present: dict[str, str | None], named: set[str], wanted: list[tuple[str, str]]) -> None:
    changes = plan({A: (10, "1"), B: (20, "2"), M: (30, "3")}, present, named)
    assert [(change.path, change.action) for change in changes] == wanted
    sizes = {change.path: (change.size, change.sha256) for change in changes if change.action != "remove"}
    assert sizes == {A: (10, "1"), B: (20, "2"), M: (30, "3")}
    assert all(change == Change(change.path, "remove") for change in changes if change.action == "remove")


def test_writers_take_turns_and_the_second_says_that_it_waits(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tree"
    said: list[str] = []
    waiting, entered = threading.Event(), threading.Event()

    def second() -> None:
        def say(line: str) -> None:
            said.append(line)
            waiting.set()

        with folders.only_writer(folder, say):
            entered.set()

    with folders.only_writer(folder, said.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(30)
        assert not entered.is_set()
    thread.join(30)
    assert entered.is_set()
    assert said == [f"another program writes into {folder}: waiting for it"]


def test_a_writer_does_not_wait_for_ever(tmp_path: Path) -> None:
    with (
        folders.only_writer(tmp_path, print),
        pytest.raises(BuildError, match="still writes into"),
        folders.only_writer(tmp_path, print, wait_s=0.3),
    ):
        pytest.fail("two writers")


def test_a_file_system_without_locks_is_said_and_no_reason_to_stop(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with folders.only_writer(tmp_path, said.append):
        assert "without locks" in said[0]


def test_folders_are_open_to_readers_whatever_the_umask(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    before = os.umask(0o077)
    try:
        folders.make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("a", "a/b")] == ["0o755", "0o755"]
    assert oct(tmp_path.stat().st_mode & 0o777) == "0o700"


def test_what_a_killed_writer_left_goes(tmp_path: Path) -> None:
    (tmp_path / f"{folders.SCRATCH}1").write_bytes(b"half")
    (tmp_path / f"{folders.SCRATCH}2" / "deep").mkdir(parents=True)
    (tmp_path / f"{folders.SCRATCH}3").symlink_to("/etc")
    (tmp_path / "kept").write_bytes(b"whole")
    folders.clear_scratch(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert Path("/etc/passwd").exists()


def test_a_disk_without_room_is_known_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"has [0-9.]+ MB free and .* MB are to be written"):
        folders.need_space(tmp_path / "not" / "there", 1 << 60)
    folders.need_space(tmp_path, 1)
