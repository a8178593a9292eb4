"""The agent's calls to the server: one try each, with limits on everything.

Beats have a connection of their own, so that no other call delays them. Redirects are not followed, netrc and
proxy variables are not read, the key goes to ``server_url`` only, and an answer longer than the limit is given
up. What cannot be used is :class:`Unavailable`, what was decided is :class:`Refused`; repeating is the caller's
(:mod:`runtime.agent.link.retry`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Optional, TypeVar
from urllib.parse import quote

from runtime.agent.link.answers import body_of, judge
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.link.key_refusal import KeyRefusal
from runtime.agent.link.seen import SeenRevisions
from runtime.protocol import routes
from runtime.protocol.address import AddressError, parse_server_url
from runtime.protocol.causes import root_cause
from runtime.protocol.codec import WireError, decode, encode
from runtime.protocol.credentials import ca_bundle
from runtime.protocol.heartbeat import Heartbeat, HeartbeatAnswer, PendingCounts, Preflight
from runtime.protocol.instructions import Channel, Instruction, InstructionList, InstructionUpdate
from runtime.protocol.problems import MEDIA_TYPE
from runtime.protocol.tasks import CheckpointResume, LogChunk, Reclaim, Task, TaskList, TaskUpdate

if TYPE_CHECKING:
    import requests

    from runtime.agent.link.identity import Identity
    from runtime.agent.settings import AgentSettings

T = TypeVar("T")
log = logging.getLogger(__name__)

CONNECT_S = 3.0
BEAT_READ_S = 8.0
READ_S = 30.0
CONNECTIONS = 20


class ServerClient:
    """All calls of the contract, as the node of ``identity``. Safe to use from several threads.

    ``control_plane_id`` and ``revision`` are those of the newest answer, by the time its request was sent; ``seen``
    holds the highest of them all. ``key``: what an agent's clients share of a key that was refused.
    """

    def __init__(
        self,
        settings: AgentSettings,
        identity: Identity,
        *,
        connect_s: float = CONNECT_S,
        beat_read_s: float = BEAT_READ_S,
        read_s: float = READ_S,
        seen: Optional[SeenRevisions] = None,
        key: Optional[KeyRefusal] = None,
    ) -> None:
        if settings.server_url is None:
            raise ValueError("server_url is not set")
        self.address = parse_server_url(settings.server_url, allow_plain_http=settings.allow_plain_http)
        self.identity = identity
        self.seen = seen or SeenRevisions()
        self.key = key or KeyRefusal()
        self._settings = settings
        self._connect_s = connect_s
        self._beat_read_s = beat_read_s
        self._read_s = read_s
        self._beats = self._session(connections=1)
        self._rest = self._session(connections=CONNECTIONS)
        self._lock = threading.Lock()
        self._newest_sent = -1.0
        self._control_plane_id: Optional[str] = None
        self._revision: Optional[int] = None

    @property
    def control_plane_id(self) -> Optional[str]:
        return self._control_plane_id

    @property
    def revision(self) -> Optional[int]:
        return self._revision

    @property
    def behind(self) -> bool:
        """Whether the newest answer's revision lies below one that was seen before: then the database was put back, and
        what it does not know may well exist."""
        with self._lock:
            control_plane_id, revision = self._control_plane_id, self._revision
        highest = self.seen.highest(control_plane_id)
        return revision is not None and highest is not None and revision < highest

    def close(self) -> None:
        self._beats.close()
        self._rest.close()

    def preflight(self) -> Preflight:
        """The key is right and this is a control plane; sends the key alone."""
        return self._decoded(Preflight, self._call("GET", routes.PREFLIGHT, as_node=False))

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        body = encode(beat, drop_none=True)
        return self._decoded(HeartbeatAnswer, self._call("POST", routes.HEARTBEAT, body=body, session=self._beats))

    def pending(self) -> PendingCounts:
        """What waits in all channels. Nothing follows it for a while: the server need not keep the connection,
        and an idle one of every node would cost it something at each of its wake-ups."""
        query = {"node_id": self.identity.node_id}
        session = self._session(connections=1)  # not the others': their next call would find it closed
        try:
            answer = self._call("GET", routes.PENDING, query=query, headers={"Connection": "close"}, session=session)
        finally:
            session.close()
        return self._decoded(PendingCounts, answer)

    def scheduled_tasks(self, limit: int = 20) -> list[Task]:
        """Tasks that wait to be claimed by this node, at most ``limit``."""
        query = {"node_id": self.identity.node_id, "status": "scheduled", "limit": str(limit)}
        return self._decoded(TaskList, self._call("GET", routes.TASKS, query=query)).tasks

    def task(self, task_id: str, claim_token: Optional[str] = None) -> Task:
        """One task; with the claim's token its secrets too. Refused ``task_not_found`` when there is none."""
        headers = {routes.HEADER_CLAIM: claim_token} if claim_token is not None else {}
        return self._decoded(Task, self._call("GET", self._task_path(task_id), headers=headers))

    def update_task(self, task_id: str, update: TaskUpdate) -> Task:
        """Compare-and-set. Refused ``state_conflict`` carries ``claim_token_matches`` in its members."""
        body = encode(update, drop_none=True)
        return self._decoded(Task, self._call("PUT", self._task_path(task_id), body=body))

    def reclaim(self, task_id: str, claim: Reclaim) -> Task:
        return self._decoded(
            Task, self._call("POST", f"{self._task_path(task_id)}/reclaim", body=encode(claim, drop_none=True))
        )

    def post_logs(self, task_id: str, chunk: LogChunk) -> None:
        self._call("POST", f"{self._task_path(task_id)}/logs", body=encode(chunk, drop_none=True))

    def checkpoint_resume(self, task_id: str, resume: CheckpointResume) -> None:
        self._call("POST", f"{self._task_path(task_id)}/checkpoint-resume", body=encode(resume, drop_none=True))

    def instructions(self, channel: Channel, limit: int = 5) -> list[Instruction]:
        query = {"node_id": self.identity.node_id, "status": "pending", "limit": str(limit)}
        answer = self._call("GET", routes.agent_requests(Channel(channel).value), query=query)
        return self._decoded(InstructionList, answer).requests

    def update_instruction(self, channel: Channel, request_id: str, update: InstructionUpdate) -> Instruction:
        path = f"{routes.agent_requests(Channel(channel).value)}/{quote(request_id, safe='')}"
        return self._decoded(Instruction, self._call("PUT", path, body=encode(update, drop_none=True)))

    def doorbell(self, url: str, read_s: float) -> requests.Response:
        """The open event stream at ``url``; the caller reads and closes it. ``read_s``: longest silence.

        The key goes along only to the host of ``server_url``, and never over a weaker scheme.
        """
        try:
            target = parse_server_url(url.partition("?")[0], allow_plain_http=self._settings.allow_plain_http)
        except AddressError as error:
            raise Unavailable(f"the doorbell's address cannot be used: {error}") from None
        if target.host != self.address.host or (self.address.scheme == "https" and target.scheme != "https"):
            raise Unavailable(
                f"the doorbell is said to be at {target.base}, which is not the host of server_url or has a weaker "
                "scheme: the key does not go there"
            )
        self.key.check()
        sent = time.monotonic()
        response = self._send(
            self._rest,
            "GET",
            target.base,  # as it was checked: two readers of one URL may see two hosts in it
            self._headers(True),
            {"node_id": self.identity.node_id},
            None,
            (self._connect_s, read_s),
        )
        if response.status_code != 200:
            try:
                self._judged(response, time.monotonic() + self._read_s, sent)
            finally:
                response.close()
        return response

    # One call.

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Optional[dict[str, str]] = None,
        body: Any = None,
        headers: Optional[dict[str, str]] = None,
        as_node: bool = True,
        session: Optional[requests.Session] = None,
    ) -> Any:
        read_s = self._beat_read_s if session is self._beats else self._read_s
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        self.key.check(asks_again=session is self._beats)
        sent = time.monotonic()
        response = self._send(
            session or self._rest,
            method,
            self.address.base + path,
            {**self._headers(as_node), **(headers or {})},
            query,
            data,
            (self._connect_s, read_s),
        )
        try:
            value = self._judged(response, time.monotonic() + read_s, sent)
            self._remember(response, sent)
        except Refused:
            self._remember(response, sent)
            raise
        finally:
            response.close()
        return value

    def _judged(self, response: requests.Response, deadline: float, sent: float) -> Any:
        """The value of a success; else the error. What it says of the key holds for all calls."""
        if response.status_code != 401:
            self.key.answered(sent)
        try:
            return judge(response, body_of(response, deadline), self.address.base)
        except Refused as refusal:
            if response.status_code != 401:
                raise
            raise self.key.refused(refusal, sent) from None

    def _send(
        self,
        session: requests.Session,
        method: str,
        url: str,
        headers: dict[str, str],
        query: Optional[dict[str, str]],
        data: Optional[bytes],
        limits: tuple[float, float],
    ) -> requests.Response:
        import requests

        if data is not None:
            headers["Content-Type"] = "application/json"
        sent = time.monotonic()
        try:
            response = session.request(
                method,
                url,
                params=query,
                data=data,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
                stream=True,
            )
        except requests.exceptions.SSLError as error:
            raise Unavailable(
                f"{self.address.base}: the certificate was not accepted ({root_cause(error)}); "
                f"trust comes from {ca_bundle(self._settings.ca_file)}: "
                "set ca_file to the CA that signed the server's certificate"
            ) from error
        except requests.exceptions.ConnectTimeout as error:
            raise Unavailable(f"{self.address.base}: no connection within {limits[0]:g} s") from error
        except requests.exceptions.Timeout as error:
            raise Unavailable(f"{self.address.base}: no answer within {limits[1]:g} s") from error
        except (requests.exceptions.RequestException, OSError, ValueError) as error:
            raise Unavailable(
                f"{self.address.base}: {root_cause(error)}; is server_url right, and does the control plane run?"
            ) from error
        log.debug("%s %s: HTTP %d after %.0f ms", method, url, response.status_code, 1000 * (time.monotonic() - sent))
        return response

    def _decoded(self, cls: type[T], value: Any) -> T:
        try:
            return decode(cls, value)
        except WireError as error:
            raise Unavailable(f"an answer of another shape than the contract's: {error}", answered=True) from error

    def _remember(self, response: requests.Response, sent: float) -> None:
        control_plane = response.headers.get(routes.HEADER_CONTROL_PLANE)
        text = response.headers.get(routes.HEADER_REVISION, "")
        revision = int(text) if text.isascii() and text.isdigit() else None
        if control_plane and revision is not None:
            self.seen.note(control_plane, revision)
        with self._lock:
            if control_plane is None or sent < self._newest_sent:
                return
            self._newest_sent = sent
            self._control_plane_id = control_plane
            self._revision = revision

    # How calls are made.

    def _session(self, connections: int) -> requests.Session:
        import requests
        from requests.adapters import HTTPAdapter

        session = requests.Session()
        session.trust_env = False  # no proxy variables, no netrc, no CA variables
        session.verify = ca_bundle(self._settings.ca_file) or True
        if self._settings.proxy:
            session.proxies = {"http": self._settings.proxy, "https": self._settings.proxy}
        session.headers.clear()
        session.headers.update({"User-Agent": "heterofleet-agent", "Accept": f"application/json, {MEDIA_TYPE}"})
        session.cookies.set_policy(_no_cookies())
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_connections=2, pool_maxsize=connections, max_retries=0))
        return session

    def _headers(self, as_node: bool) -> dict[str, str]:
        headers = {routes.HEADER_API_KEY: self._settings.api_key or ""}
        if as_node:
            headers[routes.HEADER_NODE] = self.identity.node_id
            headers[routes.HEADER_INSTANCE] = self.identity.instance_id
        return headers

    @staticmethod
    def _task_path(task_id: str) -> str:
        return f"{routes.TASKS}/{quote(task_id, safe='')}"


def _no_cookies() -> Any:
    from http.cookiejar import DefaultCookiePolicy

    return DefaultCookiePolicy(allowed_domains=[])
