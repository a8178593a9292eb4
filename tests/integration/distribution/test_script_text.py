"""The scripts as text: clean under the checkers and in every shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runtime.artifacts import scripts

SHELLS = (("dash",), ("bash",), ("bash", "--posix"), ("busybox", "sh"))


@pytest.fixture(scope="module", params=scripts.SCRIPTS)
def script(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / request.param
    path.write_text(scripts.script(request.param, "http://198.18.0.1:3333"))
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
    text = scripts.script("uninstall-agent.sh", "http://198.18.0.1:3333")
    functions = text.rpartition('main "$@"')[0]
    given = f"STATE={state} CURRENT={current} PURGE=yes YES=no PRESENT='' RUNNING='' UNANSWERED=''"
    tried = f"{given}\nlook_before_purge\necho goes on\n}}\n"
    done = subprocess.run(["dash", "-c", f"{functions}\nprepare\n{tried}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
