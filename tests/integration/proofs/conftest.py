from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.control_plane import ControlPlane

PlaneFactory = Callable[..., ControlPlane]


@pytest.fixture
def plane_factory() -> Iterator[PlaneFactory]:
    """Starts real control planes on loopback; they are removed at the end of the test."""
    planes: list[ControlPlane] = []

    def make(name: str, port: int, **settings: Any) -> ControlPlane:
        plane = ControlPlane(name, listen=f"127.0.0.1:{port}", doorbell="", **settings)
        plane.remove()
        planes.append(plane)
        plane.start()
        return plane

    yield make
    for plane in planes:
        plane.remove()
