"""Events as ansible-runner hands them on, in their shortest form."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def play(name: str) -> Event:
    return {"event": "playbook_on_play_start", "event_data": {"name": name}}


def _task(kind: str, host: str, where: str, **more: Any) -> Event:
    """``where``: role/file of the task, such as agent/look."""
    role, _, file = where.partition("/")
    data = {
        "host": host,
        "role": role,
        "task": "Do it",
        "task_action": "ansible.builtin.command",
        "task_path": f"/p/roles/{role}/tasks/{file}.yml:7",
        **more,
    }
    return {"event": kind, "event_data": data}


def begins(host: str, where: str = "agent/main", **more: Any) -> Event:
    return _task("runner_on_start", host, where, **more)


def well(host: str, where: str = "agent/main", changed: bool = False, **facts: Any) -> Event:
    result = {"changed": changed, **({"ansible_facts": facts} if facts else {})}
    return _task("runner_on_ok", host, where, res=result)


def says(host: str, result: str, before: str = "", after: str = "", reason: str = "") -> Event:
    said = {"result": result, "from": before, "to": after, "reason": reason}
    return well(host, "agent/say", agent_outcome=said)


def fails(host: str, reason: str, where: str = "agent/main", **more: Any) -> Event:
    more = {"task_action": "ansible.builtin.fail", **more}
    return _task("runner_on_failed", host, where, **{"res": {"msg": reason}, **more})


def unreachable(host: str, reason: str = "no route") -> Event:
    return _task("runner_on_unreachable", host, "agent/look", res={"msg": reason, "unreachable": True})


def stats(failures: dict[str, int] | None = None, dark: dict[str, int] | None = None) -> Event:
    return {"event": "playbook_on_stats", "event_data": {"failures": failures or {}, "dark": dark or {}}}
