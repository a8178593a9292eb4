"""pytest fixtures over the lab; a conftest takes them in by ``from tests.lab.fixtures import *``.

A running lab is used and left running. One that the tests brought up goes down after the last test, unless
``HF_LAB_KEEP=1``. Where the lab cannot run (not root), tests are skipped on a laptop and fail under CI.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab import Lab, LabError, Node, engine, places, setup

__all__ = ["lab", "node"]

NODES = 3


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Three nodes with two cards each, the registry and the task image; or this user's share of a lab that is up.

    Whoever has a share leaves the other nodes alone: their users cut and freeze them.
    """
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("the lab needs root")
    if places.share() is not None:
        yield Lab.attach()
        return
    was_up = engine.version() is not None and bool(setup.existing())
    up = Lab.up(nodes=NODES)
    yield up
    if not was_up and os.environ.get("HF_LAB_KEEP") != "1":
        up.down()


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    """hf-node-1, powered, connected, engine answering and cards healthy before and after the test."""
    one = lab.node(1)
    _make_whole(one)
    yield one
    _make_whole(one)


def _make_whole(one: Node) -> None:
    if not one.running:
        one.power_on()
    one.heal_network()
    one.thaw_engine()
    if one.run(["systemctl", "is-active", "docker"], check=False).stdout.strip() != "active":
        one.start_engine()
    try:
        one.cards.reset()
    except LabError as error:
        raise LabError(f"{one.name} cannot be made whole: {error}") from error
