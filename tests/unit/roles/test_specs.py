"""Every entry point of every role has an argument spec, and defaults and specs say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import role_tables
from tests.unit.roles import ROLES, loaded, specs, task_files, tasks_of, variables

SECRET = re.compile(r"(key|token|password|secret|dsn)s?$")
INCLUDES = ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks")
EACH = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def included(role: Path) -> set[str]:
    """Task files of the role that other task files of it include by name."""
    found: set[str] = set()
    for path in (role / "tasks").rglob("*.yml"):
        for task in tasks_of(path):
            for word in INCLUDES:
                said = task.get(word)
                if said:
                    found.add(Path(said["file"] if isinstance(said, dict) else said).stem)
    return found


def test_all_roles_are_there() -> None:
    assert [role.name for role in ROLES] == [
        "agent",
        "control_plane",
        "distribution",
        "docker_engine",
        "node_preflight",
    ]


@EACH
def test_every_entry_point_has_a_spec(role: Path) -> None:
    files = {path.stem for path in (role / "tasks").glob("*.yml")}
    described = set(specs(role))
    assert described - files == set(), "described, and no file"
    assert files - described - included(role) == set(), "neither described nor part of another entry point"


CALLS = ("ansible.builtin.import_role", "ansible.builtin.include_role")
# What operators and other helpers of the fleet call by name, besides what the playbooks do.
PUBLIC = {
    "agent": {"main", "level", "rollback", "uninstall", "look", "cordon", "uncordon", "confirm"},
    "control_plane": {"main", "rollback"},
    "distribution": {"main", "verify"},
    "docker_engine": {"main"},
    "node_preflight": {"settings", "main", "report"},
}


def test_what_is_called_by_name_is_described() -> None:
    called = {role: set(entries) for role, entries in PUBLIC.items()}
    for path in task_files():
        for task in tasks_of(path):
            for word in CALLS:
                if word in task:
                    called[task[word]["name"]].add(task[word].get("tasks_from", "main").removesuffix(".yml"))
    for role in ROLES:
        assert called[role.name] - set(specs(role)) == set(), role.name


@EACH
def test_specs_say_what_each_entry_point_and_option_is(role: Path) -> None:
    for entry, spec in specs(role).items():
        assert spec.get("short_description"), entry
        for name, about in (spec.get("options") or {}).items():
            assert about.get("description"), f"{entry}: {name}"
            assert about.get("type"), f"{entry}: {name}"
            assert name.startswith(f"{role.name}_"), f"{entry}: {name}"


@EACH
def test_defaults_and_specs_say_the_same(role: Path) -> None:
    defaults = variables(role, "defaults")
    described = {name for spec in specs(role).values() for name in (spec.get("options") or {})}
    assert set(defaults) - described == set(), "a default that no spec describes"
    for entry, spec in specs(role).items():
        for name, about in (spec.get("options") or {}).items():
            if name in defaults:
                assert not about.get("required"), f"{entry}: {name} has a default and is required"
                assert about.get("default") == defaults[name], f"{entry}: {name}"
            else:
                assert "default" not in about, f"{entry}: {name} has a default in the spec only"


@EACH
def test_no_default_leads_through_the_role_s_own_folder(role: Path) -> None:
    """What is missing there is shown as it is named: roles/agent/../../dist/agent tells nobody where to look."""
    assert [name for name, value in variables(role, "defaults").items() if "/../" in str(value)] == []


@EACH
def test_an_option_is_the_same_in_all_entry_points(role: Path) -> None:
    seen: dict[str, dict] = {}
    for entry, spec in specs(role).items():
        for name, about in (spec.get("options") or {}).items():
            kind = {word: about.get(word) for word in ("type", "elements", "choices", "no_log")}
            assert seen.setdefault(name, kind) == kind, f"{entry}: {name}"


@EACH
def test_secrets_are_paths_or_not_logged(role: Path) -> None:
    for entry, spec in specs(role).items():
        for name, about in (spec.get("options") or {}).items():
            if SECRET.search(name):
                assert about.get("no_log") is True, f"{entry}: {name} looks like a secret; a path ends with _file"


def read_as_it_is(name: str, text: str) -> list[str]:
    """The lines in which an expression takes the variable's value without asking which of the two it means."""
    use = re.compile(rf"(?:\b(?:if|not|or|and|when:)|\{{\{{|\(|^\s*-)\s*{name}\b(?!\s*\||\))|{name} \|(?! bool\b)")
    return [line for line in text.splitlines() if use.search(line) and not line.lstrip().startswith("#")]


@EACH
def test_a_switch_that_was_given_as_a_text_is_read_as_what_it_says(role: Path) -> None:
    """``-e agent_purge=false`` is a text, an argument spec leaves it one, and any text would count as yes."""
    if role.name == "node_preflight":
        return  # its program refuses a switch that is a text
    names = {
        name
        for spec in specs(role).values()
        for name, about in (spec.get("options") or {}).items()
        if about["type"] == "bool"
    }
    places = [path for kind in ("tasks", "vars", "templates") for path in (role / kind).rglob("*") if path.is_file()]
    assert [line for path in places for name in names for line in read_as_it_is(name, path.read_text())] == []


def test_a_switch_that_is_read_as_it_is_is_seen() -> None:
    for line in ('purge: "{{ a_b }}"', "when: a_b and c", "- a_b", "{% if x and not a_b %}", "x | default(a_b and y)"):
        assert read_as_it_is("a_b", line) == [line]
        assert read_as_it_is("a_b", line.replace("a_b", "a_b | bool")) == []
    assert read_as_it_is("a_b", "'set it with a_b, (a_b)'") == []


@EACH
def test_internals_have_the_role_s_name_and_two_underscores(role: Path) -> None:
    names = set(variables(role, "vars"))
    assert {name for name in names if not name.startswith(f"{role.name}__")} == set()


@EACH
def test_the_readme_s_table_is_fresh(role: Path) -> None:
    path = role / "README.md"
    assert path.exists() and role_tables.readme(role) == path.read_text(), "run `make role-docs`"


def test_a_changed_spec_makes_the_readme_stale(tmp_path: Path) -> None:
    role = tmp_path / "thing"
    (role / "meta").mkdir(parents=True)
    spec = role / "meta" / "argument_specs.yml"
    option = "argument_specs: {main: {short_description: Does it, options: {thing_a: {type: int, default: 1, %s}}}}"
    spec.write_text(option % "description: One")
    (role / "README.md").write_text("# thing\n\nBy hand.\n")
    (role / "README.md").write_text(role_tables.readme(role) + "\nMore by hand.\n")
    text = (role / "README.md").read_text()
    assert "| `thing_a` | int | `1` | One | all |" in text and text.startswith("# thing\n\nBy hand.\n")
    assert role_tables.readme(role) == text
    spec.write_text(option % "description: Another")
    assert "Another" in role_tables.readme(role) and role_tables.readme(role).endswith("\nMore by hand.\n")


def test_metas_are_loaded_as_they_lie() -> None:
    for role in ROLES:
        assert "galaxy_info" in loaded(role / "meta" / "main.yml"), role.name
