"""The vendors, in the order that decides when several answer. A name here and one module a vendor."""

from __future__ import annotations

from functools import partial
from typing import Callable

from runtime.agent.hardware.detector import Detector
from runtime.agent.hardware.mps import CONTROL
from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.nvidia_by_smi import SMI
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
from runtime.agent.hardware.vendors.plain import PlainDetector, Vendor

Factory = Callable[[ToolRunner, "dict[str, str]"], Detector]

BEFORE_NVIDIA = (MUSA, HYGON, CAMBRICON, BIREN, ASCEND, KUNLUN, ILUVATAR)
AFTER_NVIDIA = (METAX, ENFLAME)
VENDORS: tuple[Vendor, ...] = (*BEFORE_NVIDIA, *AFTER_NVIDIA)
"""Those that are made of a description."""


def _of(vendor: Vendor) -> tuple[str, Factory]:
    return vendor.name, partial(PlainDetector, vendor)


DETECTORS: tuple[tuple[str, Factory], ...] = (
    *map(_of, BEFORE_NVIDIA),
    (Nvidia.vendor, Nvidia),
    *map(_of, AFTER_NVIDIA),
)
"""(vendor, what makes its detector), in order of preference."""


COMMANDS: tuple[str, ...] = (SMI, CONTROL, *(tool.name for vendor in VENDORS for tool in vendor.tools))
"""All commands whose places can be named."""


def all_detectors(runner: ToolRunner, tools: dict[str, str]) -> list[Detector]:
    """One detector a vendor; ``tools`` are the settings' paths of commands."""
    return [factory(runner, tools) for _, factory in DETECTORS]
