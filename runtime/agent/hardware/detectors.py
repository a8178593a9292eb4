"""The vendors, in the order that decides when several answer. One line and one module a vendor."""

from __future__ import annotations

from typing import Callable

from runtime.agent.hardware.detector import Detector
from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.tools import ToolRunner

Factory = Callable[[ToolRunner, "dict[str, str]"], Detector]

DETECTORS: tuple[tuple[str, Factory], ...] = (("nvidia", Nvidia),)
"""(vendor, what makes its detector), in order of preference."""


def all_detectors(runner: ToolRunner, tools: dict[str, str]) -> list[Detector]:
    """One detector a vendor; ``tools`` are the settings' paths of commands."""
    return [factory(runner, tools) for _, factory in DETECTORS]
