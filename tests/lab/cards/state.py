"""The card state file of a node, ``/var/lib/hf-lab/cards.json``; its format is in ``tests/lab/README.md``.

The file lies in a folder of the machine that is mounted into the node, so it is read and written without a
process on the node, also while the node is off, and it outlives a power cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from tests.lab import places
from tests.lab.process import LabError

# Whole tables of one model: what `nvidia-smi mig -lgip` shows and what an instance of it holds.
_PROFILE_KEYS = ("name", "id", "ci_id", "size", "starts", "memory_mib", "sms")
_H100_PROFILES = [
    dict(zip(_PROFILE_KEYS, row))
    for row in (
        ("1g.10gb", 19, 0, 1, [0, 1, 2, 3, 4, 5, 6], 9984, 16),
        ("1g.20gb", 15, 7, 2, [0, 2, 4, 6], 20096, 26),
        ("2g.20gb", 14, 1, 2, [0, 2, 4], 20096, 32),
        ("3g.40gb", 9, 2, 4, [0, 4], 40448, 60),
        ("4g.40gb", 5, 3, 4, [0], 40448, 64),
        ("7g.80gb", 0, 4, 8, [0], 81008, 132),
    )
]

# Values of a card by model; invented where a real one differs from card to card.
MODELS: dict[str, dict[str, Any]] = {
    "h100": {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_mib": 81559,
        "compute_capability": "9.0",
        "power_limit_w": 700.0,
        "mig_mode": "Disabled",
        "mig_pending": "Disabled",
        "mig_profiles": _H100_PROFILES,
    },
    "l4": {
        "name": "NVIDIA L4",
        "memory_total_mib": 23034,
        "compute_capability": "8.9",
        "power_limit_w": 72.0,
        "mig_mode": None,
        "mig_pending": None,
        "mig_profiles": [],
    },
}


def card(node: str, index: int, model: str = "h100") -> dict[str, Any]:
    """A healthy idle card; its uuid follows from node and index, so it is the same at every ``up``."""
    own = uuid.uuid5(uuid.NAMESPACE_DNS, f"{node}.card-{index}.hf-lab")
    return {
        "uuid": f"GPU-{own}",
        "serial": str(own.int % 10**13),
        "minor": index,
        "pci_bus_id": f"00000000:{0x17 + 0x10 * index:02X}:00.0",
        "numa_node": 0,
        "memory_used_mib": 4,
        "temperature_c": 31 + index,
        "power_w": 70.5 + index,
        "utilization_pct": 0,
        "ecc_uncorrected": 0,
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "present": True,
        "mig_instances": [],
        "processes": [],
        "nvlinks": [],
        "faults": {},
        **json.loads(json.dumps(MODELS[model])),
    }


def default_state(node: str, count: int, model: str = "h100") -> dict[str, Any]:
    """``count`` cards, each joined to every other by four NVLinks."""
    cards = [card(node, index, model) for index in range(count)]
    if model == "h100":
        for mine in cards:
            mine["nvlinks"] = [peer["pci_bus_id"] for peer in cards if peer is not mine for _ in range(4)]
    return {
        "driver_version": "550.127.08",
        "cuda_version": "12.4",
        "mps_running": False,
        "faults": {},
        "smi": {},
        "cards": cards,
    }


class Cards:
    """Reads and writes one node's state; every write replaces the file at once."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.path = places.state() / "nodes" / node / "cards.json"

    def read(self) -> dict[str, Any]:
        try:
            state = json.loads(self.path.read_text())
        except FileNotFoundError:
            raise LabError(f"{self.node} has no {self.path}: is the lab up?") from None
        if not isinstance(state, dict):
            raise LabError(f"{self.path} holds a {type(state).__name__}, wanted an object")
        return state

    def write(self, state: dict[str, Any]) -> None:
        places.write_atomically(self.path, json.dumps(state, indent=1).encode())

    @contextlib.contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        """Read, change in the block, write at its end; `nvidia-smi` on the node takes the same lock."""
        with self.path.with_name("cards.json.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            yield state
            self.write(state)

    def reset(self) -> None:
        """As many healthy cards as the file names now, everything else as at first."""
        self.write(default_state(self.node, len(self.read()["cards"])))

    def set(self, index: int, **values: Any) -> None:
        """Change values of one card: ``cards.set(0, temperature_c=None, memory_used_mib=80000)``."""
        with self.edit() as state:
            unknown = sorted(set(values) - set(state["cards"][index]))
            if unknown:
                raise LabError(f"a card has no {unknown}; it has {sorted(state['cards'][index])}")
            state["cards"][index].update(values)

    def fault(
        self,
        call: str,
        index: Optional[int] = None,
        error: int = 0,
        delay_s: float = 0,
        hang: bool = False,
    ) -> None:
        """Make an NVML call fail, wait or hang: on one card, or everywhere without ``index``.

        ``call`` is a function's name without version suffix, ``init``, ``handle`` (getting the card) or
        ``*`` (every call). A hang ends when the fault is cleared.
        """
        fault = {"error": error, "delay_s": delay_s, "hang": hang}
        with self.edit() as state:
            (state if index is None else state["cards"][index])["faults"][call] = fault

    def lose(self, index: int) -> None:
        """The card fell off the bus: every handle of it is refused with 15 (GPU is lost)."""
        self.fault("handle", index, error=15)

    def clear_faults(self) -> None:
        """No library fault, no card fault, no `nvidia-smi` fault; all cards present."""
        with self.edit() as state:
            state["faults"], state["smi"] = {}, {}
            for one in state["cards"]:
                one["faults"], one["present"] = {}, True

    def runtime_calls(self) -> list[dict[str, Any]]:
        """What the Docker runtime ``nvidia`` was asked for on this node, oldest first."""
        log = Path(self.path.with_name("runtime.log"))
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
