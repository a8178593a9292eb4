"""What of a task is masked on the node, and what stays readable."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union
from urllib.parse import quote

import pytest

from runtime.agent.drivers.errors import EngineRefused, PullFailed
from runtime.agent.drivers.images import DockerImages, registry_header
from runtime.agent.tasks.classify import Conclusion
from runtime.agent.tasks.confidential import secrets_of, without_secrets
from runtime.protocol.masking import MASK, Masker, MaskingFormatter
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Status
from runtime.protocol.tasks import RegistryAuth, TaskSpec
from tests.unit.agent_tasks.test_tasks_delivery import Rig

PASSWORD = "pa55/w+rd=Q"
AUTH = RegistryAuth(server="registry.example", username="user", password=PASSWORD)


def spec(env: Union[dict[str, str], list[str], None] = None, **more: Any) -> TaskSpec:
    return TaskSpec(name="t", image="registry.example/app:1", env=env, **more)


@pytest.mark.case("FC-028")
@pytest.mark.parametrize(
    ("env", "masked"),
    [
        ({"SECRET_PASSWORD": "swordfish-1"}, ["swordfish-1"]),
        ({"SUPER_SEKRET": "swordfish-2"}, ["swordfish-2"]),
        ({"DB_URL": "postgres://u:p@h/x"}, ["postgres://u:p@h/x"]),
        (["A=one-two-three", "B=x=y=zzzzz"], ["one-two-three", "x=y=zzzzz"]),
        ({"MODE": "debug", "WORKERS": "4", "ON": "true", "EMPTY": ""}, []),
        ({"IMAGE": "registry.example/app:1"}, []),
        ({"DATA": "/data/models"}, []),
        ({"HOSTLIKE": "registry.example"}, []),
        (None, []),
    ],
)
def test_the_value_decides_and_not_the_variables_name(env: Any, masked: list[str]) -> None:
    """What happened: a masker knew some names, hid those, and printed the others' values."""
    from runtime.protocol.tasks import Volume

    found = secrets_of(spec(env, volumes=[Volume(host="/data/models", container="/models")]))
    assert found == masked


def test_the_password_is_always_a_secret() -> None:
    assert secrets_of(spec({"A": "1"}, registry_auth=AUTH)) == [PASSWORD]


def test_what_goes_to_the_disk_has_neither() -> None:
    kept = without_secrets(spec({"A": "swordfish"}, registry_auth=AUTH))
    assert (kept.env, kept.registry_auth) == (None, None)


def test_a_tasks_secrets_are_forgotten_with_it_and_its_neighbours_stay() -> None:
    masker = Masker()
    masker.add("the-agents-own-key")
    masker.add_all(["swordfish-1", None, ""], "t1")
    masker.add_all(["swordfish-2"], "t2")
    text = "the-agents-own-key swordfish-1 swordfish-2"
    assert masker.text(text) == f"{MASK} {MASK} {MASK}"
    assert masker.text_of("t1", text) == f"{MASK} {MASK} swordfish-2"
    assert masker.text_of("nobody", text) == f"{MASK} swordfish-1 swordfish-2"
    masker.forget("t1")
    masker.forget("t1")
    assert masker.text(text) == f"{MASK} swordfish-1 {MASK}"


@pytest.mark.parametrize(
    "shown",
    [
        PASSWORD,
        quote(PASSWORD, safe=""),
        quote(PASSWORD, safe="").lower().replace("q", "Q"),
        json.dumps({"password": PASSWORD}),
        repr(PASSWORD),
        repr(PASSWORD.encode()),
        base64.b64encode(PASSWORD.encode()).decode(),
        base64.b64encode(f"user:{PASSWORD}".encode()).decode(),
        base64.b64encode(f"users:{PASSWORD}".encode()).decode(),
        base64.urlsafe_b64encode(f"us:{PASSWORD}".encode()).decode(),
        registry_header(AUTH)["X-Registry-Auth"],
    ],
)
def test_an_engine_that_repeats_a_login_is_masked(shown: str) -> None:
    """A registry's refusal may hold the header that it was sent; the error goes into the task's record."""
    inside = (PASSWORD[2:-2], base64.b64encode(PASSWORD.encode()).decode()[4:-4])
    for pull_of in (StreamingEngine, RefusingEngine):
        pull = DockerImages(pull_of(f"unauthorized: you sent {shown} to us")).pull("registry.example/app:1", AUTH, 9, 9)
        with pytest.raises(PullFailed) as failed:
            pull.run()
        told = failed.value.text + "".join(failed.value.tail)
        assert MASK in told and "unauthorized" in told
        assert not any(text in told for text in inside), told


def test_a_login_at_the_edge_of_what_is_kept_is_masked_before_the_cut() -> None:
    for length in range(280, 301):
        pull = DockerImages(StreamingEngine("x" * length + PASSWORD)).pull("registry.example/app:1", AUTH, 9, 9)
        with pytest.raises(PullFailed) as failed:
            pull.run()
        assert PASSWORD[:4] not in "".join(failed.value.tail)


class StreamingEngine:
    """Tells the error in the stream of a pull, in small pieces."""

    def __init__(self, text: str) -> None:
        self._line = json.dumps({"error": text}).encode() + b"\n"

    def stream(self, *_: Any, **__: Any) -> Any:
        return iter([self._line[n : n + 7] for n in range(0, len(self._line), 7)])


class RefusingEngine:
    """Refuses the call itself."""

    def __init__(self, text: str) -> None:
        self._text = text

    def stream(self, *_: Any, **__: Any) -> Any:
        raise EngineRefused(500, self._text)


def test_a_secret_of_several_lines_is_masked_line_by_line() -> None:
    """A key in PEM form reaches a log as its lines."""
    masker = Masker()
    masker.add("-----BEGIN KEY-----\nMIIEvQIBADANBg\nAB\n-----END KEY-----")
    assert masker.text("line: MIIEvQIBADANBg.") == f"line: {MASK}."
    assert masker.text("AB stays") == "AB stays"


def test_exceptions_that_caused_each_other_are_masked_to_the_first() -> None:
    masker = Masker()
    masker.add(PASSWORD)
    record = None
    try:
        try:
            raise ValueError(f"first {PASSWORD}")
        except ValueError as error:
            raise RuntimeError(f"second {PASSWORD}") from error
    except RuntimeError:
        import sys

        record = logging.LogRecord("x", logging.ERROR, "f", 1, "third %r", (PASSWORD,), sys.exc_info())
    text = MaskingFormatter(masker).format(record)
    assert all(word in text for word in ("first", "second", "third"))
    assert PASSWORD not in text and text.count(MASK) >= 3


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.journal.close()


@pytest.mark.case("FC-028")
def test_a_conclusion_keeps_no_secret_and_the_log_neither(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What an engine says of a container goes to the journal, the log and the server; all get it without."""
    caplog.set_level("DEBUG")
    value = "swordfish/of+the=task"
    rig.parts.learn(rig.held, spec({"TOKEN": value}, registry_auth=AUTH))
    error = f"OCI runtime create failed: env TOKEN={value} ({quote(PASSWORD, safe='')}): no such file /data/models"
    rig.outbound.conclude(rig.held, Conclusion(Status.FAILED, Reason.START_FAILED, error=error), None)
    letter = rig.journal.letter(rig.held.key)
    assert letter is not None and letter.error == (
        f"OCI runtime create failed: env TOKEN={MASK} ({MASK}): no such file /data/models"
    )
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("journal.db*"))
    assert b"OCI runtime" in stored and value.encode() not in stored
    assert "OCI runtime" in caplog.text and value not in caplog.text
    # Until the claim is over; then its values are words like any other.
    assert rig.parts.masker.text(value) == MASK
    rig.outbound.remove(rig.held)
    assert rig.parts.masker.text(value) == value
