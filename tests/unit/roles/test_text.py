"""What no role and no playbook does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.roles import BLOCKS, PLAYBOOKS, ROLES, SCENARIOS, loaded, name_of, task_files, tasks_of

# Words of a task that are no module (ansible-core's playbook keywords).
KEYWORDS = {
    *("any_errors_fatal", "args", "async", "become", "become_exe", "become_flags", "become_method", "become_user"),
    *("changed_when", "check_mode", "connection", "debugger", "delay", "delegate_facts", "delegate_to", "diff"),
    *("environment", "failed_when", "ignore_errors", "ignore_unreachable", "loop", "loop_control", "name", "no_log"),
    *("notify", "poll", "register", "remote_user", "retries", "run_once", "tags", "throttle", "timeout", "until"),
    *("vars", "when", "listen", "module_defaults", *BLOCKS),
}
# What Ansible itself sets or reads; everything else that begins so would be a fact of a host.
MAGIC = re.compile(
    r"ansible_(facts|check_mode|diff_mode|playbook_python|host|user|port|connection|become\w*|ssh_\w+|version|verbosity"
    r"|play_\w+|python_interpreter|managed|failed_\w+|run_tags|skip_tags|loop\w*|role_name|search_path|config_file"
    r"|inventory_sources|pipelining|forks|limit|index_var|local|playbook)\b"
)
WORD = re.compile(r"(?<![\w./-])ansible_[a-z_]+\b")
SEVEN = ("control_plane", "deploy", "force_upgrade", "rollback", "uninstall", "upgrade", "verify")
PLAY_WORDS = {
    *("name", "hosts", "gather_facts", "roles", "tasks", "pre_tasks", "post_tasks", "serial", "strategy", "become"),
    *("any_errors_fatal", "max_fail_percentage", "vars", "tags", "order", "connection", "run_once", "environment"),
}
ROLE_CALLS = {"ansible.builtin.import_role", "ansible.builtin.include_role"}
FILES = pytest.mark.parametrize("path", [*task_files(), *SCENARIOS], ids=name_of)


def test_the_seven_playbooks_are_there() -> None:
    assert tuple(path.stem for path in PLAYBOOKS) == SEVEN


@pytest.mark.parametrize("path", PLAYBOOKS, ids=name_of)
def test_playbooks_hold_plays_only(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 25
    for play in loaded(path):
        if "ansible.builtin.import_playbook" in play:
            continue
        assert set(play) <= PLAY_WORDS, play["name"]
        for word in ("pre_tasks", "tasks", "post_tasks"):
            for task in play.get(word, ()):
                assert set(task) & ROLE_CALLS, f"{task['name']}: a playbook's task is a role's entry point"


@FILES
def test_only_ansible_builtin(path: Path) -> None:
    for task in tasks_of(path) if isinstance(loaded(path), list) else ():
        words = set(task) - KEYWORDS - {word for word in task if word.startswith("with_")}
        assert {word for word in words if not word.startswith("ansible.builtin.")} == set(), task.get("name")
        assert len(words) == 1, task.get("name")


@FILES
def test_no_error_is_ignored(path: Path) -> None:
    for task in tasks_of(path) if isinstance(loaded(path), list) else ():
        assert "ignore_errors" not in task, task.get("name")
        assert task.get("failed_when") is not False or task.get("register"), (
            f"{task.get('name')}: what came of it is looked at by nobody"
        )


def texts() -> list[Path]:
    found = [path for role in ROLES for path in role.rglob("*") if path.suffix in (".yml", ".j2") and path.is_file()]
    return sorted(found) + PLAYBOOKS


@pytest.mark.parametrize("path", texts(), ids=name_of)
def test_facts_are_read_as_ansible_facts_only(path: Path) -> None:
    lines = [line.partition(" # ")[0] for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert {word for line in lines for word in WORD.findall(line) if not MAGIC.fullmatch(word)} == set()


def test_a_fact_of_a_host_is_seen() -> None:
    assert not MAGIC.fullmatch("ansible_hostname") and not MAGIC.fullmatch("ansible_architecture")
    assert WORD.findall("when: ansible_architecture == 'x86_64' and ansible_facts['x']") == [
        "ansible_architecture",
        "ansible_facts",
    ]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_restarts_are_decided_and_not_notified(role: Path) -> None:
    """FC-067: a pending handler is dropped by a later failure, and the next run sees no change."""
    assert list((role / "handlers").glob("*")) == []
    for path in (role / "tasks").rglob("*.yml"):
        assert [task["name"] for task in tasks_of(path) if "notify" in task] == []
