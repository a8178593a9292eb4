"""Whether NVIDIA's MPS daemon answers now: only then may tasks share a card by it."""

from __future__ import annotations

from typing import Optional

from runtime.agent.hardware.tools import ToolError, ToolRunner, find_command
from runtime.agent.hardware.values import number

CONTROL = "nvidia-cuda-mps-control"
FIXED = ("/usr/bin/nvidia-cuda-mps-control",)
QUESTION = b"get_default_active_thread_percentage\n"
"""Every daemon since Volta answers it with a number (NVIDIA, "Multi-Process Service")."""

DEADLINE_S = 3.0
ASK_EVERY = 6
"""Once in so many collections (half a minute)."""


class Mps:
    """Asks the daemon's control program. ``setting``: its path from the settings."""

    def __init__(self, runner: ToolRunner, setting: Optional[str] = None) -> None:
        self._runner = runner
        self._setting = setting
        self._collections = 0
        self._answers = False

    def answers(self) -> bool:
        """As of the last time it was asked; once a collection."""
        if self._collections % ASK_EVERY == 0:
            self._answers = self._ask()
        self._collections += 1
        return self._answers

    def _ask(self) -> bool:
        tool = find_command(CONTROL, setting=self._setting, fixed=FIXED)
        if tool is None:
            return False
        try:
            output = self._runner.run(CONTROL, [tool], deadline_s=DEADLINE_S, words=QUESTION)
        except ToolError:
            return False
        return output.status == 0 and answered(output.stdout)


def answered(text: str) -> bool:
    """Whether the text is the daemon's answer, and not a complaint that there is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and number(lines[-1]) is not None
