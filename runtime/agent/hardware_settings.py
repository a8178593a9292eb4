"""The settings ``hardware.*``, and what may be wrong with them though each has the right type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Optional

from runtime.protocol.constraints import Text, Within
from runtime.protocol.names import ImageReferenceError, parse_image_reference
from runtime.protocol.problems import Fault, nearest_name


@dataclass(frozen=True)
class HardwareSettings:
    """``detect``: the first vendor found or all of them; ``tools``: command name -> path; ``virtual_cards``:
    how many virtual cards a node without any card reports. ``probe_image``: what has to end well on a card that was bad
    (with ``probe_command``, else the image's own; in ``probe_timeout_s``) before it is given out again; None: nothing.
    """

    detect: Annotated[str, Text(pattern="first|all")] = "first"
    tools: dict[str, str] = field(default_factory=dict)
    virtual_cards: Annotated[int, Within(0, 64)] = 1
    probe_image: Optional[str] = None
    probe_command: list[str] = field(default_factory=list)
    probe_timeout_s: Annotated[float, Within(1, 3600)] = 60


def tool_faults(hardware: HardwareSettings) -> list[Fault]:
    """Commands that nobody asks: mistyped, or of a newer release."""
    faults = [(name, tool_fault(name)) for name in hardware.tools]
    return [Fault(f"hardware.tools.{name}", "no command of a vendor", wanted) for name, wanted in faults if wanted]


def tool_fault(name: str) -> Optional[str]:
    """What would be right where a vendor's command is wanted; None when ``name`` is one."""
    from runtime.agent.hardware.detectors import COMMANDS  # all vendors' modules, for the few who name a tool

    if name in COMMANDS:
        return None
    nearest = nearest_name(name, COMMANDS)
    return f"one of {', '.join(COMMANDS)}" + (f"; the nearest is {nearest}" if nearest else "")


def probe_faults(hardware: HardwareSettings) -> list[Fault]:
    if hardware.probe_image is None:
        given = bool(hardware.probe_command)
        return [Fault("hardware.probe_command", "a command without an image", "hardware.probe_image")] if given else []
    try:
        parse_image_reference(hardware.probe_image)
    except ImageReferenceError as error:
        return [Fault("hardware.probe_image", f"{hardware.probe_image[:80]!r}: {error}", "an image reference")]
    return []
