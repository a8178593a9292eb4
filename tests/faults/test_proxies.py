"""The proxies themselves: each fault does what its name says, and without one nothing is changed."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.faults import engine_proxy, named_faults, server_proxy
from tests.faults.engine_proxy import EngineProxy
from tests.faults.relay import Call, Fault
from tests.faults.server_proxy import ServerProxy
from tests.integration.waiting import until


class Server:
    """Counts what it is asked; ``/stream`` sends chunks until its caller leaves."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.left = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, body))
                if self.path == "/api/v1/agent/doorbell":
                    return self.stream()
                answer = json.dumps({"number": len(outer.asked)}).encode() * (5000 if self.path == "/big" else 1)
                self.send_response(201)
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("X-Mark", "kept")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)
                return None

            do_GET = do_PUT = do_POST = do_HEAD = handle_any

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for _ in range(600):
                        self.wfile.write(b"4\r\nwake\r\n")
                        time.sleep(0.02)
                except OSError:
                    outer.left.set()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = ("127.0.0.1", int(self.http.server_address[1]))
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


@pytest.fixture
def proxy(server: Server) -> Iterator[ServerProxy]:
    with ServerProxy(server.address) as one:
        assert isinstance(one, ServerProxy)
        yield one


def ask(proxy: ServerProxy, method: str = "GET", path: str = "/x", body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body; status 0 when the connection broke before, -1 in the middle of the body."""
    link = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    try:
        link.request(method, path, body)
        answer = link.getresponse()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        pass
    try:
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return -1, b""
    finally:
        link.close()


def test_nothing_is_changed_without_a_fault(server: Server, proxy: ServerProxy) -> None:
    link = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    for number in range(1, 4):  # over one connection
        link.request("PUT", "/x?a=b", b"body", {"X-Own": "v"})
        answer = link.getresponse()
        assert (answer.status, answer.headers["X-Mark"], json.loads(answer.read())["number"]) == (201, "kept", number)
    assert server.asked == [("PUT", "/x?a=b", b"body")] * 3
    assert ask(proxy, "HEAD") == (201, b"")
    assert len(ask(proxy, path="/big")[1]) > 50_000
    assert [(call.method, call.status) for call in proxy.calls] == [("PUT", 201)] * 3 + [("HEAD", 201), ("GET", 201)]


NAMED = {
    "drop_request": (named_faults.DROP_REQUEST, 0, 0),
    "drop_answer": (named_faults.DROP_ANSWER, 0, 1),
    "duplicate": (named_faults.DUPLICATE, 201, 2),
    "delay": (named_faults.delay(0.2), 201, 1),
    "slow_answer": (named_faults.slow_answer(0.2), 201, 1),
    "cut": (named_faults.cut(5), -1, 1),
    "500": (named_faults.SERVER_ERROR, 500, 0),
    "502": (named_faults.BAD_GATEWAY, 502, 0),
    "404": (named_faults.NOT_FOUND_OF_A_PROXY, 404, 0),
    "502 after the server did it": (named_faults.instead(502, "x", forwarded=True), 502, 1),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_fault_does_what_its_name_says(server: Server, proxy: ServerProxy, name: str) -> None:
    fault, status, reached = NAMED[name]
    proxy.rule = lambda call: fault
    began = time.monotonic()
    assert ask(proxy, "PUT", "/x", b"1")[0] == status
    assert len(server.asked) == reached
    assert time.monotonic() - began >= fault.delay_s + fault.answer_delay_s
    assert proxy.calls[0].fault is fault
    proxy.good()
    assert ask(proxy)[0] == 201


def test_a_call_is_overtaken_and_another_hangs(server: Server, proxy: ServerProxy) -> None:
    overtaken, free = threading.Event(), threading.Event()
    faults: dict[str, Fault] = {"/first": named_faults.hold(overtaken), "/stuck": named_faults.hang(free)}
    proxy.rule = lambda call: faults.get(call.path)
    answers: dict[str, int] = {}
    threads = [threading.Thread(target=lambda path=path: answers.update({path: ask(proxy, path=path)[0]}))
               for path in faults]  # fmt: skip
    for thread in threads:
        thread.start()
    until("both are under way", lambda: len(proxy.calls) == 2)
    assert ask(proxy, path="/second")[0] == 201
    overtaken.set()
    threads[0].join(10)
    assert answers == {"/first": 201} and threads[1].is_alive()
    free.set()
    threads[1].join(10)
    assert answers["/stuck"] == 0
    paths = [path for _, path, _ in server.asked]
    assert paths.index("/second") < paths.index("/first")


def test_the_hook_after_a_call_has_the_last_word(server: Server, proxy: ServerProxy) -> None:
    seen: list[tuple[int | None, bytes]] = []

    def after(call: Call) -> Fault | None:
        seen.append((call.status, call.content))
        return named_faults.DROP_ANSWER

    proxy.after = after
    assert ask(proxy)[0] == 0
    assert seen == [(201, b'{"number": 1}')]


def test_an_old_call_arrives_again(server: Server, proxy: ServerProxy) -> None:
    ask(proxy, "POST", "/api/v1/agent/heartbeat", b"{}")
    ask(proxy)
    assert proxy.replay(proxy.seen("heartbeat")[0]) == 201
    assert [path for _, path, _ in server.asked][-1] == "/api/v1/agent/heartbeat"


def test_nobody_answers_while_it_is_down(server: Server, proxy: ServerProxy) -> None:
    proxy.down()
    assert ask(proxy)[0] == 0
    proxy.up()
    assert ask(proxy)[0] == 201
    proxy.close_at_accept = True
    assert ask(proxy)[0] == 0
    proxy.good()
    assert ask(proxy)[0] == 201
    assert len(server.asked) == 2


def test_a_stream_comes_as_it_is_sent_and_its_callers_leaving_is_passed_on(server: Server, proxy: ServerProxy) -> None:
    link = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    link.request("GET", "/api/v1/agent/doorbell")
    answer = link.getresponse()
    assert answer.read(8) == b"wakewake"
    answer.close()
    link.close()
    assert server.left.wait(10)


def test_a_stream_is_cut(proxy: ServerProxy) -> None:
    proxy.rule = lambda call: named_faults.cut(10)
    assert ask(proxy, path="/api/v1/agent/doorbell")[0] == -1


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("PUT", "/api/v1/tasks/a", {"from_status": "scheduled", "status": "running"}, "claim"),
        ("PUT", "/api/v1/tasks/a", {"from_status": "running", "status": "failed"}, "report"),
        ("PUT", "/api/v1/tasks/a", {"from_status": "running", "status": "sleeping"}, "sleep_report"),
        ("PUT", "/api/v1/tasks/a", {"from_status": "sleeping", "status": "running"}, "sleep_report"),
        ("GET", "/api/v1/tasks/a", None, "task"),
        ("GET", "/api/v1/tasks?node_id=n&status=scheduled", None, "offer"),
        ("POST", "/api/v1/tasks/a/logs", {}, "logs"),
        ("POST", "/api/v1/tasks/a/reclaim", {}, "reclaim"),
        ("POST", "/api/v1/tasks/a/checkpoint-resume", {}, "checkpoint"),
        ("POST", "/api/v1/agent/heartbeat", {}, "heartbeat"),
        ("GET", "/api/v1/agent/pending?node_id=n", None, "pending"),
        ("PUT", "/api/v1/agent/image-requests/1", {}, "instruction"),
        ("GET", "/install-agent.sh", None, "other"),
    ],
)
def test_calls_to_the_server_have_names(method: str, path: str, body: Any, kind: str) -> None:
    call = Call(0, method, path, {}, b"" if body is None else json.dumps(body).encode(), b"")
    assert server_proxy.kind_of(call) == kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1.41/containers/json?all=1", "GET /containers/json"),
        ("/v1.41/containers/create?name=x", "GET /containers/create"),
        (f"/v1.41/containers/{'a' * 64}/json", "GET /containers/{id}/json"),
        (f"/containers/{'a' * 64}", "GET /containers/{id}"),
        ("/v1.41/images/198.18.0.1:5000/lab/task:1/json", "GET /images/{name}/json"),
        ("/v1.41/images/json?all=0", "GET /images/json"),
        ("/v1.41/images/create?fromImage=x", "GET /images/create"),
        ("/v1.41/networks/bridge", "GET /networks/bridge"),
        ("/_ping", "GET /_ping"),
    ],
)
def test_calls_to_the_engine_have_names(path: str, kind: str) -> None:
    call = Call(0, "GET", path, {}, b"", b"")
    assert engine_proxy.kind_of(call) == kind
    assert (engine_proxy.container_of(call) is not None) == ("{id}" in kind)


# A real engine


@pytest.fixture
def engine(node: Any) -> Iterator[EngineProxy]:
    with EngineProxy(node, "engine-trial.sock") as one:
        assert isinstance(one, EngineProxy)
        yield one


def client(engine: EngineProxy, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", "-H", f"unix://{engine.path}", *words], capture_output=True, text=True,
                          timeout=60, **options)  # fmt: skip


def test_dockers_own_client_works_through_the_proxy(engine: EngineProxy) -> None:
    """Attached, both ways; followed logs; exec; events; an image in and out."""
    name = "hf-proxy-trial"
    try:
        done = client(engine, "run", "--rm", "-i", "--entrypoint", "cat", "hf-lab/task:1", input="there and back\n")
        assert (done.stdout, done.returncode) == ("there and back\n", 0), done.stderr
        done = client(engine, "run", "--name", name, "hf-lab/task:1", "print", "out", "err", "err", "exit", "7")
        assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)
        assert client(engine, "logs", "-f", name).stdout == "out\n"
        client(engine, "start", name)
        saved = subprocess.run(["docker", "-H", f"unix://{engine.path}", "save", "hf-lab/task:1"], capture_output=True)
        loaded = subprocess.run(["docker", "-H", f"unix://{engine.path}", "load"], input=saved.stdout,
                                capture_output=True)  # fmt: skip
        assert b"hf-lab/task:1" in loaded.stdout, loaded.stderr
        kinds = {call.kind for call in engine.calls}
        assert {"POST /containers/create", "POST /containers/{id}/start", "POST /containers/{id}/attach"} <= kinds
    finally:
        client(engine, "rm", "-f", name)


def test_the_node_reaches_its_engine_by_the_proxy_and_its_calls_have_a_process(engine: EngineProxy) -> None:
    events = subprocess.Popen(
        ["docker", "exec", engine.node.name, "docker", "-H", engine.docker_host, "events"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until("the stream is open", lambda: engine.seen("GET /events"))
        engine.node.run(["docker", "-H", engine.docker_host, "run", "--rm", "hf-lab/task:1", "exit", "0"])
        assert events.stdout is not None
        seen = [events.stdout.readline() for _ in range(3)]
        assert any(" create " in line for line in seen)
    finally:
        events.kill()
        events.wait()
    call = engine.seen("POST /containers/create")[0]
    assert call.pid is not None and call.pid > 1


def test_an_engine_call_that_was_done_and_not_answered(engine: EngineProxy) -> None:
    rules: dict[str, Callable[[Call], Fault | None]] = {
        "lose": lambda call: named_faults.DROP_ANSWER if call.kind == "POST /containers/create" else None
    }
    engine.after = rules["lose"]
    done = client(engine, "create", "--name", "hf-proxy-lost", "hf-lab/task:1")
    try:
        assert done.returncode != 0
        engine.good()
        assert client(engine, "inspect", "-f", "{{.State.Status}}", "hf-proxy-lost").stdout == "created\n"
    finally:
        client(engine, "rm", "-f", "hf-proxy-lost")


def test_a_socket_that_is_away(engine: EngineProxy) -> None:
    engine.down()
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError):
        probe.connect(str(engine.path))
    engine.up()
    assert client(engine, "version").returncode == 0
