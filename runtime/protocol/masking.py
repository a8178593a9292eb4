"""Known secret values never reach a log, an error text or standard output.

A :class:`Masker` knows values, not names: what it was told is replaced wherever it appears.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

MASK = "********"
SHORTEST = 4
"""Values below this length are not masked by value: they would tear ordinary text apart."""


_SHORTEST_INSIDE = 6
"""A stretch of base64 below this length also stands in ordinary text by chance."""


def _forms(secret: str) -> set[str]:
    """Every text that gives ``secret`` away: itself, escaped for a URL, JSON or a repr, and in base64."""
    escaped = {quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
    escaped |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    whole = base64.b64encode(secret.encode()).decode()
    encoded = {whole} | {text for text in _inside_base64(secret.encode()) if len(text) >= _SHORTEST_INSIDE}
    url_safe = {text.replace("+", "-").replace("/", "_") for text in encoded}
    return {secret, *escaped, *encoded, *url_safe}


def _inside_base64(secret: bytes) -> Iterator[str]:
    """What base64 of a longer text (``user:password``) shows of ``secret``: three texts, by where it begins."""
    for before, first in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(before) + secret).decode()
        yield encoded[first : (before + len(secret)) * 8 // 6]  # only characters that no neighbour has a part in


class Masker:
    """Replaces known secret values, in every form of :func:`_forms`, by a mask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: tuple[str, ...] = ()

    def add(self, secret: str | None) -> None:
        """From now on this value is masked."""
        if not secret or len(secret) < SHORTEST:
            return
        with self._lock:
            self._forms = tuple(sorted({*self._forms, *_forms(secret)}, key=len, reverse=True))

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
