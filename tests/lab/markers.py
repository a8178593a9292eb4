"""Secrets that are told apart wherever they turn up, and the search for them in every form they may take."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, quote_plus


def new_marker(name: str) -> str:
    """A secret of this run alone. It has the characters that are written otherwise in URLs, base64 and JSON."""
    return f"{name}+{secrets.token_hex(12)}/{secrets.token_hex(6)}=Zq"


def forms(secret: str) -> set[bytes]:
    """Plain, URL-encoded, in hex, and what base64 shows of it wherever it begins in a longer text."""
    raw = secret.encode()
    found = {raw, raw.hex().encode(), raw.hex().upper().encode()}
    for text in (quote(secret), quote(secret, safe=""), quote_plus(secret)):
        found |= {text.encode(), re.sub("%..", lambda escape: escape.group().lower(), text).encode()}
    for before, first in ((0, 0), (1, 2), (2, 3)):
        # Only whole characters that no neighbour has a part in.
        inside = base64.b64encode(bytes(before) + raw)[first : (before + len(raw)) * 8 // 6]
        found |= {inside, inside.replace(b"+", b"-").replace(b"/", b"_")}
    return found


@dataclass(frozen=True)
class Hit:
    """``secret`` by its name; ``form`` is what stood there; ``where`` names the place."""

    secret: str
    form: str
    where: str


class Search:
    """Looks for named secrets in any bytes."""

    def __init__(self, named: dict[str, str]) -> None:
        self._forms = {name: sorted(forms(secret), key=len) for name, secret in named.items()}

    def look(self, where: str, data: bytes) -> Iterator[Hit]:
        for name, texts in self._forms.items():
            for text in texts:
                if text in data:
                    yield Hit(name, text.decode(), where)
                    break

    def look_at(self, places: Iterable[tuple[str, bytes]]) -> list[Hit]:
        return [hit for where, data in places for hit in self.look(where, data)]

    @property
    def patterns(self) -> list[str]:
        """All forms, a line each: for grep -F on another machine."""
        return sorted({text.decode() for texts in self._forms.values() for text in texts})
