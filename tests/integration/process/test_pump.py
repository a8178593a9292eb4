"""A process's output, from the pipe to files of bounded size, with the real pump."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.agent.drivers.output import LogLost
from runtime.agent.drivers.process.output import Output
from tests.integration.waiting import until

PUMP = Path(__file__).parents[3] / "runtime/agent/drivers/process/pump.sh"
SIZE = 256 * 1024


class Pumped:
    """A pump at work in a folder, and who writes to it."""

    def __init__(self, root: Path, path: str = "") -> None:
        self.fifo, self.folder, self.end = root / "out", root / "output", root / "end"
        self.folder.mkdir()
        os.mkfifo(self.fifo)
        self.output = Output(self.folder, self.end.exists)
        self.start(path)

    def start(self, path: str = "") -> None:
        words = ["/bin/sh", PUMP, self.fifo, self.folder, str(SIZE), self.end]
        self.process = subprocess.Popen(words, env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"})

    def write(self, *pieces: bytes) -> None:
        with self.fifo.open("wb", buffering=0) as pipe:
            for piece in pieces:
                pipe.write(piece)

    def finish(self) -> None:
        """As at a process's end: whoever writes it down has the pipe open meanwhile."""
        with self.fifo.open("wb"):
            self.end.touch()
        assert self.process.wait(20) == 0

    def held(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.name.isdigit())


@pytest.fixture
def pumped(tmp_path: Path) -> Iterator[Pumped]:
    made = Pumped(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_everything_is_counted_and_the_newest_is_kept(pumped: Pumped) -> None:
    lines = b"".join(b"%07d\n" % number for number in range(300_000))
    pumped.write(lines)
    pumped.finish()
    rest = pumped.output.rest(64, "")
    assert (rest.size, rest.whole, rest.data, rest.mark) == (len(lines), True, lines[-64:], str(len(lines)))
    assert SIZE <= pumped.held() <= 2 * SIZE
    assert pumped.output.rest(1 << 20, "100").size == len(lines) - 100, "what was rotated away is counted"


def test_a_line_is_there_at_once_and_a_further_start_goes_on(pumped: Pumped) -> None:
    pumped.write(b"first\n")
    until("the line is read", lambda: pumped.output.rest(100, "").data == b"first\n")
    pumped.write(b"second\n")  # nobody had the pipe open in between
    pumped.finish()
    pumped.end.unlink()
    pumped.start()
    pumped.write(b"third\n")
    pumped.finish()
    rest = pumped.output.rest(100, "6")
    assert (rest.data, rest.size, rest.mark) == (b"second\nthird\n", 13, "19")


def test_what_comes_between_a_quiet_moment_and_the_end_is_read(tmp_path: Path) -> None:
    """Nobody had the pipe open, and before the pump had looked whether that was for good somebody wrote and ended."""
    beside = tmp_path / "bin"
    beside.mkdir()
    late = f"printf late > {tmp_path}/out; : > {tmp_path}/end"
    (beside / "dd").write_text(
        f'#!/bin/sh\n/bin/dd "$@"\ncode=$?\nif mkdir {tmp_path}/once 2>/dev/null; then {late}; fi\nexit $code\n'
    )
    (beside / "dd").chmod(0o755)
    made = Pumped(tmp_path, str(beside))
    try:
        made.write(b"first ")
        assert made.process.wait(20) == 0
        assert made.output.rest(100, "").data == b"first late"
    finally:
        made.process.kill()
        made.process.wait()


def test_it_is_followed_from_any_place_to_the_end(pumped: Pumped) -> None:
    got: list[bytes] = []
    pieces = pumped.output.follow("3", lambda close: None)
    reader = threading.Thread(target=lambda: got.extend(piece.data for piece in pieces))
    pumped.write(b"012345")
    reader.start()
    pumped.write(b"6789\n")
    pumped.finish()
    reader.join(20)
    assert (reader.is_alive(), b"".join(got)) == (False, b"3456789\n")


def test_a_follower_that_was_overtaken_is_told(pumped: Pumped) -> None:
    pumped.write(b"x" * (5 * SIZE))
    pumped.finish()
    with pytest.raises(LogLost):
        list(pumped.output.follow("10", lambda close: None))


def test_a_follower_is_ended_from_outside(pumped: Pumped) -> None:
    closers = []
    pieces = pumped.output.follow("", closers.append)
    pumped.write(b"x")
    assert next(pieces).mark(1) == "1"
    closers[0]()
    assert list(pieces) == []


def test_nobody_is_held_up_by_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE // 2}", "none", small], check=True)
    try:
        pumped = Pumped(small)
        pumped.write(*[b"%01023d\n" % number for number in range(4096)])
        pumped.finish()
        rest = pumped.output.rest(1024, "")
        assert not rest.whole, "how much is gone is not known"
    finally:
        subprocess.run(["umount", "-l", small], check=True)
