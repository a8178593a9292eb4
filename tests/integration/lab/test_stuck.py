"""A process that no signal ends, for tests of what an agent does about one."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.stuck import stuck_file


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_writer_is_stuck_in_the_kernel_until_the_file_is_let_go() -> None:
    with stuck_file() as path:
        writer = subprocess.Popen(["dd", "if=/dev/zero", f"of={path}", "bs=1", "count=1"], stderr=subprocess.DEVNULL)
        state = Path(f"/proc/{writer.pid}/stat")
        deadline = time.monotonic() + 40
        in_a_row = 0  # a program that is just being loaded is in state D for a moment, too
        while in_a_row < 10:
            assert time.monotonic() < deadline, "the writer never got stuck"
            in_a_row = in_a_row + 1 if state.read_text().rpartition(")")[2].split()[0] == "D" else 0
            time.sleep(0.02)
        writer.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(timeout=0.5)
    assert writer.wait(timeout=40) == -9
    assert not path.parent.is_mount()
