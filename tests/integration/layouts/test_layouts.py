"""A machine with nothing, and WSL2's, whose tool and library lie where no PATH leads: ``inventory`` under systemd."""

from __future__ import annotations

from tests.integration.layouts.conftest import WSL, Bare
from tests.lab.cards.install import LIBRARY, TOOL

TOOL_THERE = (f"TemporaryFileSystem={WSL}:mode=0755", f"BindReadOnlyPaths=/{TOOL}:{WSL}/nvidia-smi")
BOTH_THERE = (*TOOL_THERE, f"BindReadOnlyPaths=/{LIBRARY}:{WSL}/libnvidia-ml.so.1")


def test_a_machine_with_nothing_says_so(bare: Bare) -> None:
    """Its library's name is still there and nothing behind it, as after a driver that was taken off."""
    found = bare.report()
    assert (found["source"], found["error"]) == ("virtual", None)
    assert {gpu["vendor"] for gpu in found["gpus"]} == {"virtual"}
    assert not any(one["found"] for one in found["detection"])
    table = bare.inventory()
    for words in (
        "virtual card",
        "ascend: not found, no npu-smi, no device of ascend",
        "no accelerator that answers: cannot run tasks that ask for cards",
        "no InfiniBand: cannot take part in multi-node replicas",
    ):
        assert words in table


def test_a_tool_that_is_on_no_path_is_found(bare: Bare) -> None:
    cards = [card["uuid"] for card in bare.node.cards.read()["cards"]]
    found = bare.report(properties=TOOL_THERE)
    assert (found["source"], found["error"]) == ("nvidia-smi", None)
    assert [gpu["uuid"] for gpu in found["gpus"]] == cards
    assert found["classes"] == [{"class": "nvidia-h100-80gb-hbm3-80g", "count": len(cards)}]
    table = bare.inventory(properties=BOTH_THERE)
    assert f"nvidia: found, nvml answers with {len(cards)} cards" in table
    assert all(uuid in table for uuid in cards) and "no accelerator" not in table
