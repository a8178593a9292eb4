"""The second pass over a task as sent: one row per fault, and what it must not say."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from runtime.protocol.problems import Problem
from runtime.protocol.tasks import TaskSpec
from runtime.server.services.tasks.check import Checked, check, starts_allowed
from runtime.server.services.tasks.confidential import public_part, secret_part
from runtime.server.validation import parse

SECRET = "hunter2-very-secret"
GOOD: dict[str, Any] = {"name": "a", "image": "app:1"}


def checked(body: dict[str, Any], vendors: frozenset[str] = frozenset(), default: str | None = None) -> Checked:
    spec = parse(TaskSpec, json.dumps({**GOOD, **body}).encode(), code="invalid_task", forbid_unknown=True)
    return check(spec, vendors, default)


@pytest.mark.parametrize(
    ("body", "path", "part"),
    [
        ({"image": None}, "image", "an image"),
        ({"image": None, "kind": "training", "model": "/m"}, "image", "an image"),
        ({"image": None, "kind": "inference"}, "image", "engine router"),
        ({"image": None, "kind": "inference", "model": "/m", "engine": "vLLM"}, "engine", "one of vllm, sglang"),
        ({"image": "UPPER/case"}, "image", "lower-case"),
        ({"image": "host:5000/app:ta g"}, "image", "tag"),
        ({"driver": "process", "image": None}, "command", "a command"),
        ({"driver": "process", "command": ["x"]}, "image", "no image"),
        ({"driver": "process", "image": None, "command": ["x"], "shm_mib": 64}, "shm_mib", "nothing"),
        ({"env": {"1A": SECRET}}, "env", "does not begin with a digit"),
        ({"env": {"A-B": SECRET}}, "env", "letters, digits"),
        ({"env": [f"A B={SECRET}"]}, "env.0", "letters, digits"),
        ({"env": ["A=1", f"A={SECRET}"]}, "env.1", "each name once"),
        ({"volumes": [{"host": "data", "container": "/d"}]}, "volumes.0.host", "absolute"),
        ({"volumes": [{"host": "/d\nx", "container": "/d"}]}, "volumes.0.host", "control characters"),
        ({"volumes": [{"host": "/data/../etc", "container": "/d"}]}, "volumes.0.host", "'..'"),
        ({"volumes": [{"host": "/d", "container": "/"}]}, "volumes.0.container", "below the root"),
        (
            {"volumes": [{"host": "/d", "container": "/d"}, {"host": "/e", "container": "/d/"}]},
            "volumes.1.container",
            "no other volume",
        ),
        ({"workdir": "work"}, "workdir", "absolute"),
        ({"checkpoint_path": "/ck"}, "checkpoint_path", "inside one of the volumes"),
        (
            {"checkpoint_path": "/data2/ck", "volumes": [{"host": "/d", "container": "/data"}]},
            "checkpoint_path",
            "inside",
        ),
        ({"checkpoint_framework": "magic"}, "checkpoint_framework", "one of auto"),
        ({"ports": [{"container": 80}, {"container": 80}]}, "ports.1.container", "once"),
        ({"ports": [{"container": 80, "host": 8}, {"container": 81, "host": 8}]}, "ports.1.host", "once"),
        ({"network": "host", "ports": [{"container": 80, "host": 81}]}, "ports.0.host", "own port"),
        ({"gpus": {"slice": "1g.10gb", "mps": True}}, "gpus", "one of them"),
        ({"gpus": {"slice": "1g.10gb", "same_nvlink_domain": True}}, "gpus.same_nvlink_domain", "whole cards"),
        ({"gpus": {"mps": True, "vendor": "hygon"}}, "gpus.mps", "nvidia"),
        ({"gpus": {"count": 2, "uuids": ["a"]}}, "gpus.uuids", "as many"),
        ({"gpus": {"count": 2, "uuids": ["a", "a"]}}, "gpus.uuids", "once"),
        ({"gpus": {"count": 1, "uuids": [""]}}, "gpus.uuids.0", "1 to 200"),
        ({"on_node_lost": "reschedule"}, "max_attempts", "at least 2"),
        ({"on_node_lost": "reschedule", "kind": "training", "max_attempts": 1}, "max_attempts", "at least 2"),
        ({"labels": {"a b": "c"}}, "labels", "names of letters"),
        ({"labels": {"a": "x" * 201}}, "labels.a", "at most 200"),
        ({"node_selector": {"zone": "a\tb"}}, "node_selector.zone", "printable"),
    ],
)
def test_a_wrong_task_is_named_by_path(body: dict[str, Any], path: str, part: str) -> None:
    faults = checked(body).faults
    assert [fault.path for fault in faults] == [path]
    assert part in faults[0].wanted
    assert SECRET not in repr(faults)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"command": ["a\u0000b"]}, "command.0"),
        ({"volumes": [{"host": "/d\u0000", "container": "/d"}]}, "volumes.0.host"),
        ({"env": {"A": f"\u0000{SECRET}"}}, "env.A"),
        ({"labels": {"a\u0000": "b"}}, "labels"),
    ],
)
def test_no_text_of_an_operator_holds_nul(body: dict[str, Any], path: str) -> None:
    with pytest.raises(Problem) as caught:
        checked(body)
    assert [fault["path"] for fault in caught.value.members["errors"]] == [path]
    assert SECRET not in str(caught.value.document(None))


@pytest.mark.parametrize(
    ("env", "paths"),
    [
        ({"A": 1}, ["env.A"]),
        ({"A": 1, "B": None, "C": "x"}, ["env.A", "env.B"]),
        (["A=1", 2], ["env.1"]),
        (5, ["env"]),
    ],
)
def test_what_fits_no_form_of_env_is_one_fault_that_names_both(env: Any, paths: list[str]) -> None:
    with pytest.raises(Problem) as caught:
        checked({"env": env})
    found = caught.value.members["errors"]
    assert [fault["path"] for fault in found] == paths
    assert all("an object of texts or a list of texts" in fault["wanted"] for fault in found)


def test_every_fault_is_found_at_once() -> None:
    body = {
        "image": "A",
        "env": {"1": "x"},
        "volumes": [{"host": "x", "container": "/"}],
        "gpus": {"slice": "s", "mps": True},
    }
    found = {fault.path for fault in checked(body, frozenset({"nvidia", "hygon"})).faults}
    assert found == {"image", "env", "volumes.0.host", "volumes.0.container", "gpus", "gpus.vendor"}


@pytest.mark.case("FC-029")
def test_a_bare_env_name_is_dropped_and_reported() -> None:
    """A bare name would copy the agent's own value, its key among them, into the container."""
    result = checked({"env": ["A=1", "AGENT_API_KEY", "PATH", "B="]})
    assert result.faults == []
    assert result.spec.env == {"A": "1", "B": ""}
    assert [warning.code for warning in result.warnings] == ["env_bare_name", "env_bare_name"]
    assert "AGENT_API_KEY" in result.warnings[0].detail


def test_a_secret_pasted_as_a_bare_item_is_not_shown() -> None:
    result = checked({"env": [f"{SECRET}!"]})
    assert SECRET not in repr(result.warnings)


@pytest.mark.parametrize(
    ("gpus", "vendors", "default", "vendor"),
    [
        ({}, {"nvidia"}, None, "nvidia"),
        ({}, set(), None, None),
        ({}, {"nvidia", "hygon"}, "hygon", "hygon"),
        ({"vendor": "metax"}, {"nvidia", "hygon"}, "hygon", "metax"),
        ({"model": "H100*"}, {"nvidia", "hygon"}, None, None),
        ({"class": "nvidia-h100-80g"}, {"nvidia", "hygon"}, None, None),
        ({"uuids": ["GPU-1"]}, {"nvidia", "hygon"}, None, None),
    ],
)
def test_the_vendor_is_the_tasks_the_default_or_the_only_one(
    gpus: dict[str, Any], vendors: set[str], default: str | None, vendor: str | None
) -> None:
    result = checked({"gpus": gpus}, frozenset(vendors), default)
    assert result.faults == []
    assert result.spec.gpus is not None and result.spec.gpus.vendor == vendor


@pytest.mark.parametrize(
    ("body", "vendor"),
    [
        ({"engine": "mindie"}, "ascend"),
        ({"engine": "vllm"}, "nvidia"),
        ({"engine": "auto"}, "hygon"),
        ({"engine": "mindie", "gpus": {"vendor": "nvidia"}}, "nvidia"),
        ({"engine": "mindie", "gpus": {"model": "H100*"}}, None),
        ({"engine": "mindie", "image": "busybox"}, "hygon"),
    ],
)
def test_without_a_vendor_it_is_the_engines(body: dict[str, Any], vendor: str | None) -> None:
    result = checked({"image": None, "kind": "inference", "model": "/m", "gpus": {}, **body}, default="hygon")
    assert result.faults == []
    assert result.spec.gpus is not None and result.spec.gpus.vendor == vendor


def test_several_vendors_and_no_choice_is_a_refusal_of_its_own() -> None:
    result = checked({"gpus": {}}, frozenset({"nvidia", "hygon"}))
    assert result.only_vendor_missing
    assert "hygon, nvidia" in result.faults[0].wanted


@pytest.mark.parametrize(
    ("kind", "asked", "allowed"), [("job", None, 1), ("training", None, 3), ("inference", None, 1), ("job", 5, 5)]
)
def test_training_starts_three_times_and_the_rest_once(kind: str, asked: int | None, allowed: int) -> None:
    assert starts_allowed(checked({"kind": kind, "max_attempts": asked}).spec) == allowed


def test_nothing_secret_is_in_the_public_part() -> None:
    auth = {"server": "r", "username": "u", "password": SECRET}
    spec = checked({"env": {"A": SECRET}, "registry_auth": auth}).spec
    assert SECRET not in json.dumps(public_part(spec))
    assert public_part(spec)["env"] == {"A": "***"}
    assert secret_part(spec) == {"env": {"A": SECRET}, "registry_auth": auth}
    assert secret_part(dataclasses.replace(spec, env=None, registry_auth=None)) is None
    assert SECRET not in repr(spec)


def test_wrong_env_types_do_not_show_values() -> None:
    with pytest.raises(Problem) as caught:
        checked({"env": {"A": [SECRET]}, "registry_auth": {"server": SECRET}})
    assert SECRET not in json.dumps(caught.value.document(None))


def test_odd_but_possible_tasks_get_warnings() -> None:
    result = checked(
        {
            "start_timeout_s": 5,
            "model": "/m",
            "ports": [{"container": 80}],
        }
    )
    assert {warning.code for warning in result.warnings} == {"start_timeout_without_health", "model_ignored"}
    probed = checked({"health": {"type": "http", "port": 81}, "ports": [{"container": 80}]})
    assert [warning.code for warning in probed.warnings] == ["health_port_unpublished"]
