"""Which card a task sees, on a machine whose cards CUDA and nvidia-smi number differently."""

from __future__ import annotations

import pytest

from runtime.agent.hardware.giving.description import Card, Host
from runtime.agent.hardware.visibility import OWNED_VARIABLES, container_options, process_options
from runtime.protocol.hardware import Gpu

SLOW = Card(Gpu("GPU-slow", "nvidia", 0, "NVIDIA T4", pci_bus_id="00000000:17:00.0"))
FAST = Card(Gpu("GPU-fast", "nvidia", 1, "NVIDIA H100", pci_bus_id="00000000:65:00.0"))


@pytest.mark.case("FC-042")
def test_the_second_card_is_given_by_its_uuid_and_in_the_order_of_the_bus() -> None:
    """What happened: CUDA puts the fastest card first, so index 1 was another card inside the container."""
    environment = container_options([FAST], [SLOW, FAST], Host(runtimes=("nvidia",))).environment
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-fast"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert container_options([FAST], [SLOW, FAST]).requests[0]["DeviceIDs"] == ["GPU-fast"]
    assert "CUDA_DEVICE_ORDER" in OWNED_VARIABLES


@pytest.mark.case("FC-042")
def test_a_plain_process_gets_it_in_the_same_way() -> None:
    environment = process_options([FAST]).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-fast"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
