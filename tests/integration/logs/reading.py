"""Reads a task's log as a follower does, and holds what came against what was printed."""

from __future__ import annotations

from typing import Any

from tests.integration.agent_tasks.agent_bench import Plane


class Reader:
    """Asks again and again from where it is. ``dropped`` counts the bytes that are said to be gone."""

    def __init__(self, plane: Plane, task_id: str) -> None:
        self._plane = plane
        self._path = f"/tasks/{task_id}/logs?follow=true&from="
        self.text = ""
        self.at = 0
        self.dropped = 0

    def read(self) -> bool:
        """Whether something new came."""
        status, body = self._plane.call("GET", self._path + str(self.at))
        assert status == 200, body
        if body["to"] <= self.at:
            return False
        assert body["from"] >= self.at, "a part was sent again"
        self.dropped += body["dropped"]
        self.text += body["data"]
        self.at = body["to"]
        return True

    def has(self, word: str) -> bool:
        self.read()
        return word in self.text


def held(plane: Plane, task_id: str, query: str = "") -> dict[str, Any]:
    """What the control plane holds, without asking the node for more."""
    status, body = plane.call("GET", f"/tasks/{task_id}/logs{query}")
    assert status == 200, body
    return dict(body)


def numbers_in_order(text: str) -> list[int]:
    """The numbers of lines ``line N``; AssertionError when one is missing or comes twice. What comes after the last
    newline is the beginning of a line, whose number is not known yet."""
    found = [int(line.split()[1]) for line in text.rpartition("\n")[0].splitlines() if line.startswith("line ")]
    wrong = [(before, after) for before, after in zip(found, found[1:], strict=False) if after != before + 1]
    assert wrong == [], f"{len(found)} lines, not one after the other at {wrong[:5]}"
    return found
