"""The vendors, in the order that decides when several answer. One line and one module a vendor."""

from __future__ import annotations

from functools import partial
from typing import Callable

from runtime.agent.hardware.detector import Detector
from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.hardware.vendors.ascend import ASCEND
from runtime.agent.hardware.vendors.biren import BIREN
from runtime.agent.hardware.vendors.cambricon import CAMBRICON
from runtime.agent.hardware.vendors.enflame import ENFLAME
from runtime.agent.hardware.vendors.hygon import HYGON
from runtime.agent.hardware.vendors.iluvatar import ILUVATAR
from runtime.agent.hardware.vendors.kunlun import KUNLUN
from runtime.agent.hardware.vendors.metax import METAX
from runtime.agent.hardware.vendors.musa import MUSA
from runtime.agent.hardware.vendors.plain import PlainDetector

Factory = Callable[[ToolRunner, "dict[str, str]"], Detector]

DETECTORS: tuple[tuple[str, Factory], ...] = (
    ("musa", partial(PlainDetector, MUSA)),
    ("hygon", partial(PlainDetector, HYGON)),
    ("cambricon", partial(PlainDetector, CAMBRICON)),
    ("biren", partial(PlainDetector, BIREN)),
    ("ascend", partial(PlainDetector, ASCEND)),
    ("kunlun", partial(PlainDetector, KUNLUN)),
    ("iluvatar", partial(PlainDetector, ILUVATAR)),
    ("nvidia", Nvidia),
    ("metax", partial(PlainDetector, METAX)),
    ("enflame", partial(PlainDetector, ENFLAME)),
)
"""(vendor, what makes its detector), in order of preference."""


def all_detectors(runner: ToolRunner, tools: dict[str, str]) -> list[Detector]:
    """One detector a vendor; ``tools`` are the settings' paths of commands."""
    return [factory(runner, tools) for _, factory in DETECTORS]
