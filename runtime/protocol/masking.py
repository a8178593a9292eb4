"""Known secret values never reach a log, an error text or standard output.

A :class:`Masker` knows values, not names: what it was told is replaced wherever it appears. Text is masked before
it is cut to a length: half a secret is known by nobody.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

MASK = "********"
SHORTEST = 4
"""Values below this length are not masked by value: they would tear ordinary text apart."""

SHORTEST_LINE = 8
"""Lines of a secret below this length are not masked by themselves."""

_SHORTEST_INSIDE = 6
"""A stretch of base64 below this length also stands in ordinary text by chance."""

_ESCAPED = re.compile("%[0-9A-F]{2}")

_CHATTY = ("alembic", "uvicorn", "waitress")


def _forms(secret: str) -> set[str]:
    """Every text that gives ``secret`` away: itself, escaped for a URL, JSON or a repr, and in base64."""
    escaped = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    escaped |= {_ESCAPED.sub(lambda found: found.group().lower(), text) for text in escaped}
    escaped |= {repr(secret)[1:-1], repr(secret.encode())[2:-1]}
    escaped |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    # Of a key in PEM form a log shows the lines, one by one.
    escaped |= {line for line in secret.splitlines() if len(line) >= SHORTEST_LINE}
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
    """Replaces known secret values, in every form of :func:`_forms`, by a mask.

    Values belong to the process, or to an owner (a task) whose values are forgotten when it is over. Safe to use
    from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owned: dict[str, frozenset[str]] = {}
        self._forms: tuple[str, ...] = ()

    def add(self, secret: str | None, owner: str = "") -> None:
        """From now on this value is masked."""
        self.add_all([secret], owner)

    def add_all(self, secrets: Iterable[str | None], owner: str = "") -> None:
        """From now on these values are masked."""
        forms = {form for secret in secrets if secret and len(secret) >= SHORTEST for form in _forms(secret)}
        with self._lock:
            self._owned[owner] = self._owned.get(owner, frozenset()) | forms
            self._forms = _longest_first(*self._owned.values())

    def forget(self, owner: str) -> None:
        """The owner's values are nobody's any more."""
        with self._lock:
            if self._owned.pop(owner, None) is not None:
                self._forms = _longest_first(*self._owned.values())

    def text(self, text: str) -> str:
        """``text`` with every known value replaced."""
        return _replaced(text, self._forms)

    def text_of(self, owner: str, text: str) -> str:
        """``text`` with the values of the process and of this owner replaced. For what is told of one task: what
        is a secret of another may be an ordinary word here."""
        with self._lock:
            forms = _longest_first(self._owned.get("", frozenset()), self._owned.get(owner, frozenset()))
        return _replaced(text, forms)


def _longest_first(*sets: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(frozenset().union(*sets), key=len, reverse=True))


def _replaced(text: str, forms: tuple[str, ...]) -> str:
    for form in forms:
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


def set_up_logging(masker: Masker, verbose: int = 0) -> None:
    """Everything the process logs goes to standard error, masked.

    ``verbose``: 0 what people want to know, 1 our own details too, 2 and more those of the libraries.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(MaskingFormatter(masker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    logging.getLogger("runtime").setLevel(logging.DEBUG if verbose else logging.NOTSET)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.NOTSET if verbose > 1 else logging.WARNING)
    # Every connection that failed, which our own lines say with its reason.
    logging.getLogger("urllib3").setLevel(logging.NOTSET if verbose > 1 else logging.ERROR)
    # It shows whole rows of the database, and tokens of claims are among them.
    logging.getLogger("sqlalchemy").setLevel(logging.WARNING)
