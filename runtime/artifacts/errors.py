"""What can go wrong while builds are made or compared; the message is for the person at the terminal."""

from __future__ import annotations


class BuildError(Exception):
    """No build was made; what was there before is unchanged."""


class VerifyError(Exception):
    """A place could not be looked at; ``unreachable`` when nothing answered there."""

    def __init__(self, text: str, *, unreachable: bool = False) -> None:
        super().__init__(text)
        self.unreachable = unreachable
