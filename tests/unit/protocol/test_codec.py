"""The codec against every body: what was encoded is decoded again, and the server's validator agrees."""

from __future__ import annotations

import dataclasses
import json
import typing
from enum import Enum
from typing import Any, Union

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.protocol.codec import WireError, decode, encode, wire_name
from runtime.protocol.hardware import Gpu
from runtime.protocol.heartbeat import Heartbeat, HeartbeatAnswer
from runtime.protocol.tasks import LogChunk, Task, TaskSpec
from runtime.server.validation import adapter
from tests.unit.protocol.bodies import BODIES, instances, with_strangers

by_body = pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_the_list_of_bodies_is_not_empty() -> None:
    assert {Heartbeat, HeartbeatAnswer, Task, TaskSpec} <= set(BODIES)
    assert len(BODIES) > 40


@by_body
@few
@given(data=st.data())
def test_what_is_encoded_is_decoded_again(cls: type, data: st.DataObject) -> None:
    body = data.draw(instances(cls))
    assert decode(cls, through_json(encode(body))) == body


@by_body
@few
@given(data=st.data())
def test_absent_and_null_mean_the_same(cls: type, data: st.DataObject) -> None:
    """Heartbeats and requests leave members out that are None; every such member has None as its default."""
    body = data.draw(instances(cls))
    dropped = through_json(encode(body, drop_none=True))
    expected = {f.name: getattr(body, f.name) for f in dataclasses.fields(cls)}
    decoded = decode(cls, dropped)
    for field in dataclasses.fields(cls):
        if expected[field.name] is None:
            assert getattr(decoded, field.name) is None, field.name
    assert encode(decoded, drop_none=True) == encode(body, drop_none=True)


@by_body
@few
@given(data=st.data())
def test_unknown_members_are_ignored(cls: type, data: st.DataObject) -> None:
    body = data.draw(instances(cls))
    assert decode(cls, with_strangers(cls, through_json(encode(body)))) == body


@by_body
@few
@given(data=st.data())
def test_the_validator_reads_what_the_codec_reads(cls: type, data: st.DataObject) -> None:
    body = data.draw(instances(cls))
    raw = json.dumps(encode(body, drop_none=True)).encode()
    assert adapter(cls).validate_json(raw, strict=True) == decode(cls, json.loads(raw))


def wrong_for(hint: Any) -> Any:
    """A JSON value that the hint cannot take, or ... where it takes everything."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Union:
        # A number is right for none of the unions that the contract has but numbers themselves.
        return [] if {int, float} & set(arguments) else 5 if str not in arguments else []
    if hint is Any:
        return ...
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "no-such-value"
    if origin is dict or dataclasses.is_dataclass(hint):
        return []
    if origin is list:
        return {}
    return {"a": 1}


def shapes() -> list[tuple[type, str, Any]]:
    rows = []
    for cls in BODIES:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            wrong = wrong_for(hints[field.name])
            if wrong is not ...:
                rows.append((cls, field.name, wrong))
    return rows


@pytest.mark.parametrize(("cls", "name", "wrong"), shapes(), ids=lambda x: getattr(x, "__name__", str(x)))
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_wrong_shape_is_named_by_its_path(cls: type, name: str, wrong: Any, data: st.DataObject) -> None:
    (key,) = [wire_name(field) for field in dataclasses.fields(cls) if field.name == name]
    body = through_json(encode(data.draw(instances(cls))))
    with pytest.raises(WireError) as caught:
        decode(cls, {**body, key: wrong})
    assert caught.value.path == key
    assert caught.value.wanted


@pytest.mark.parametrize(
    ("cls", "body", "path", "found", "wanted"),
    [
        (Heartbeat, [], "", "list", "an object"),
        (HeartbeatAnswer, {"registered": True}, "control_plane_id", "nothing", "a value"),
        (HeartbeatAnswer, {"registered": 1}, "registered", "int", "true or false"),
        (
            Task,
            {"id": "a", "uid": "b", "status": "paused", "attempt": 1},
            "status",
            "'paused'",
            "one of pending, scheduled, running, sleeping, completed, failed, cancelled, stopped",
        ),
        (Task, {"id": "a", "uid": "b", "status": "running", "attempt": True}, "attempt", "bool", "a whole number"),
        (Task, {"id": "a", "uid": "b", "status": "running", "attempt": 1.0}, "attempt", "float", "a whole number"),
        (
            Task,
            {"id": "a", "uid": "b", "status": "running", "attempt": 1, "gpus_assigned": [{"uuid": "x"}, {"uuid": 3}]},
            "gpus_assigned.1.uuid",
            "int",
            "a string",
        ),
        (
            Task,
            {"id": "a", "uid": "b", "status": "running", "attempt": 1, "labels": {"team": 4}},
            "labels.team",
            "int",
            "a string",
        ),
    ],
)
def test_the_path_goes_down_to_the_fault(cls: type, body: Any, path: str, found: str, wanted: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(cls, body)
    assert (caught.value.path, caught.value.found, caught.value.wanted) == (path, found, wanted)
    assert str(caught.value) == f"{path or 'body'}: found {found}, wanted {wanted}"


@pytest.mark.parametrize("said", [True, ["orphans", "images"], None])
def test_a_beat_says_that_a_section_is_cut_and_older_agents_named_which(said: Any) -> None:
    body = {"protocol": 1, "node_id": "gpu-a", "instance_id": "i" * 8, "run": 1, "seq": 1, "truncated": said}
    assert decode(Heartbeat, body).truncated == said
    assert adapter(Heartbeat).validate_json(json.dumps(body), strict=True).truncated == said


def test_members_whose_names_are_words_of_python_have_an_alias() -> None:
    assert encode(Gpu("GPU-1", "nvidia", gpu_class="nvidia-h100-80g"), drop_none=True) == {
        "uuid": "GPU-1",
        "vendor": "nvidia",
        "class": "nvidia-h100-80g",
    }
    chunk = LogChunk(attempt=1, claim_token="12345678", start=5, end=9, data="abcd")
    assert encode(chunk)["from"] == 5
    assert decode(LogChunk, encode(chunk)) == chunk


def test_secrets_are_not_in_the_text_of_a_body() -> None:
    """A body that lands in a log by its repr shows neither env values nor a password."""
    spec = decode(
        TaskSpec,
        {
            "name": "n",
            "env": {"TOKEN": "s3cr3t-value"},
            "registry_auth": {"server": "r", "username": "u", "password": "p4ssw0rd-value"},
        },
    )
    assert "s3cr3t-value" not in repr(spec)
    assert "p4ssw0rd-value" not in repr(spec)
    assert "p4ssw0rd-value" not in repr(spec.registry_auth)
