"""What an HTTP answer means: its body within limits, the JSON of a success, or the error it stands for."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Optional

from runtime.agent.link.errors import Refused, Unavailable
from runtime.protocol.causes import root_cause
from runtime.protocol.problems import MEDIA_TYPE, ProblemDocument, read_problem

if TYPE_CHECKING:
    import requests

ANSWER_LIMIT = 16 * 1024 * 1024
"""Bytes of an answer that are read at most."""

PIECE = 64 * 1024

RETRY_AFTER_MOST_S = 3600
"""No answer keeps a node silent for longer than that."""


def body_of(response: requests.Response, deadline: float) -> bytes:
    """The whole body; Unavailable when it is cut, too long, or drips past the deadline."""
    import urllib3

    pieces: list[bytes] = []
    size = 0
    try:
        while True:
            piece = response.raw.read1(PIECE, decode_content=True)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > ANSWER_LIMIT:
                raise Unavailable(f"an answer of more than {ANSWER_LIMIT} bytes", answered=True)
            if time.monotonic() > deadline:
                raise Unavailable("the answer did not end in time", answered=True)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Unavailable(f"the answer was cut: {root_cause(error)}", answered=True) from error


def judge(response: requests.Response, content: bytes, base: str) -> Any:
    """The JSON value of a success; else the error that the answer stands for."""
    status = response.status_code
    if 300 <= status < 400:
        target = response.headers.get("Location", "an unnamed place")
        raise Unavailable(
            f"{base} answered {status} and points to {target}: redirects are not followed; "
            "set server_url to the control plane itself",
            answered=True,
            status=status,
        )
    if 200 <= status < 300:
        return _json_of(response, content)
    problem = _problem_of(response, content)
    if status == 401:
        refusal = problem or ProblemDocument(401, "bad_api_key", "the server does not accept the system key")
        raise Refused(refusal)
    text = f"{problem.code}: {problem.detail}" if problem else "no problem document: is this a control plane?"
    if problem is None or status in (408, 429) or status >= 500:
        raise Unavailable(
            f"{base} answered {status} ({text})",
            answered=True,
            retry_after=_retry_after(response),
            problem=problem,
            status=status,
        )
    raise Refused(problem)


def _json_of(response: requests.Response, content: bytes) -> Any:
    if not content and response.status_code == 204:
        return None
    try:
        return json.loads(content)
    except ValueError:
        kind = response.headers.get("Content-Type", "no content type")
        raise Unavailable(
            f"an answer {response.status_code} that is not JSON ({kind}): something else than a control plane "
            "answered; check server_url",
            answered=True,
            status=response.status_code,
        ) from None


def _problem_of(response: requests.Response, content: bytes) -> Optional[ProblemDocument]:
    if response.headers.get("Content-Type", "").split(";")[0].strip().lower() != MEDIA_TYPE:
        return None
    return read_problem(response.status_code, content)


def _retry_after(response: requests.Response) -> Optional[float]:
    """Retry-After in seconds; its other form (a date) would need the server's clock and is left alone."""
    text = response.headers.get("Retry-After", "").strip()
    return float(min(int(text), RETRY_AFTER_MOST_S)) if text.isascii() and text.isdigit() else None
