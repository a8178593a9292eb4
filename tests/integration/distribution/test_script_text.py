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
    given = f"STATE={state} CURRENT={current} PURGE=yes YES=no PRESENT='' RUNNING='' UNANSWERED=''"
    done = uninstalling(f"{given}\nlook_before_purge\necho goes on")
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr


def uninstalling(steps: str) -> subprocess.CompletedProcess[str]:
    """Steps of the script, with its functions."""
    functions = scripts.script("uninstall-agent.sh", "http://198.18.0.1:3333").rpartition('main "$@"')[0]
    functions = functions.replace("/run/docker.sock", "/nonexistent/docker.sock")  # this machine may have one
    tried = f"{functions}\nprepare\n{steps}\n}}\n"
    return subprocess.run(["dash", "-c", tried], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("settings", "answered"), [("docker_host: unix:///run/mine.sock\n", False), ("max_tasks: 3\n", True)]
)
def test_an_engine_of_ones_own_without_a_docker_command_is_not_taken_for_no_containers(
    tmp_path: Path, settings: str, answered: bool
) -> None:
    (tmp_path / "agent.yaml").write_text(settings)
    (tmp_path / "sed").symlink_to("/usr/bin/sed")
    given = f"SETTINGS={tmp_path}/agent.yaml PATH={tmp_path}\nname_task_units() {{ UNITS=''; }}"
    done = uninstalling(f'{given}\nfind_task_containers\necho "it says $UNANSWERED"')
    assert (done.stdout == "it says \n") == answered, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("found", "code", "asked"),
    [("PRESENT=one RUNNING=one", 8, ["enable", "start"]), ("UNANSWERED=silent", 8, ["enable", "start"]), (":", 0, [])],
)
def test_a_task_that_begins_before_a_purge_keeps_its_agent(found: str, code: int, asked: list[str]) -> None:
    """The look comes before the agent is stopped, and work could come in between."""
    given = (
        "PURGE=yes YES=no PRESENT='' RUNNING='' UNANSWERED='' WAS_ACTIVE=yes WAS_ENABLED=yes STATE=/nonexistent\n"
        f"find_task_containers() {{ {found}; }}\nservice() {{ echo $1; }}"
    )
    done = uninstalling(f"{given}\nlook_again_before_purge\necho goes on")
    assert done.returncode == code, done.stderr
    assert done.stdout.split("\n")[:-1] == [*asked, *(["goes on"] if code == 0 else [])]
