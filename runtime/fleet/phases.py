"""What a host, or the run, is going through, in words: from the role that works, and the part of that role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

PHASES: Mapping[tuple[str, str], str] = {
    ("node_preflight", ""): "is checked",
    ("docker_engine", ""): "gets its engine looked after",
    ("control_plane", "rollback"): "is put back to the earlier control plane",
    ("control_plane", ""): "gets the control plane",
    ("agent", "plan"): "is looked at",
    ("agent", "look"): "is looked at",
    ("agent", "tidy"): "is tidied up after an earlier run",
    ("agent", "cordon"): "gets no new tasks",
    ("agent", "uncordon"): "takes new tasks again",
    ("agent", "confirm"): "is waited for",
    ("agent", "rescue"): "is put back",
    ("agent", "put_back"): "is put back",
    ("agent", "rollback"): "is put back to an earlier release",
    ("agent", "uninstall"): "loses its agent",
    ("agent", "level"): "is levelled",
    ("agent", ""): "gets the agent",
}
"""(role, file of its tasks) -> words that complete "host ...". An empty file: the role's other files."""

OF_THE_RUN: Mapping[tuple[str, str], str] = {
    ("node_preflight", "settings"): "inventory and settings are checked",
    ("node_preflight", "report"): "what was found of the hosts is judged",
    ("distribution", ""): "the builds are staged and all places compared",
    ("distribution", "verify"): "the places are compared",
    ("agent", "begin"): "the control plane is asked for its nodes",
    ("agent", "agree"): "the ways back are compared",
    ("agent", "summary"): "what came of the hosts is summed up",
}
"""Parts that work once for all hosts; Ansible names the first of them, and it is not its own."""

JUDGES_HOSTS = ("node_preflight", "report")
"""The one part of those whose failures are of single hosts."""
TELLS = ("agent", "summary")
"""What fails in it tells only of what had failed before."""

QUIET = ("prepare", "say", "stop", "wave")
"""Files of tasks that decide and tell, and do nothing to a host."""

NOTHING_DONE = {"include_role", "include_tasks", "import_role", "import_tasks", "meta", "validate_argument_spec"}


def part(data: Mapping[str, Any]) -> tuple[str, str]:
    """(role, file) of the event's task: ``("agent", "look")`` for roles/agent/tasks/look.yml:12."""
    return str(data.get("role") or ""), PurePosixPath(str(data.get("task_path") or "").rpartition(":")[0]).stem


def of_the_run(data: Mapping[str, Any]) -> str:
    """The words for a part that works once for all; empty for those that work on hosts."""
    return _words(OF_THE_RUN, part(data))


def does_something(data: Mapping[str, Any]) -> bool:
    """Whether the event's task is more than a step of the play's own."""
    action = str(data.get("task_action") or "").rpartition(".")[2]
    return action not in NOTHING_DONE and part(data)[1] not in QUIET


def phase(data: Mapping[str, Any]) -> str:
    """The words for what is done to a host; a play without a role has the task's own name."""
    role = part(data)[0]
    words = _words(PHASES, part(data))
    return words or (f"is at work: {role}" if role else f"is at: {data.get('task') or 'a task'}")


def _words(table: Mapping[tuple[str, str], str], of: tuple[str, str]) -> str:
    return table.get(of) or table.get((of[0], "")) or ""
