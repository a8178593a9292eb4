"""Operators are told the names that detectors report."""

from __future__ import annotations

from runtime.agent.hardware.detectors import DETECTORS
from runtime.protocol.vendors import VENDORS


def test_every_detector_has_its_name_in_the_list() -> None:
    assert tuple(name for name, _ in DETECTORS) == VENDORS
