"""Known secret values never reach a log, an error text or standard output.

A :class:`Masker` knows values, not names: what it was told is replaced wherever it appears.
"""

from __future__ import annotations

import base64
import logging
import threading
from urllib.parse import quote

MASK = "********"
SHORTEST = 4
"""Values below this length are not masked by value: they would tear ordinary text apart."""


class Masker:
    """Replaces known secret values, in plain, base64 and URL form, by a mask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: tuple[str, ...] = ()

    def add(self, secret: str | None) -> None:
        """From now on this value is masked."""
        if not secret or len(secret) < SHORTEST:
            return
        forms = {secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()}
        with self._lock:
            self._forms = tuple(sorted({*self._forms, *forms}, key=len, reverse=True))

    def text(self, text: str) -> str:
        """``text`` with every known value replaced."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text


class MaskingFormatter(logging.Formatter):
    """A log formatter whose whole output, tracebacks included, goes through a masker."""

    def __init__(self, masker: Masker, fmt: str = "%(asctime)s %(levelname)s %(name)s: %(message)s") -> None:
        super().__init__(fmt)
        self._masker = masker

    def format(self, record: logging.LogRecord) -> str:
        return self._masker.text(super().format(record))


def set_up_logging(masker: Masker, level: int = logging.INFO) -> None:
    """Everything the process logs goes to standard error, masked."""
    handler = logging.StreamHandler()
    handler.setFormatter(MaskingFormatter(masker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
