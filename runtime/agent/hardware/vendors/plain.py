"""A detector made of a description: a vendor's tool, where it lies, what it is asked, and how a card is known.

The plain table alone is enough. What is asked beside it only adds, each question may be refused for itself, and what
is asked seldom adds only what lasts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.asking import WIDE_EVERY, ask, refuse_missing
from runtime.agent.hardware.cards import Key, by_uuid_or_bus, cards_of, refuse_failed
from runtime.agent.hardware.detector import BY_ABSENCE, NONE, Cards, CollectorError, Detection, NoAnswer
from runtime.agent.hardware.giving.description import Giving
from runtime.agent.hardware.holders import Places
from runtime.agent.hardware.pci import DISPLAY_CLASSES, SYSFS, accelerators, normal_bus_id
from runtime.agent.hardware.reading import CardReading, Parser, Reading
from runtime.agent.hardware.tools import ToolRunner, find_command
from runtime.protocol.hardware import Gpu

ROOT = Path("/")

AGAIN_EVERY = 12
"""What lasts is asked for again after so many collections (a minute) when nothing of it was answered, and at once when
other cards are listed."""

PASSING = ("memory_used_mib", "utilization_pct", "temperature_c", "power_w", "health", "health_raw", "failure")
"""Fields of a reading that are of the moment: never taken from an old answer."""

Questions = Callable[[Reading], Sequence[Sequence[str]]]
"""The plain table's reading -> arguments of further calls."""


def no_questions(main: Reading) -> Sequence[Sequence[str]]:
    return ()


def questions(*arguments: Sequence[str]) -> Questions:
    """The same ones whatever the plain table says."""
    return lambda main: arguments


@dataclass(frozen=True)
class Tool:
    """``places``: the vendor's own, before PATH, as patterns. ``main``: arguments that print the plain table.
    ``beside``: asked each time, ``wide``: seldom. ``environment``: added to the agent's; a folder of libraries that
    the tool needs. ``shared_name``: others have a tool of that name too, so it counts only where it is in the settings
    or something else of this vendor is here.
    """

    name: str
    parse: Parser
    places: Sequence[str] = ()
    main: Sequence[str] = ()
    beside: Questions = no_questions
    wide: Questions = no_questions
    environment: Mapping[str, str] = field(default_factory=dict)
    shared_name: bool = False


@dataclass(frozen=True)
class Vendor:
    """``tools`` in order of preference: the first that is here is used. ``signs``: files that only a machine with
    this vendor's driver has, as patterns below ``/``; ``pci_classes``: what its cards are on PCI. ``loss_detection``:
    with cards that have a key."""

    name: str
    tools: Sequence[Tool]
    pci_vendors: Sequence[str]
    giving: Giving
    pci_classes: Sequence[str] = DISPLAY_CLASSES
    signs: Sequence[str] = ()
    key: Key = by_uuid_or_bus
    loss_detection: str = BY_ABSENCE


def path_of(tool: Tool, setting: Optional[str]) -> Optional[str]:
    """Where a tool is; ``setting`` is the place that the settings name."""
    places = [str(place) for pattern in tool.places for place in sorted(ROOT.glob(pattern.lstrip("/")))]
    return find_command(tool.name, setting=setting, fixed=places)


def is_signed(signs: Sequence[str], root: Path = ROOT) -> bool:
    """Whether one of these files, named by patterns, is below ``root``."""
    return any(next(root.glob(sign.lstrip("/")), None) is not None for sign in signs)


class PlainDetector:
    """``settings``: command name -> path, from the settings. ``root``: below which the signs are looked for."""

    evidence = "fixture"

    def __init__(
        self,
        about: Vendor,
        runner: ToolRunner,
        settings: Optional[Mapping[str, str]] = None,
        *,
        sysfs: Path = SYSFS,
        root: Path = ROOT,
    ) -> None:
        self.vendor = about.name
        self._about = about
        self._runner = runner
        self._settings = settings or {}
        self._sysfs = sysfs
        self._root = root
        self._places = Places()
        self._collections = 0
        self._asked_at = 0
        self._listed: Optional[list[tuple[Any, ...]]] = None
        self._wide: list[Reading] = []
        self._keyed = True

    @property
    def loss_detection(self) -> str:
        """As the vendor's cards allow; NONE while no card has more than its number."""
        return self._about.loss_detection if self._keyed else NONE

    def detect(self) -> Detection:
        plugged = self._plugged()
        here = plugged > 0 or self._signed()
        names = " or ".join(tool.name for tool in self._about.tools)
        found = self._tool()
        if found is None:
            if here:
                return Detection(False, True, f"devices of {self.vendor} ({plugged} on PCI), but no {names}")
            return Detection(False, False, f"no {names}, no device of {self.vendor}")
        tool, path = found
        try:
            reading = self._read(tool, path, tool.main)
            refuse_failed(reading, tool.name)
        except CollectorError as error:
            return Detection(False, True, str(error))
        if not reading.cards:
            return Detection(False, here, f"{tool.name} answers and knows no card")
        return Detection(True, True, f"{tool.name} answers with {len(reading.cards)} cards")

    def collect(self, known: list[Gpu]) -> Cards:
        found = self._tool()
        if found is None:
            raise CollectorError(f"no {' or '.join(tool.name for tool in self._about.tools)} is here any more")
        tool, path = found
        main = self._read(tool, path, tool.main)
        refuse_failed(main, tool.name)
        self._ask_wide(tool, path, main)
        reading = main
        for added in self._wide:
            reading = added_to(reading, lasting(added))
        for answer in self._aside(tool, path, tool.beside(main)):
            reading = added_to(reading, answer)
        self._collections += 1
        about = self._about
        cards = cards_of(reading, known, vendor=about.name, source=tool.name, key=about.key, sysfs=self._sysfs)
        self._keyed = all(gpu.uuid != f"{about.name}-{gpu.index}" for gpu in cards.gpus)
        # Those that answer come first, in the reading's order.
        tells = {gpu.uuid: {**reading.more, **card.more} for card, gpu in zip(reading.cards, cards.gpus)}
        holders = None if cards.holders is None else self._places.of(cards.holders)
        return dataclasses.replace(cards, holders=holders, tells=tells)

    def close(self) -> None:
        """Nothing is held between two calls."""

    def _ask_wide(self, tool: Tool, path: str, main: Reading) -> None:
        listed = [(card.index, card.uuid, card.bus_id) for card in main.cards]
        due = WIDE_EVERY if self._wide else AGAIN_EVERY
        if listed == self._listed and self._collections - self._asked_at < due:
            return
        if listed != self._listed:
            # By index, an old answer may be another card's.
            self._wide = []
        answers = self._aside(tool, path, tool.wide(main))
        self._wide = [answer for answer in answers if answer != Reading()] or self._wide
        self._listed, self._asked_at = listed, self._collections

    def _tool(self) -> Optional[tuple[Tool, str]]:
        """A tool of the settings before the others."""
        for tool in sorted(self._about.tools, key=lambda tool: tool.name not in self._settings):
            setting = self._settings.get(tool.name)
            if tool.shared_name and setting is None and not (self._signed() or self._plugged()):
                continue
            path = path_of(tool, setting)
            if path is not None:
                return tool, path
        return None

    def _signed(self) -> bool:
        return is_signed(self._about.signs, self._root)

    def _plugged(self) -> int:
        about = self._about
        return sum(len(accelerators(vendor, self._sysfs, about.pci_classes)) for vendor in about.pci_vendors)

    def _read(self, tool: Tool, path: str, arguments: Sequence[str]) -> Reading:
        text = ask(self._runner, tool.name, [path, *arguments], tool.environment)
        reading = tool.parse(list(arguments), text)
        refuse_missing(tool.name, path, reading, text)
        return reading

    def _aside(self, tool: Tool, path: str, asked: Sequence[Sequence[str]]) -> list[Reading]:
        """Answers to what may be refused: then nothing is added. Ends at the first that is not answered in time, so
        that a tool that hangs takes no more of a round than one deadline."""
        answers = []
        for arguments in asked:
            try:
                answers.append(self._read(tool, path, arguments))
            except NoAnswer:
                break
            except CollectorError:
                continue
        return answers


def lasting(reading: Reading) -> Reading:
    """Without what is of the moment."""
    nothing: dict[str, Any] = dict.fromkeys(PASSING)
    cards = [dataclasses.replace(card, **nothing) for card in reading.cards]
    return dataclasses.replace(reading, cards=cards, processes=None)


def added_to(main: Reading, other: Reading) -> Reading:
    """``main`` with what only ``other`` tells of the same cards; no card is added, and no value replaced."""
    cards = []
    for card in main.cards:
        same = [each for each in other.cards if _same(card, each)]
        cards.append(_filled(card, same[0]) if len(same) == 1 else card)
    return dataclasses.replace(
        main,
        cards=cards,
        driver_version=main.driver_version or other.driver_version,
        processes=main.processes if main.processes is not None else other.processes,
        more={**other.more, **main.more},
    )


def _same(one: CardReading, two: CardReading) -> bool:
    """By the best that both tell: uuid, bus id, index; never when their numbers of card or chip differ."""
    for name in ("npu_id", "chip_id"):
        first, second = one.more.get(name), two.more.get(name)
        if first is not None and second is not None and first != second:
            return False
    for first, second in (
        (one.uuid, two.uuid),
        (normal_bus_id(one.bus_id), normal_bus_id(two.bus_id)),
        (one.index, two.index),
    ):
        if first is not None and second is not None:
            return bool(first == second)
    return False


def _filled(card: CardReading, other: CardReading) -> CardReading:
    fields = [part.name for part in dataclasses.fields(card) if part.name not in ("more", "name_cut")]
    new = {name: getattr(other, name) for name in fields if getattr(card, name) is None}
    if card.name_cut and other.name is not None and not other.name_cut:
        new.update(name=other.name, name_cut=False)
    return dataclasses.replace(card, **new, more={**other.more, **card.more})
