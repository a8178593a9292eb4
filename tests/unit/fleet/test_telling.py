"""Which control plane hears of a run, and when; how many waves a run is told to have; what an action takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.cli.context import Invocation
from runtime.cli.errors import CliError
from runtime.fleet.actions import DEPLOY, UPGRADE, Action
from runtime.fleet.command import fleet
from runtime.fleet.inventory import Inventory
from runtime.fleet.project import find_project, read_plays
from runtime.fleet.record import Recorder
from runtime.fleet.run import _progress
from runtime.fleet.telling import recorder


class Told:
    """A client that keeps what it is told."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def post(self, _path: str, body: dict[str, str]) -> None:
        self.codes.append(body["code"])


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr("runtime.fleet.telling.say", found.append)
    return found


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invocation:
    """Somebody without settings of their own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HETEROFLEET_TOKEN", "HETEROFLEET_TOKEN_FILE", "HETEROFLEET_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    return Invocation()


def inventory(token: Path) -> Inventory:
    said = {"fleet_server_url": "http://127.0.0.1:9", "fleet_token_file": str(token)}
    return Inventory({"control_plane": ["a"]}, {"a": said})


def test_a_run_that_makes_the_token_is_recorded_when_it_ends(call: Invocation, said: list[str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    made = recorder(call, inventory(token), silent=False, makes_token=True)
    made.begin("begins")
    assert said == [
        f"the begin of this run is not recorded: {token} is not there yet; this run makes it, and is recorded when "
        "it ends"
    ]
    token.write_text("hf-op-0123456789")
    token.chmod(0o600)
    made.end("ended")
    # Somebody was asked: nobody answers at this address.
    assert len(said) == 2 and said[1].startswith("the control plane was not told (fleet_run_ended)")
    assert (made.began, made.ended) == (None, False)


def test_a_token_that_was_not_made_after_all_is_said(call: Invocation, said: list[str], tmp_path: Path) -> None:
    made = recorder(call, inventory(tmp_path / "token"), silent=False, makes_token=True)
    made.end("ended")
    assert said[-1].startswith("this run is not recorded: cannot read the token file")
    assert made.ended is None


def test_a_run_that_makes_no_token_says_that_it_cannot_be_read(
    call: Invocation, said: list[str], tmp_path: Path
) -> None:
    recorder(call, inventory(tmp_path / "token"), silent=False).begin("begins")
    assert said[0].startswith("this run is not recorded: cannot read the token file")


def test_whoever_is_there_at_the_end_is_told_of_it() -> None:
    client: Any = Told()
    made = Recorder(None, str, "later", later=lambda: client)
    made.begin("begins")
    made.end("ended")
    assert (client.codes, made.ended) == (["fleet_run_ended"], True)


@pytest.mark.parametrize(
    ("action", "given", "inventorys", "waves"),
    [
        (DEPLOY, {}, None, [3]),
        (UPGRADE, {}, None, [1, 1, 1]),
        (DEPLOY, {}, [1, 2], [1, 2]),
        # What --set or --wave says wins.
        (DEPLOY, {"fleet_wave": [2]}, None, [2, 1]),
        (UPGRADE, {"fleet_wave": "100%"}, [1], [3]),
    ],
)
def test_waves_are_planned_as_the_playbook_has_them(
    action: Action, given: dict[str, Any], inventorys: Any, waves: list[int]
) -> None:
    hosts = ["a", "b", "c"]
    known = Inventory({"nodes": hosts}, {"a": {} if inventorys is None else {"fleet_wave": inventorys}})
    plays = read_plays(find_project(None) / "playbooks" / action.playbook)
    assert _progress(action, given, known, hosts, plays).sizes == waves


def test_only_what_changes_something_can_be_tried_without_changing_anything() -> None:
    takes = {
        name: {option for one in command.params for option in one.opts} for name, command in fleet.commands.items()
    }
    assert {name for name, options in takes.items() if not options & {"--check", "--dry-run", "--diff"}} == {"verify"}
    assert all({"--limit", "--check", "--diff", "--set"} <= takes[name] for name in set(takes) - {"verify"})


def test_a_wrong_token_that_was_given_ends_it(call: Invocation, said: list[str], tmp_path: Path) -> None:
    call.overrides |= {"token_file": str(tmp_path / "none"), "server_url": "http://127.0.0.1:9"}
    with pytest.raises(CliError, match="cannot read the token file"):
        recorder(call, Inventory({}), silent=False)
    assert said == []
