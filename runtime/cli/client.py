"""The control plane's API as the command line asks it: one session, no redirects, no netrc, always a deadline."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import quote

import requests
from requests.auth import AuthBase

from runtime.cli.errors import CliError, Refusal, Unreachable
from runtime.cli.settings import Connection
from runtime.protocol.build import this_build
from runtime.protocol.causes import root_cause
from runtime.protocol.problems import MEDIA_TYPE, ProblemDocument, read_problem
from runtime.protocol.routes import HEADER_CONTROL_PLANE

log = logging.getLogger(__name__)

CONNECT_S = 5.0
TRIES = 3
TRY_AGAIN_S = 0.5
"""Requests that may be repeated are tried this often on connection errors, this far apart."""


@dataclass(frozen=True)
class Answer:
    """A 2xx. ``text`` is the body as it came, ``body`` the value in it (None: no body)."""

    status: int
    text: str
    body: Any


class _Bearer(AuthBase):
    """Sets the header itself, so that nothing else in the library looks for credentials elsewhere."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._header
        return request


def part(text: str) -> str:
    """One path segment, percent-encoded."""
    return quote(text, safe="")


class Client:
    """Calls raise Refusal for a problem document, Unreachable when no usable answer came."""

    def __init__(self, to: Connection) -> None:
        self._to = to
        self._session = requests.Session()
        self._session.trust_env = False  # neither netrc nor a proxy that nobody named
        self._session.auth = _Bearer(to.token)
        self._session.headers.update({"Accept": "application/json", "User-Agent": f"heterofleet/{this_build()}"})
        if to.ca_file:
            self._session.verify = to.ca_file
        if to.proxy:
            self._session.proxies.update({"http": to.proxy, "https": to.proxy})
        self._pause = threading.Event()

    def get(self, path: str, query: Optional[Mapping[str, Any]] = None) -> Answer:
        return self._call("GET", path, query=query, tries=TRIES)

    def post(self, path: str, body: Any = None, *, repeatable: bool = False) -> Answer:
        """``repeatable``: the same body twice has the effect of once (the caller chose the id)."""
        return self._call("POST", path, body=body, tries=TRIES if repeatable else 1)

    def delete(self, path: str, query: Optional[Mapping[str, Any]] = None) -> Answer:
        return self._call("DELETE", path, query=query)

    def _call(
        self, method: str, path: str, *, query: Optional[Mapping[str, Any]] = None, body: Any = None, tries: int = 1
    ) -> Answer:
        for _ in range(tries - 1):
            try:
                return self._once(method, path, query, body)
            except Unreachable as error:
                if not error.passing:
                    raise
                self._pause.wait(TRY_AGAIN_S)
        return self._once(method, path, query, body)

    def _once(self, method: str, path: str, query: Optional[Mapping[str, Any]], body: Any) -> Answer:
        url = self._to.server_url + path
        sent = time.monotonic()
        try:
            response = self._session.request(
                method,
                url,
                params={key: value for key, value in (query or {}).items() if value is not None},
                data=None if body is None else json.dumps(body).encode(),
                headers={} if body is None else {"Content-Type": "application/json"},
                timeout=(CONNECT_S, self._to.timeout_s),
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as error:
            raise Unreachable(
                f"the certificate of {self._to.server_url} was not accepted: {root_cause(error)}; name the authority's "
                "certificate with ca_file (or HETEROFLEET_CA_FILE)",
                passing=False,
            ) from None
        except requests.exceptions.ConnectTimeout:
            raise Unreachable(self._away(f"no connection within {CONNECT_S:g} s")) from None
        except requests.exceptions.ReadTimeout:
            raise Unreachable(
                f"{self._to.server_url} took the request and did not answer within {self._to.timeout_s:g} s; "
                "whether it took effect is not known, look before you repeat it",
                sent=method != "GET",
            ) from None
        except (requests.exceptions.RequestException, OSError) as error:
            raise Unreachable(self._away(root_cause(error)), sent=method != "GET") from None
        log.debug("%s %s: HTTP %d after %.0f ms", method, path, response.status_code, 1000 * (time.monotonic() - sent))
        return self._read(response)

    def _away(self, why: str) -> str:
        return f"cannot reach a control plane at {self._to.server_url}: {why}; is it running, is --server right?"

    def _read(self, response: requests.Response) -> Answer:
        status = response.status_code
        if 300 <= status < 400:
            raise Unreachable(
                f"{self._to.server_url} redirects to {response.headers.get('Location', 'nowhere')}; redirects are not "
                "followed, since the token would go there: give the right address with --server",
                passing=False,
            )
        text = response.content.decode("utf-8", "replace")
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == MEDIA_TYPE:
            raise Refusal(_problem(response))
        if HEADER_CONTROL_PLANE not in response.headers or status >= 400:
            raise Unreachable(
                f"what answers at {self._to.server_url} is not a control plane, or stands before one that is not "
                f"there: HTTP {status}, {kind or 'no content type'}, {_start(text)}; is --server right?",
                sent=True,
            )
        if not text:
            return Answer(status, text, None)
        try:
            return Answer(status, text, json.loads(text))
        except ValueError:
            raise CliError(f"{response.url} answered HTTP {status} with what is not JSON: {_start(text)}") from None


def _problem(response: requests.Response) -> ProblemDocument:
    """Every refusal ends the command, so one that cannot be read is shown by its beginning."""
    problem = read_problem(response.status_code, response.content)
    if problem is not None:
        return problem
    shown = _start(response.content.decode("utf-8", "replace"))
    return ProblemDocument(response.status_code, "no code", f"an unreadable problem: {shown}")


def _start(text: str) -> str:
    line = " ".join(text.split())
    return repr(line[:77] + "..." if len(line) > 80 else line)
