"""What a task's result says to people: why it failed, in one short text, and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.fleet.phases import of_the_run, part

LONGEST = 600
TOLD_ANYWAY = (("agent", "summary"), ("distribution", "verify"))


@dataclass(frozen=True)
class Line:
    """One thing that happened, for people. ``host`` is empty where it is about the run."""

    text: str
    host: str = ""
    bad: bool = False


def reason_of(data: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """What the module said, with the task's name where that alone would not tell."""
    task = str(data.get("task") or "a task")
    if "censored" in result:
        return f"{task}: its words are hidden because it handles a secret"
    said = _text(result.get("msg")) or _last_line(result.get("stderr")) or _last_line(result.get("module_stderr"))
    if not said:
        said = _from_items(result)
    if is_finding(data) and said:
        return _cut(said)
    return _cut(f"{task}: {said}" if said else f"{task}: failed without words")


def spoken(data: Mapping[str, Any], result: Mapping[str, Any]) -> list[Line]:
    """What a role says to people: findings, tables, what would be done. Not what the summary tells anyway."""
    says = str(data.get("task_action") or "").rpartition(".")[2] == "debug" and isinstance(result.get("msg"), str)
    if not says or not data.get("role") or part(data) in TOLD_ANYWAY:
        return []
    host = "" if of_the_run(data) else str(data.get("host") or "")
    return [Line(line, host) for line in result["msg"].splitlines() if line.strip()]


def rows_of(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, whatever else is in it."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def is_finding(data: Mapping[str, Any]) -> bool:
    """Whether the task is one that looks and judges: its own words are the whole reason."""
    return str(data.get("task_action") or "").rpartition(".")[2] in ("fail", "assert")


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = "; ".join(str(one) for one in value)
    return " ".join(str(value).split()) if value is not None else ""


def _last_line(value: Any) -> str:
    lines = [line.strip() for line in str(value or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _from_items(result: Mapping[str, Any]) -> str:
    items = result.get("results")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("failed") and item.get("msg"):
            return _text(item["msg"])
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
