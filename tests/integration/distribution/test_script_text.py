"""The scripts as text: clean under the checkers, and harmless wherever they are cut off."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.server.services import builds

SHELLS = (("dash",), ("bash",), ("busybox", "sh"))


@pytest.fixture(scope="module", params=builds.SCRIPTS)
def script(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / request.param
    path.write_text(builds.script(request.param, "http://198.18.0.1:3333"))
    return path


def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    launcher = Path(__file__).parents[3] / "runtime" / "artifacts" / "launcher.sh"
    done = subprocess.run(["shellcheck", "--shell=sh", script, launcher], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.case("FC-061")
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_every_shell_takes_it(script: Path, shell: tuple[str, ...]) -> None:
    """The instructions said sh, and the script used what only bash has."""
    assert subprocess.run([*shell, "-n", script], capture_output=True).stderr == b""
    done = subprocess.run([*shell, script, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: sh {script.name}")
    wrong = subprocess.run([*shell, script, "--nonsense"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "unknown option --nonsense" in wrong.stderr


@pytest.mark.case("FC-055")
def test_cut_off_at_any_byte_it_does_nothing_and_says_so(script: Path, tmp_path: Path) -> None:
    """sh runs what has arrived: a cut connection left half an install."""
    text = script.read_bytes().rstrip(b"\n")
    called = tmp_path / "called"
    stub = tmp_path / "bin" / "stub"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\necho "$0 $*" >>{called}\n')
    stub.chmod(0o755)
    for name in (
        "id",
        "env",
        "python3",
        "uname",
        "systemctl",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "docker",
        "sed",
        "cat",
        "awk",
    ):
        (stub.parent / name).symlink_to("stub")
    # The scripts share most of their text: every byte of one, and every seventh of the other.
    step = 1 if script.name == "install-agent.sh" else 7
    lengths = range(0, len(text), step)
    half = len(lengths) // 2
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(codes_when_cut, text, lengths[:half], tmp_path / "first", str(stub.parent))
        second = pool.submit(codes_when_cut, text, lengths[half:], tmp_path / "second", str(stub.parent))
    codes = {**first.result(), **second.result()}
    # Only the first line can end well: it is a comment, and nothing follows.
    comment = text.index(b"\n") + 1
    assert {code for length, code in codes.items() if length <= comment} == {0}
    assert {code for length, code in codes.items() if length > comment} == {2}
    assert len(codes) == len(lengths)
    assert not called.exists()


def codes_when_cut(text: bytes, lengths: range, file: Path, path: str) -> dict[int, int]:
    """Length -> exit code of sh, which reads only that many bytes from its standard input."""
    shell = str(shutil.which("dash"))
    null = os.open(os.devnull, os.O_RDWR)
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    actions = [(os.POSIX_SPAWN_DUP2, handle, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    os.pwrite(handle, text, 0)
    codes = {}
    for length in reversed(lengths):
        os.truncate(handle, length)
        os.lseek(handle, 0, os.SEEK_SET)
        child = os.posix_spawn(shell, ["sh"], {"PATH": path}, file_actions=actions)
        codes[length] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(handle)
    os.close(null)
    return codes


@pytest.mark.parametrize("shell", SHELLS[1:], ids=" ".join)
def test_cut_off_in_other_shells(script: Path, shell: tuple[str, ...]) -> None:
    text = script.read_bytes().rstrip(b"\n")
    program = str(shutil.which(shell[0]))
    for length in [*range(100, len(text), 997), *range(len(text) - 30, len(text))]:
        done = subprocess.run(
            [program, *shell[1:]], input=text[:length], capture_output=True, env={"PATH": "/nonexistent"}
        )
        assert (done.returncode, done.stdout) == (2, b""), length


@pytest.mark.parametrize(
    ("journal", "status", "code", "words"),
    [
        (True, '{"undelivered": 0}', 0, "goes on"),
        (True, '{"undelivered": 2}', 8, "2 results were not delivered"),
        (True, "", 8, "nobody can tell whether all results were delivered"),
        (True, None, 8, "nobody can tell whether all results were delivered"),
        (False, None, 0, "goes on"),
    ],
    ids=["all delivered", "two are not", "no answer", "no agent any more", "nothing ever ran"],
)
def test_purge_takes_no_unknown_number_of_results_for_none(
    tmp_path: Path, journal: bool, status: str | None, code: int, words: str
) -> None:
    state, current = tmp_path / "state", tmp_path / "current"
    state.mkdir()
    current.mkdir()
    if journal:
        (state / "journal.db").touch()
    if status is not None:
        agent = current / "heterofleet-agent"
        agent.write_text(f"#!/bin/sh\nprintf '%s' '{status}'\n")
        agent.chmod(0o755)
    text = builds.script("uninstall-agent.sh", "http://198.18.0.1:3333")
    functions = text.rpartition('main "$@"')[0]
    tried = f"STATE={state} CURRENT={current} PURGE=yes YES=no RUNNING=''\nlook_before_purge\necho goes on\n}}\n"
    done = subprocess.run(["dash", "-c", f"{functions}\nprepare\n{tried}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
