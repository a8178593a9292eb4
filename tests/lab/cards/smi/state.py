"""Reading the card state as the tool sees it: faults become its messages and exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import signal
import sys
import time
from typing import Any, Optional

Card = dict[str, Any]
PATH = pathlib.Path(os.environ.get("HF_LAB_CARDS", "/var/lib/hf-lab/cards.json"))
TEXTS = {
    3: "Not Supported", 4: "Insufficient Permissions", 6: "Not Found", 10: "Timeout", 15: "GPU is lost",
    16: "GPU requires reset", 17: "GPU access blocked by the operating system",
    18: "Driver/library version mismatch", 999: "Unknown Error",
}  # fmt: skip
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.\n"
)


class Failure(Exception):
    """Ends the tool with this text on standard output and this exit code, as the real one does."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text, self.code = text, code if code < 256 else 255


class State:
    """The file's content, and the cards that are present, each with its index of today."""

    def __init__(self, tree: Card) -> None:
        self.tree = tree
        self.cards = [card for card in tree.get("cards", []) if card.get("present", True)]
        for index, card in enumerate(self.cards):
            card["index"] = index

    @classmethod
    def read(cls) -> State:
        try:
            return cls(json.loads(PATH.read_text()))
        except FileNotFoundError:
            raise Failure(NO_DRIVER, 9) from None
        except ValueError as error:
            raise Failure(f"Failed to initialize NVML: Unknown Error\n(hf-lab: {PATH}: {error})", 255) from None

    def select(self, wanted: Optional[str]) -> list[Card]:
        """Cards named by index, uuid or bus id, comma-separated; all without a name."""
        if not self.cards:
            raise Failure("No devices were found", 6)
        if wanted is None:
            return self.cards
        chosen = []
        for name in wanted.split(","):
            found = [c for c in self.cards if name in (str(c["index"]), c["uuid"]) or same_bus(name, c["pci_bus_id"])]
            if not found:
                raise Failure("No devices were found", 6)
            chosen += found
        return chosen

    def change(self, index: int, **values: Any) -> None:
        """Write values of one card; under a lock, whole or not at all."""
        beside = PATH.with_name(PATH.name + ".smi")
        with PATH.with_name(PATH.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tree = json.loads(PATH.read_text())
            [c for c in tree["cards"] if c.get("present", True)][index].update(values)
            beside.write_text(json.dumps(tree, indent=1))
            beside.replace(PATH)
        self.cards[index].update(values)


def same_bus(left: str, right: str) -> bool:
    """Bus ids come with four or eight digits of domain."""
    try:
        return [int(part, 16) for part in left.replace(".", ":").split(":")] == [
            int(part, 16) for part in right.replace(".", ":").split(":")
        ]
    except ValueError:
        return False


def short_bus(card: Card) -> str:
    """Messages print four digits of domain where tables print eight."""
    return str(card["pci_bus_id"])[-12:]


def fault(holder: Card, name: str) -> Card:
    faults = holder.get("faults", {})
    return faults.get(name) or faults.get("*") or {}


def lost(card: Card) -> Optional[tuple[str, int]]:
    """The line about a card whose handle is refused, None for a good one."""
    code = fault(card, "handle").get("error", 0)
    if not code:
        return None
    tail = "  Reboot the system to recover this GPU" if code == 15 else ""
    dot = "." if code == 15 else ""
    return (
        f"Unable to determine the device handle for GPU{card['index']}: {short_bus(card)}: {text(code)}{dot}{tail}",
        code,
    )


def text(code: int) -> str:
    return TEXTS.get(code, "Unknown Error")


def reading(state: State, card: Card, call: str, key: str) -> tuple[Any, Optional[int]]:
    """A card's value as (value, None), or (None, code) when the call for it fails or it is null."""
    code = fault(state.tree, call).get("error") or fault(card, call).get("error")
    if code:
        return None, code
    return (None, 3) if card.get(key) is None else (card[key], None)


def misbehave(state: State, words: list[str]) -> None:
    """Do what ``smi`` in the file says (wait, hang, answer something else), then the driver's own faults."""
    began = time.monotonic()
    smi = state.tree.get("smi", {})
    if smi.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(smi.get("delay_s", 0))
    if smi.get("hang") == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while smi.get("hang") is True and time.monotonic() - began < 3600:
        time.sleep(0.05)
        smi = State.read().tree.get("smi", {})
    if "stdout" in smi or "stderr" in smi or "exit" in smi:
        print(smi.get("stdout", ""), end="")
        print(smi.get("stderr", ""), end="", file=sys.stderr)
        sys.exit(smi.get("exit", 0))
    code = state.tree.get("faults", {}).get("init", {}).get("error", 0)
    if code == 9:
        raise Failure(NO_DRIVER, 9)
    if code:
        raise Failure(f"Failed to initialize NVML: {text(code)}", code)
