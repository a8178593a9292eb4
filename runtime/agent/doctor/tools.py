"""The vendors' commands: which are here, and whether each answers, asked for no more than its plain table."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Optional

from runtime.agent.deadline import Begun
from runtime.agent.doctor.advice import advice_for
from runtime.agent.doctor.findings import Finding, Point, failure, finding, ok, warning
from runtime.agent.doctor.vendors import ALL, Known, VendorFacts
from runtime.agent.hardware.asking import MISSING, ask, refuse_missing
from runtime.agent.hardware.detector import CollectorError
from runtime.agent.hardware.tools import ToolRunner, is_executable
from runtime.agent.hardware.vendors.plain import Tool, path_of

TOOL_S = 8.0


@dataclass(frozen=True)
class ToolFacts:
    """One command. ``vendor`` "": the settings name it, and no vendor's tool is called so. ``path`` None: it is not
    here. ``configured``: agent.yaml names the place. ``error`` is what kept it from answering, in its words or ours,
    ``kind`` what its parser made of that; ``cards``: how many it lists; ``folders``: where its libraries are looked
    for."""

    name: str
    vendor: str = ""
    path: Optional[str] = None
    configured: bool = False
    runnable: bool = True
    error: str = ""
    kind: Optional[str] = None
    cards: Optional[int] = None
    seconds: float = 0.0
    folders: str = ""


def look_at_tools(
    settings: Mapping[str, str], vendors: Mapping[str, VendorFacts], say: Callable[[str], None] = lambda _: None
) -> list[ToolFacts]:
    """Each vendor's command, and each that the settings name, side by side: each has its deadline."""
    runner = ToolRunner(TOOL_S)
    wanted = [
        (tool, vendor)
        for vendor in ALL
        for tool in vendor.tools
        if not tool.shared_name or tool.name in settings or vendors[vendor.name].here
    ]
    asked = {tool.name: Begun(partial(_look_at, tool, vendor, settings, runner)) for tool, vendor in wanted}
    found = []
    for name, look in asked.items():
        say(name)
        look.wait(None)
        found.append(look.result())
    say("")
    return found + [_unknown(name, path) for name, path in settings.items() if name not in asked]


def _look_at(tool: Tool, vendor: Known, settings: Mapping[str, str], runner: ToolRunner) -> ToolFacts:
    setting = settings.get(tool.name)
    path = path_of(tool, setting)
    facts = ToolFacts(tool.name, vendor.name, folders=tool.environment.get("LD_LIBRARY_PATH", ""))
    if path is None:
        return facts
    facts = replace(facts, path=path, configured=setting is not None, runnable=is_executable(path))
    if not facts.runnable:
        return facts
    began = time.monotonic()
    try:
        text = ask(runner, tool.name, [path, *tool.main], tool.environment)
    except CollectorError as error:
        return replace(facts, error=str(error))
    reading = tool.parse(list(tool.main), text)
    try:
        refuse_missing(tool.name, path, reading, text)
    except CollectorError as error:
        return replace(facts, error=str(error), kind=MISSING)
    facts = replace(facts, cards=len(reading.cards), seconds=time.monotonic() - began)
    if reading.cards or reading.devices == 0:
        return facts  # what is said of single cards is in the line on the driver
    if reading.errors:
        return replace(facts, error=reading.errors[0].text, kind=reading.errors[0].kind)
    said = text.strip().splitlines()[:1]
    return replace(facts, error=f"says nothing that is known{f': {said[0][:200]}' if said else ''}")


def _unknown(name: str, path: str) -> ToolFacts:
    """A command of the settings that is asked by nobody here."""
    return ToolFacts(name, path=path, configured=True, runnable=is_executable(path))


def judge_tools(tools: Sequence[ToolFacts], vendors: Mapping[str, VendorFacts], answering: Collection[str]) -> Finding:
    """A tool that fails or hangs is a failure, unless cards answer meanwhile: ``answering`` are their vendors."""
    points = [point for tool in tools for point in _points(tool, vendors, answering)]
    points += [point for name, facts in vendors.items() for point in _missing(name, facts, tools, answering)]
    return finding("tools", points or [ok("no vendor's tool is here, and no device that needs one")])


def _points(tool: ToolFacts, vendors: Mapping[str, VendorFacts], answering: Collection[str]) -> list[Point]:
    bad = warning if answering else failure
    if tool.path is None:
        return []
    if not tool.runnable:
        where = f"hardware.tools.{tool.name}: " if tool.configured else ""
        advice = f"correct hardware.tools.{tool.name}" if tool.configured else "repair the driver's installation"
        return [failure(f"{where}{tool.path} is no program", "an executable file", advice)]
    if tool.error:
        words = tool.error if tool.path in tool.error else f"{tool.path}: {tool.error}"
        advice = advice_for(tool.error, kind=tool.kind, vendor=tool.vendor, folders=tool.folders)
        if tool.vendor in vendors and not vendors[tool.vendor].here and "did not answer" not in tool.error:
            advice = f"no device of {tool.vendor} is here: take the tool away if that is right; else {advice}"
        wanted = f"an answer in {TOOL_S:g} s" if "did not answer" in tool.error else "a tool that lists its cards"
        return [bad(words, wanted, advice)]
    devices = len(vendors[tool.vendor].devices) if tool.vendor in vendors else 0
    if tool.cards == 0 and devices:
        words = f"{tool.path} knows no card, {devices} of {tool.vendor} are on PCI"
        return [bad(words, "a tool that lists them", advice_for("knows no card"))]
    listed = "" if tool.cards is None else f" answers in {tool.seconds:.1f} s with {tool.cards} cards"
    return [ok(f"{tool.path}{listed}")]


def _missing(name: str, facts: VendorFacts, tools: Sequence[ToolFacts], answering: Collection[str]) -> list[Point]:
    """A vendor whose devices are here without a tool to ask."""
    own = [tool for tool in tools if tool.vendor == name]
    if not facts.here or any(tool.path is not None for tool in own):
        return []
    commands = " or ".join(tool.name for tool in own)
    what = f"{len(facts.devices)} devices of {name} on PCI" if facts.devices else f"device files of {name}"
    if name in answering:
        return [ok(f"{commands} is not here; the cards of {name} answer without it")]
    advice = f"install {name}'s driver with its tools, or name the place in hardware.tools.{own[0].name}"
    return [(warning if answering else failure)(f"{what}, but no {commands}", "the vendor's tool", advice)]
