"""What is given on the command line, and what is said of failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.cli.errors import CliError, ExitCode
from runtime.fleet import waves
from runtime.fleet.environ import for_ansible, looks_secret, secret_names
from runtime.fleet.inventory import parse_inventory
from runtime.fleet.progress import Progress
from runtime.fleet.project import find_project, read_plays
from runtime.fleet.reasons import reason_of
from runtime.fleet.record import names
from runtime.fleet.screen import duration, state_line
from runtime.fleet.variables import parse_set
from tests.unit.fleet.events import begins, play


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("1", [1]), ("1,10%,100%", [1, "10%", "100%"]), (" 2 , 50% ", [2, "50%"])],
)
def test_waves_are_read_as_ansible_takes_them(text: str, wanted: list[Any]) -> None:
    assert waves.parse(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "1,", "0%", "101%", "a", "-1", "1.5", "1;2"])
def test_other_waves_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted numbers of hosts"):
        waves.parse(text)


@pytest.mark.parametrize(
    ("said", "hosts", "wanted"),
    [
        ([1, "10%", "100%"], 3, [1, 1, 1]),  # a share of few hosts is one host
        ([1, "10%", "100%"], 40, [1, 4, 35]),
        ([1, "10%"], 12, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),  # the last size goes on
        ("100%", 3, [3]),
        (2, 5, [2, 2, 1]),
        ("29%", 100, [28, 28, 28, 16]),  # as Ansible rounds it
        ([5], 3, [3]),
        ("{{ something }}", 3, None),
        (None, 3, None),
        ([1], 0, []),
    ],
)
def test_sizes_of_waves(said: Any, hosts: int, wanted: list[int] | None) -> None:
    assert waves.sizes(said, hosts) == wanted


@pytest.mark.parametrize(
    ("serial", "variable", "wanted"),
    [
        ("{{ x.fleet_wave | default([1, '10%', '100%']) }}", None, [1, 1, 2]),
        ("{{ x.fleet_wave | default('100%') }}", None, [4]),
        ("{{ x.fleet_wave | default('100%') }}", [2], [2, 2]),
        ("{{ x.fleet_wave }}", None, None),
        ("{{ other }}", [2], None),
        ([3], [2], [3, 1]),
    ],
)
def test_planned_waves_follow_variable_and_default(serial: Any, variable: Any, wanted: list[int] | None) -> None:
    assert waves.planned(serial, 4, variable) == wanted


def test_variables_are_yaml() -> None:
    assert parse_set(["a=1", "b=[x, y]", "c=", "fleet_api_key_file=~/key", "d={e: f}"]) == {
        "a": 1,
        "b": ["x", "y"],
        "c": "",
        "fleet_api_key_file": "~/key",
        "d": {"e": "f"},
    }


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("fleet_api_key=s3cret", "0600"),
        ("ansible_become_password=s3cret", "fleet"),
        ("registry_auth=s3cret", "0600"),
        ("agent_settings={api_key: s3cret}", "0600"),
        ("agent_settings={proxy: 'http://u:s3cret@p:1'}", "0600"),
        ("fleet_stop_file=/x", "set by the command"),
        ("s3cret", "NAME=VALUE"),
        ("a-b=1", "NAME=VALUE"),
        ("a=[1", "not YAML"),
    ],
)
def test_secrets_and_what_is_no_variable_are_refused_without_their_values(word: str, part: str) -> None:
    with pytest.raises(CliError) as refused:
        parse_set([word])
    assert refused.value.exit_code == ExitCode.USAGE
    if word != "s3cret":
        assert "s3cret" not in refused.value.message
    assert part in refused.value.message or part == "fleet"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HETEROFLEET_TOKEN", True),
        ("HETEROFLEET_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("ansible_ssh_pass", True),
        ("apikey", True),
        ("HETEROFLEET_TOKEN_FILE", False),
        ("fleet_api_key_file", False),
        ("ANSIBLE_VAULT_PASSWORD_FILE", False),
        ("SSH_AUTH_SOCK", False),
        ("HOME", False),
        ("keyboard", False),
        ("fleet_wave", False),
    ],
)
def test_names_that_look_secret(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_ansible_gets_no_secret_of_the_environment() -> None:
    environ = {"HETEROFLEET_TOKEN": "x", "PATH": "/bin", "HTTPS_PROXY": "http://u:p/q@h:1", "HTTP_PROXY": "http://h:1"}
    assert secret_names(environ) == ["HETEROFLEET_TOKEN", "HTTPS_PROXY"]


@pytest.mark.parametrize(
    ("config", "environ", "wanted"),
    [
        ("[defaults]\nforks = 5\n", {}, "True"),
        ("[defaults]\nhost_key_checking = False\n", {}, "False"),
        ("[defaults]\nhost_key_checking = False\n", {"ANSIBLE_HOST_KEY_CHECKING": "True"}, "True"),
        ("broken", {}, "True"),
        (None, {}, "True"),
    ],
)
def test_unknown_hosts_are_refused_unless_the_settings_say_otherwise(
    tmp_path: Path, config: str | None, environ: dict[str, str], wanted: str
) -> None:
    """ansible-runner turns the check off where nobody says anything."""
    if config is not None:
        (tmp_path / "ansible.cfg").write_text(config)
    given = for_ansible(tmp_path, tmp_path / "f", tmp_path / "s", environ)
    assert given["ANSIBLE_HOST_KEY_CHECKING"] == wanted


def test_an_inventory_has_the_hosts_of_the_groups_below() -> None:
    found = parse_inventory(
        '{"_meta": {"hostvars": {"a": {"fleet_wave": [1], "u": "{{ x }}"}, "b": {"u": "plain"}}},'
        ' "nodes": {"children": ["rack1", "loop"]}, "rack1": {"hosts": ["a", "b", "a"]},'
        ' "loop": {"children": ["nodes"]}}'
    )
    assert found.groups["nodes"] == ["a", "b"]
    assert found.said("fleet_wave", ["a", "b"]) == [1]
    assert found.said("u", ["a", "b"]) == "plain"
    assert found.said("u", ["a"]) is None


@pytest.mark.parametrize(
    ("data", "result", "reason"),
    [
        ({"task": "T", "task_action": "ansible.builtin.copy"}, {"msg": "no space\nleft"}, "T: no space left"),
        ({"task": "T", "task_action": "ansible.builtin.fail"}, {"msg": "the key is wrong"}, "the key is wrong"),
        ({"task": "T", "task_action": "ansible.builtin.assert"}, {"msg": ["one", "two"]}, "one; two"),
        ({"task": "T"}, {"stderr": "first\nlast\n"}, "T: last"),
        ({"task": "T"}, {"results": [{"msg": "well"}, {"failed": True, "msg": "broke"}]}, "T: broke"),
        ({"task": "T"}, {"censored": "hidden"}, "T: its words are hidden because it handles a secret"),
        ({"task": "T"}, {"censored": "hidden", "msg": "s3cret"}, "T: its words are hidden because it handles a secret"),
        ({}, {}, "a task: failed without words"),
    ],
)
def test_reasons(data: dict[str, Any], result: dict[str, Any], reason: str) -> None:
    assert reason_of(data, result) == reason


def test_a_long_reason_is_cut() -> None:
    assert len(reason_of({"task": "T"}, {"msg": "x" * 10_000})) == 600


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "unknown"), (0.4, "0s"), (59.4, "59s"), (65, "1m 05s"), (3660, "1h 01m")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_the_state_says_what_is_not_known() -> None:
    progress = Progress(["a", "b"], ["W"])
    assert state_line(progress, 4.0) == "0 of 2 hosts ended, 4s elapsed, unknown remaining"
    progress.apply(play("W"), 4.0)
    progress.apply(begins("a"), 5.0)
    assert state_line(progress, 6.0) == (
        "0 of 2 hosts ended, 0 of an unknown number of waves, 6s elapsed, unknown remaining"
    )


def test_names_are_not_without_end() -> None:
    assert names(["a", "b"]) == "a, b"
    assert names([str(n) for n in range(23)]).endswith("19 and 3 more")


def test_a_project_is_a_folder_with_all_its_parts(tmp_path: Path) -> None:
    (tmp_path / "playbooks").mkdir()
    with pytest.raises(CliError, match="no roles/ and no templates/"):
        find_project(tmp_path)
    (tmp_path / "roles").mkdir()
    (tmp_path / "templates").mkdir()
    assert find_project(tmp_path) == tmp_path
    assert (find_project(None) / "playbooks" / "deploy.yml").is_file()


def test_plays_are_read_as_far_as_they_are_plays(tmp_path: Path) -> None:
    playbook = tmp_path / "p.yml"
    playbook.write_text("- {name: One, hosts: nodes, serial: 1}\n- {hosts: all}\n- 3\n")
    assert [(p.name, p.hosts, p.serial) for p in read_plays(playbook)] == [("One", "nodes", 1), ("all", "all", None)]
    playbook.write_text("- {: [")
    assert read_plays(playbook) == []
    assert read_plays(tmp_path / "none.yml") == []
