"""Cards by the agent's own detectors, and the vendors' tools one by one."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.agent.doctor.findings import Finding, Point, failure, finding, ok, unknown, warning
from runtime.agent.hardware.inventory import FILE as HARDWARE_FILE
from runtime.agent.hardware.nvidia import SMI_PLACES
from runtime.agent.hardware.nvidia_by_smi import SMI
from runtime.agent.hardware.nvml_cards import VENDOR as NVIDIA
from runtime.agent.hardware.report import take_inventory
from runtime.agent.hardware.tools import ToolError, ToolRunner, find_command
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL

TOOL_S = 8.0
CHEAP_QUESTION: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    SMI: (NVIDIA, SMI_PLACES, ("-L",)),
}
"""Command -> (vendor, its own places, arguments that make it name the cards and nothing more)."""


@dataclass(frozen=True)
class CardFacts:
    """``report`` is what ``inventory --json`` prints; ``before``: the cards that the agent knew last, by vendor,
    None when it cannot be read."""

    report: dict[str, Any] = field(default_factory=dict)
    before: Optional[dict[str, int]] = None

    @property
    def known(self) -> bool:
        """Whether anything can be concluded from the cards that are not listed."""
        return bool(self.report) and not self.report.get("error")

    @property
    def real(self) -> list[dict[str, Any]]:
        return [
            gpu for gpu in self.report.get("gpus") or [] if gpu["vendor"] != VIRTUAL and gpu.get("parent_uuid") is None
        ]

    @property
    def nvidia_present(self) -> bool:
        return any(gpu["vendor"] == NVIDIA for gpu in self.real)


def look_at_cards(tools: dict[str, str], state_dir: Path) -> CardFacts:
    """One collection by all detectors; they end by deadlines of their own."""
    return CardFacts(take_inventory(tools), _cards_before(state_dir / HARDWARE_FILE))


def _cards_before(path: Path) -> Optional[dict[str, int]]:
    try:
        counts: dict[str, int] = {}
        for gpu in json.loads(path.read_bytes())["gpus"]:
            if gpu.get("parent_uuid") is None:
                counts[gpu["vendor"]] = counts.get(gpu["vendor"], 0) + 1
        return counts
    except (OSError, ValueError, KeyError, TypeError):
        return None


_DRIVER_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"version mismatch|\(code 18\)",
        "the driver was upgraded under the running kernel module: drain the node and reboot it",
    ),
    (
        r"driver not loaded|couldn't communicate with the nvidia driver|\(code 9\)",
        "the kernel module is not loaded: modprobe nvidia, and look at dmesg (another kernel, Secure Boot, no module)",
    ),
    (
        r"couldn't find .*libnvidia-ml|library not found|\(code 12\)|neither nvml nor",
        "the vendor's library is not here: install the driver's user-space part",
    ),
    (r"insufficient permissions|\(code 4\)", "the device files are closed to this user: run the doctor as root"),
    (r"did not answer|stuck", "the driver hangs: look at dmesg for Xid or NVRM lines; a reboot is the usual cure"),
    (r"is lost|fallen off", "the card fell off the bus: drain the node and power it off and on"),
    (r"requires reset", "drain the node and reset the card (nvidia-smi --gpu-reset), or reboot"),
)
"""What a driver's words mean for the one who has to act; the first that fits."""

_OTHER_ADVICE = "look at dmesg and at the vendor's tool"


def advice_for(words: str) -> str:
    for pattern, advice in _DRIVER_ADVICE:
        if re.search(pattern, words, re.IGNORECASE):
            return advice
    return _OTHER_ADVICE


def judge_driver(facts: CardFacts) -> Finding:
    report = facts.report
    points: list[Point] = []
    error = report.get("error")
    if error:
        points.append(failure(str(error), "a driver that answers", advice_for(str(error))))
    for gpu in facts.real:
        problems = gpu["health"]["problems"]
        if problems:
            words = f"{gpu['vendor']} card {gpu['index']} ({gpu['uuid']}): {', '.join(problems)}"
            points.append(warning(words, "a card in good health", advice_for(words)))
    for one in report.get("gpu_collect_failures") or []:
        if one.get("uuid") not in {gpu["uuid"] for gpu in facts.real}:
            words = f"card {one.get('index')}: {one.get('reason')}"
            points.append(warning(words, "a card in good health", advice_for(words)))
    for vendor, count in (facts.before or {}).items():
        now = sum(gpu["vendor"] == vendor for gpu in facts.real)
        if vendor != VIRTUAL and now < count and not error:
            words = f"{now} cards of {vendor} answer, the agent knew {count}"
            points.append((warning if now else failure)(words, f"{count}", advice_for("fallen off")))
    if facts.real:
        kinds = ", ".join(f"{one['count']} x {one['class']}" for one in report.get("classes") or [])
        points.append(ok(f"{kinds or len(facts.real)} by {report.get('source')}"))
    elif not error:
        whys = "; ".join(f"{one['vendor']}: {one['why']}" for one in report.get("detection") or [])
        advice = "if this machine has cards, install their driver; else it is given tasks without cards only"
        points.append(warning(f"no card answers ({whys})", "a card that answers", advice))
    return finding("driver", points)


@dataclass(frozen=True)
class ToolFacts:
    """One vendor's command. ``path`` None: not here. ``configured``: agent.yaml names the place. ``error`` is what
    kept it from answering; ``status`` its exit status, ``words`` the first line of what it said."""

    name: str
    path: Optional[str] = None
    configured: bool = False
    runnable: bool = True
    error: str = ""
    status: int = 0
    words: str = ""
    seconds: float = 0.0


def look_at_tools(settings: dict[str, str], say: Callable[[str], None] = lambda _: None) -> list[ToolFacts]:
    """Each known command, and each that the settings name; one after the other, as each has its deadline."""
    runner = ToolRunner(TOOL_S)
    found = []
    for name in sorted({*CHEAP_QUESTION, *settings}):
        say(name)
        found.append(_look_at_tool(name, settings.get(name), runner))
    say("")
    return found


def _look_at_tool(name: str, configured: Optional[str], runner: ToolRunner) -> ToolFacts:
    _, fixed, arguments = CHEAP_QUESTION.get(name, ("", (), ()))
    path = find_command(name, setting=configured, fixed=fixed)
    if path is None:
        return ToolFacts(name)
    tool = ToolFacts(name, path, configured is not None)
    if not (Path(path).is_file() and os.access(path, os.X_OK)):
        return replace(tool, runnable=False)
    if name not in CHEAP_QUESTION:
        return tool
    began = time.monotonic()
    try:
        output = runner.run(name, [path, *arguments])
    except ToolError as error:
        return replace(tool, error=str(error))
    said = (output.stdout + output.stderr).strip().splitlines()
    words = said[0][:200] if said else ""
    return replace(tool, status=output.status, words=words, seconds=time.monotonic() - began)


def judge_tools(tools: list[ToolFacts], cards_answer: bool) -> Finding:
    """A tool that fails or hangs is a failure, unless the cards answer by another way meanwhile."""
    bad = warning if cards_answer else failure
    points = []
    for tool in tools:
        if tool.path is None:
            points.append(ok(f"{tool.name} is not here"))
        elif not tool.runnable:
            where = f"hardware.tools.{tool.name}: " if tool.configured else ""
            advice = f"correct hardware.tools.{tool.name}" if tool.configured else "repair the driver's installation"
            points.append(failure(f"{where}{tool.path} is no program", "an executable file", advice))
        elif tool.error:
            words = tool.error if tool.path in tool.error else f"{tool.error} ({tool.path})"
            points.append(bad(words, f"an answer in {TOOL_S:g} s", advice_for(tool.error)))
        elif tool.status != 0:
            said = f": {tool.words}" if tool.words else ""
            words = f"{tool.path} ends with status {tool.status}{said}"
            points.append(bad(words, "status 0", advice_for(tool.words)))
        else:
            asked = f" answers in {tool.seconds:.1f} s" if tool.name in CHEAP_QUESTION else ""
            points.append(ok(f"{tool.path}{asked}"))
    return finding("tools", points or [unknown("no vendor's tool is known")])
