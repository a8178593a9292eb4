"""The private folder of a run, and the processes below it."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.fleet.folder import base_folder, private_folder, sweep


def test_the_folder_is_this_users_alone_and_goes_with_the_run(tmp_path: Path) -> None:
    with private_folder({"HOME": str(tmp_path)}) as folder:
        modes = {
            stat.S_IMODE(path.stat().st_mode) for path in (folder.root, folder.root.parent, *folder.root.iterdir())
        }
        assert modes <= {0o700, 0o600, 0o644}  # a folder that nobody may enter hides the modes of what is in it
        assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
        assert folder.root.is_relative_to(tmp_path)
        (folder.runner / "left").write_text("x")
    assert not folder.root.exists()
    assert not folder.sockets.exists()


def test_the_users_runtime_folder_is_taken_only_where_it_is_his_alone(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(0o700)
    environ = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(runtime)}
    assert base_folder(environ).is_relative_to(runtime)
    runtime.chmod(0o755)
    assert base_folder(environ).is_relative_to(tmp_path / "home")


def test_what_a_killed_run_left_is_taken_away_and_a_living_one_is_not(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    program = (
        "import sys; from runtime.fleet.folder import private_folder\n"
        "with private_folder({'HOME': sys.argv[1]}) as f: print(f.root, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        root = Path(process.stdout.readline().strip())
        sweep(base_folder(environ))
        assert root.is_dir()
        process.kill()
        process.wait(40)
    assert root.is_dir()
    with private_folder(environ):
        assert not root.exists()


CHILDREN = """
import os, subprocess, sys, time
from runtime.fleet import children
children.adopt_orphans()
# A worker that leads a session of its own, is deaf, and whose parent goes at once.
deaf = "trap '' TERM; echo ready; while :; do sleep 1; done"
subprocess.run(["sh", "-c", f'setsid sh -c "{deaf}" & read x < /dev/null; :'], stdout=subprocess.DEVNULL)
until = time.monotonic() + 40
while not (found := children.below(os.getpid())) and time.monotonic() < until: time.sleep(0.01)
print(len(found) > 0, *found, flush=True)
left = children.end(float(sys.argv[1]))
children.reap()
print(left, children.below(os.getpid()), flush=True)
"""


@pytest.mark.parametrize("grace_s", ["0", "0.5"])
def test_no_process_below_is_left_whatever_session_it_leads(grace_s: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILDREN, grace_s], capture_output=True, text=True, timeout=60)
    found, left = done.stdout.splitlines()
    assert found.startswith("True "), done.stderr
    assert left == "[] []"
    assert not any(Path(f"/proc/{pid}").exists() for pid in found.split()[1:])
