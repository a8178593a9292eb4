"""Handing out a file over HTTP: whole, in one range, or not again; what was checked of it stays known."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import IO, Any, Generic, TypeVar

import flask
from werkzeug.exceptions import RequestedRangeNotSatisfiable
from werkzeug.wsgi import wrap_file

from runtime.protocol.manifest import Checksums

T = TypeVar("T")

_RANGE = re.compile(r"bytes=[ \t]*(?:(\d+)-(\d*)|-\d+)[ \t]*", re.ASCII)
REMEMBERED = 64
"""Files whose checks are kept; a folder of builds has two, and those of an earlier release."""


class Checked(Generic[T]):
    """What ``look`` finds in an open file, looked for anew only when the file changed; safe in threads."""

    def __init__(self, look: Callable[[IO[bytes]], T]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._known: dict[tuple[int, ...], T] = {}

    def of(self, opened: IO[bytes]) -> T:
        """``opened`` stands at its beginning before and after."""
        state = os.fstat(opened.fileno())
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = self._look(opened)
            opened.seek(0)
            with self._lock:
                while len(self._known) >= REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[key] = known
        return known


def answer(environ: dict[str, Any], opened: IO[bytes], sums: Checksums, mimetype: str) -> flask.Response:
    """200, 206, 304, 412 or 416 for an open file; it is closed with the answer.

    ``sums`` are the file's: they give its length, the ETag and the ``X-Checksum-*`` headers, which are those of the
    whole file also for a range.
    """
    response = flask.Response(wrap_file(environ, opened), mimetype=mimetype, direct_passthrough=True)
    response.content_length = sums.size
    response.set_etag(sums.sha256)
    response.cache_control.no_cache = True
    response.headers["X-Checksum-Md5"] = sums.md5
    response.headers["X-Checksum-Sha256"] = sums.sha256
    response.headers["X-Content-Type-Options"] = "nosniff"
    try:
        return response.make_conditional(_with_range(environ), accept_ranges=True, complete_length=sums.size)  # type: ignore[return-value]
    except RequestedRangeNotSatisfiable:
        opened.close()
        return flask.Response(status=416, headers={"Content-Range": f"bytes */{sums.size}", "Accept-Ranges": "bytes"})


def _with_range(environ: dict[str, Any]) -> dict[str, Any]:
    """``environ`` with a range only where one is meant: one range of bytes, of a GET; any other is not asked for."""
    asked = _RANGE.fullmatch(environ.get("HTTP_RANGE", ""))
    backwards = asked is not None and bool(asked[2]) and int(asked[1]) > int(asked[2])
    if asked is not None and not backwards and environ["REQUEST_METHOD"] == "GET":
        return environ
    return {name: value for name, value in environ.items() if name != "HTTP_RANGE"}
