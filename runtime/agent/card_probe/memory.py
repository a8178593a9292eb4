"""The cards that owe a probe, on disk: after a restart of the agent nothing else tells that a card was bad."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from runtime.agent.card_probe.owed import Owed
from runtime.agent.state import StateError, write_durably
from runtime.protocol.codec import WireError, decode, encode

log = logging.getLogger(__name__)

FILE = "card-probes.json"


class Memory:
    """One file in the state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE

    def read(self) -> dict[str, Owed]:
        """What an earlier run has written; nothing where it cannot be read."""
        try:
            cards = json.loads(self._path.read_bytes())["cards"]
            return {str(uuid): decode(Owed, debt) for uuid, debt in cards.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, WireError) as error:
            log.warning("%s cannot be used; cards that owed a probe are not known any more: %s", self._path, error)
            return {}

    def write(self, owed: Mapping[str, Owed]) -> bool:
        """False, and a word in the log, when it could not be written."""
        try:
            write_durably(self._path, {"cards": {uuid: encode(debt) for uuid, debt in owed.items()}})
        except StateError as error:
            log.warning("a restart would forget which cards owe a probe: %s", error)
            return False
        return True

    def forget(self) -> None:
        """No card owes anything, and none will."""
        self._path.unlink(missing_ok=True)
