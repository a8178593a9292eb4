"""Programs that a build runs end in time, and with everything that they started."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from runtime.artifacts.children import last_lines, run
from runtime.artifacts.errors import BuildError


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(BuildError, match=r"^git status was not done after 1 s"):
        run(["sh", "-c", f"sleep 600 & echo $! >{note}; wait"], "git status", deadline_s=1)
    assert time.monotonic() - began < 60
    deadline = time.monotonic() + 30
    while alive(int(note.read_text())):
        assert time.monotonic() < deadline, "the child's child lives on"


def test_output_exit_code_and_input() -> None:
    done = run(["sh", "-c", "cat; echo no >&2; exit 3"], "cat", deadline_s=60, given=b"yes")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"yes", b"no\n")


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        run(["/nonexistent/git"], "git", deadline_s=1)


def test_a_child_that_reads_nothing_of_what_it_is_given() -> None:
    assert run([sys.executable, "-c", "pass"], "python", deadline_s=60, given=bytes(1 << 20)).returncode == 0


def test_the_end_of_what_was_printed() -> None:
    assert last_lines(b"one\nWARNING: x\ntwo\n\xff\n", 2) == "two\n�"
    assert last_lines(b"one", 3) == "one"
