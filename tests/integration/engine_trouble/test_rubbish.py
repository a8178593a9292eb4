"""Whatever answers in Docker's place: each call ends in time, with one of the driver's own errors."""

from __future__ import annotations

import base64
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.drivers import docker, docker_logs, engine, images
from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.drivers.driver import ContainerPlan
from runtime.agent.drivers.errors import DriverError, EngineUnavailable, NotThere
from tests.integration.engine_trouble.rubbish import VERSION, Rubbish, whole

CONTAINER = "c" * 64
DEEP = b"[" * 200_000
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAN = ContainerPlan("task-a", "i:1", {"heterofleet.uid": "u", "heterofleet.attempt": "1", "heterofleet.claim": "t"})

CALLS: dict[str, Callable[[DockerDriver], Any]] = {
    "engine": lambda driver: driver.engine(),
    "started_at": lambda driver: driver.started_at(),
    "list_own": lambda driver: driver.list_own(),
    "inspect": lambda driver: driver.inspect(CONTAINER),
    "create": lambda driver: driver.create(PLAN, "task-a-1"),
    "start": lambda driver: driver.start(CONTAINER),
    "signal": lambda driver: driver.signal(CONTAINER, "SIGTERM"),
    "remove": lambda driver: driver.remove(CONTAINER),
    "missing_program": lambda driver: driver.missing_program(CONTAINER),
    "changed_ns": lambda driver: driver.changed_ns(CONTAINER, "/x"),
    "log_rest": lambda driver: driver.log_rest(CONTAINER, 1000),
    "log_follow": lambda driver: list(driver.log_follow(CONTAINER, "", lambda close: None)),
    "events": lambda driver: list(driver.events(lambda close: None)),
    "present": lambda driver: driver.images.present("i:1"),
    "images": lambda driver: driver.images.list(),
    "pull": lambda driver: driver.images.pull("i:1", None, 1, 1).run(),
}
WITHOUT_ANSWER = {"start", "signal", "remove"}  # the status says all
STREAMS = {"log_rest", "log_follow", "events", "pull"}

BODIES: dict[str, bytes] = {
    "no JSON": b"<html>502</html>",
    "half a JSON": b'[{"Id": "abc", "Names": ["/ta',
    "null": b"null",
    "a number": b"7",
    "a text": b'"x"',
    "a list of a number": b"[1]",
    "a list of lists": b"[[[]]]",
    "an empty object": b"{}",
    "wrong members": json.dumps({"Id": 7, "State": "up", "Config": [], "ID": [], "Names": 3, "RepoTags": 5,
                                 "Created": {}, "Path": 9, "Runtimes": 4, "Labels": "no", "stream": None,
                                 "progressDetail": "x", "Actor": [], "error": None}).encode(),
    "rows with wrong members": b'[{"Id": null, "Names": 5, "Labels": [], "Created": "soon", "RepoTags": 1}]',
    "too deep": DEEP,
    "no text": bytes(range(256)),
    "numbers without end": b'{"Created": 1' + b"0" * 5000 + b"}",
}  # fmt: skip


@pytest.fixture
def rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rubbish]:
    for module, names in (
        (docker, ("LIST_S", "CREATE_S", "START_S", "REMOVE_S", "EVENTS_SILENCE_S")),
        (docker_logs, ("_CALL_S", "_STEADY_S")),
        (images, ("LIST_S",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 0.2)
    made = Rubbish(tmp_path / "engine.sock")
    yield made
    made.close()


def outcome(rubbish: Rubbish, name: str) -> str:
    """The kind of error, or what came back; anything but a DriverError is raised."""
    began = time.monotonic()
    try:
        found = repr(CALLS[name](DockerDriver(rubbish.address)))
    except DriverError as error:
        found = type(error).__name__
    assert time.monotonic() - began < 60
    return found


@pytest.mark.parametrize("name", CALLS)
def test_bodies_that_mean_nothing(rubbish: Rubbish, name: str) -> None:
    for words, body in BODIES.items():
        rubbish.answer = lambda body=body: iter([whole(body)])
        found = outcome(rubbish, name)
        if name not in WITHOUT_ANSWER | STREAMS:
            empty = {"engine": "an empty object", "images": "an empty object", "started_at": "any"}
            nothing_said = words == empty.get(name) or name in ("started_at", "present", "missing_program")
            assert found == "EngineUnavailable" or nothing_said, f"{words}: {found}"


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "409 Conflict", "500 Oops", "503 Away"])
def test_refusals_that_mean_nothing(rubbish: Rubbish, status: str) -> None:
    for words, body in {**BODIES, "deep enough": b"[" * 60_000, "nothing": b""}.items():
        rubbish.answer = lambda body=body: iter([whole(body, status)])
        for name in ("list_own", "inspect", "create", "signal", "events", "pull"):
            found = outcome(rubbish, name)
            if status.startswith("404") and name != "pull":
                assert found == "EngineUnavailable", f"{name}, {words}: {found}"


def test_a_path_that_is_described_by_rubbish(rubbish: Rubbish) -> None:
    for said in (b"", b"!", b"e30=", base64.b64encode(b"[" * 40_000), base64.b64encode(b'{"mode": "x", "mtime": 3}')):
        head = b"HTTP/1.1 200 OK\r\nX-Docker-Container-Path-Stat: " + said + b"\r\nContent-Length: 0\r\n\r\n"
        rubbish.answer = lambda head=head: iter([head])
        assert outcome(rubbish, "changed_ns") == "EngineUnavailable", said[:20]


@pytest.mark.parametrize("name", CALLS)
def test_answers_that_are_none(rubbish: Rubbish, name: str) -> None:
    for head in (
        b"",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n[,",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"5\r\n[",
        CHUNKED + b"-1\r\n[",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 100_000,
        b"HTTP/1.1 301 Moved\r\nLocation: http://198.18.0.1/\r\nContent-Length: 0\r\n\r\n",
    ):
        rubbish.answer = lambda head=head: iter([head])
        found = outcome(rubbish, name)
        if name not in STREAMS | WITHOUT_ANSWER and name not in ("changed_ns",):
            assert found == "EngineUnavailable", f"{head[:60]!r}: {found}"


@pytest.mark.parametrize("name", ["list_own", "inspect", "create", "start", "changed_ns", "images"])
def test_answers_without_an_end(rubbish: Rubbish, name: str) -> None:
    """Each silence was bounded; a body that goes on for ever, a byte at a time, was not."""
    for answer in (
        rubbish.hang(),
        rubbish.hang(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n["),
        rubbish.forever(b"1\r\n[\r\n", 0.05, CHUNKED),
    ):
        rubbish.answer = answer
        found = outcome(rubbish, name)
        assert found == "EngineUnavailable" or name == "changed_ns", found


@pytest.mark.parametrize("name", ["list_own", "inspect", "events", "log_rest", "pull", "images"])
def test_a_gigabyte_is_not_kept(rubbish: Rubbish, name: str) -> None:
    sent = 0

    def gigabyte() -> Iterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n"
        while sent < 1 << 30:
            yield b" " * (1 << 20)
            sent += 1 << 20

    rubbish.answer = gigabyte
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert outcome(rubbish, name) == "EngineUnavailable"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB
    assert sent < 256 << 20


@pytest.mark.parametrize("body", [b"", b"[]", b"not found", *BODIES.values()])
def test_a_version_that_is_none(rubbish: Rubbish, body: bytes) -> None:
    rubbish.version = lambda: iter([whole(body)])
    assert outcome(rubbish, "list_own") == "EngineUnavailable"
    rubbish.version = lambda: iter([whole(json.dumps({**VERSION, "MinAPIVersion": "1.24"}).encode())])
    rubbish.answer = lambda: iter([whole(b"[]")])
    assert outcome(rubbish, "list_own") == "[]"


def test_only_the_engine_knows_what_is_not_there(rubbish: Rubbish) -> None:
    """A proxy's 404 page, and the engine's own for a path that it does not know, were read as "that container is
    gone"."""
    driver = DockerDriver(rubbish.address)
    rubbish.answer = lambda: iter([whole(b"<html>not found</html>", "404 Not Found", "text/html")])
    with pytest.raises(EngineUnavailable, match="404"):
        driver.inspect(CONTAINER)
    rubbish.answer = lambda: iter([whole(b'{"message":"page not found"}', "404 Not Found")])
    with pytest.raises(EngineUnavailable, match="404"):
        driver.inspect(CONTAINER)
    rubbish.answer = lambda: iter([whole(b'{"message":"No such container: c"}', "404 Not Found")])
    with pytest.raises(NotThere):
        driver.inspect(CONTAINER)


def test_threads_that_wait_for_an_engine_that_hangs_wait_once(rubbish: Rubbish) -> None:
    """Each asked for the version in its turn: with ten of them the last one waited ten times as long, and the loop
    among them counted as stuck."""
    from concurrent.futures import ThreadPoolExecutor

    rubbish.version = rubbish.hang()
    one = engine.DockerEngine(rubbish.address, call_s=1)

    def ask() -> str:
        try:
            one.call("GET", "/info")
        except DriverError as error:
            return type(error).__name__
        return "answered"

    began = time.monotonic()
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: ask(), range(40)))
    assert found == ["EngineUnavailable"] * 40
    assert time.monotonic() - began < 30, "one after the other they wait 40 s"
