"""A proxy that passes HTTP on unchanged, writes every call down, and does what a rule says to each of them.

``rule(call)`` is asked before a call is passed on, ``after(call)`` when its answer is there and before the caller
has it, ``amid(call)`` when the caller has the first piece of a stream. Each may do anything (count, wait, kill
somebody) and may return a :class:`Fault`. They run in the connection's own thread; calls of other connections go on.
:mod:`tests.faults.named_faults` has what real networks and proxies do, by name.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.sockets import peer, pipe, reset, watch
from tests.faults.wire import BODYLESS, Gone, Head, Reader, is_hijacked


@dataclass(frozen=True)
class Fault:
    """What becomes of one call. Before: wait ``delay_s`` and for ``hold``; pass it on ``times`` times (0: never).
    After: wait ``answer_delay_s`` and for ``hang``; then the caller gets ``answer`` in place of the real one, or only
    the first ``cut_at`` bytes of the body, or (``lose``) a reset connection."""

    times: int = 1
    delay_s: float = 0.0
    hold: threading.Event | None = None
    answer: bytes | None = None
    answer_delay_s: float = 0.0
    hang: threading.Event | None = None
    cut_at: int | None = None
    lose: bool = False


@dataclass
class Call:
    """One request and what came of it. ``kind`` is the proxy's short name for it (``claim``, ``start``...); ``pid`` the
    caller's process as the machine numbers it, where the socket tells. ``status`` is the real answer's, None until
    there is one; ``content`` its body, unless it is a stream."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw: bytes = field(repr=False)
    kind: str = ""
    pid: int | None = None
    at: float = field(default_factory=time.monotonic)
    status: int | None = None
    content: bytes = b""
    done_at: float | None = None
    fault: Fault | None = None


Rule = Callable[[Call], "Fault | None"]
NO_FAULT = Fault()


def no_rule(call: Call) -> None:
    """Pass everything on."""


class Relay:
    """Listens on ``listen()`` and passes on to what ``connect()`` gives, a new connection for each call.

    ``kind_of`` names calls. Those for which ``is_stream`` is true are passed on piece by piece: a fault of the answer
    then meets what has not been sent yet, and ``after`` is asked before the last piece.
    """

    def __init__(
        self,
        listen: Callable[[], socket.socket],
        connect: Callable[[], socket.socket],
        *,
        kind_of: Callable[[Call], str] = lambda call: "",
        is_stream: Callable[[Call], bool] = lambda call: False,
    ) -> None:
        self.rule: Rule = no_rule
        self.after: Rule = no_rule
        self.amid: Rule = no_rule
        self.close_at_accept = False
        self.calls: list[Call] = []
        self._listen, self._connect = listen, connect
        self._kind_of, self._is_stream = kind_of, is_stream
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.up()

    # Life

    def up(self) -> None:
        """Take connections (again)."""
        if self._listener is None:
            self._listener = self._listen()
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """Nobody answers: new connections are refused, those that are open are reset."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.reset()

    def reset(self) -> None:
        """End every open connection."""
        with self._lock:
            sockets = list(self._open)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def good(self) -> None:
        """No faults from now on."""
        self.rule = self.after = self.amid = no_rule
        self.close_at_accept = False
        self.up()

    def close(self) -> None:
        self.down()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What was seen

    def seen(self, kind: str) -> list[Call]:
        """Calls of that kind so far, in their order."""
        return [call for call in list(self.calls) if call.kind == kind]

    def replay(self, call: Call) -> int:
        """Pass a call on once more, long after its caller went: the status that it gets now."""
        _, head, _ = self._passed_on(call)
        return int(head.first[1])

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.close_at_accept:
                reset(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        reader = Reader(client)
        try:
            while self._one(client, reader):
                pass
        except (Gone, OSError):
            reset(client)
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()

    def _one(self, client: socket.socket, reader: Reader) -> bool:
        """One call; whether another one may follow on this connection."""
        head = reader.head()
        raw, content = reader.request_body(head)
        call = Call(next(self._numbers), head.first[0], head.first[1], head.headers, content, head.raw + raw)
        call.pid = peer(client)
        call.kind = self._kind_of(call)
        self.calls.append(call)
        before = self.rule(call) or NO_FAULT
        call.fault = before if before is not NO_FAULT else None
        time.sleep(before.delay_s)
        if before.hold is not None:
            before.hold.wait()
        if before.times == 0:
            return self._answer(client, call, before, None, b"")
        for _ in range(before.times - 1):
            self.replay(call)
        upstream, answer, source = self._passed_on(call)
        with upstream:
            call.status = int(answer.first[1])
            if call.status == 101 or is_hijacked(head, answer):
                client.sendall(answer.raw + source.held)
                pipe(client, upstream)
                return False
            bodyless = call.method == "HEAD" or call.status in BODYLESS
            if self._is_stream(call) and call.status < 300:
                return self._stream(client, call, before, answer, source)
            both = list(source.pieces(answer, bodyless))
        call.content = b"".join(piece for _, piece in both)
        fault = self._settled(call, before)
        whole = answer.raw + b"".join(piece for piece, _ in both)
        keeps = not answer.closes and not head.closes and (bodyless or answer.chunked or answer.length is not None)
        return self._answer(client, call, fault, whole, answer.raw) and keeps

    def _passed_on(self, call: Call) -> tuple[socket.socket, Head, Reader]:
        upstream = self._connect()
        try:
            upstream.sendall(call.raw)
            source = Reader(upstream)
            head = source.head()
            while head.first[1] == "100":
                head = source.head()
        except BaseException:
            upstream.close()
            raise
        return upstream, head, source

    def _settled(self, call: Call, before: Fault) -> Fault:
        """The fault that the answer meets."""
        call.done_at = time.monotonic()
        after = self.after(call)
        if after is not None:
            call.fault = after
            return after
        return before

    def _answer(self, client: socket.socket, call: Call, fault: Fault, whole: bytes | None, head: bytes) -> bool:
        time.sleep(fault.answer_delay_s)
        if fault.hang is not None:
            fault.hang.wait()
        data = fault.answer if fault.answer is not None else whole
        if fault.lose or data is None:
            reset(client)
            return False
        if fault.cut_at is not None:
            client.sendall(data[: len(head) + fault.cut_at])
            client.shutdown(socket.SHUT_RDWR)
            return False
        client.sendall(data)
        return fault.answer is None

    def _stream(self, client: socket.socket, call: Call, before: Fault, answer: Head, source: Reader) -> bool:
        """Piece by piece; the caller's leaving is passed on as well."""
        client.sendall(answer.raw)
        over = threading.Event()
        watcher = threading.Thread(target=watch, args=(client, source.sock, over), daemon=True)
        watcher.start()
        try:
            last, sent = b"", 0
            for raw, content in source.pieces(answer, False):
                if before.cut_at is not None and sent + len(content) > before.cut_at:
                    reset(client)
                    return False
                first, sent = sent == 0, sent + len(content)
                if answer.chunked and not content:
                    last = raw
                    break
                client.sendall(raw)
                amid = self.amid(call) if first else None
                if amid is not None and amid.lose:
                    reset(client)
                    return False
            over.set()
            fault = self._settled(call, before)
            time.sleep(fault.answer_delay_s)
            if fault.hang is not None:
                fault.hang.wait()
            if fault.lose:
                reset(client)
                return False
            client.sendall(last)
            return answer.chunked and not answer.closes
        finally:
            over.set()
            watcher.join()
