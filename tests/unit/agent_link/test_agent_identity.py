"""Node id, instance and run: as a table, over the file that holds them."""

from __future__ import annotations

import json
import os
import stat
import uuid

import pytest

from runtime.agent.link.identity import IdentityError, Machine, take_identity
from runtime.agent.state import StateError

HERE = Machine("GPU.Box_7", "fingerprint-a", "boot-1")
THERE = Machine("other", "fingerprint-b", "boot-2")


def test_first_start_makes_an_instance_and_every_start_adds_a_run(tmp_path) -> None:
    first = take_identity(tmp_path / "state", None, machine=HERE)
    assert (first.node_id, first.run, first.defaulted) == ("gpu-box-7", 1, True)
    assert str(uuid.UUID(first.instance_id)) == first.instance_id
    second = take_identity(tmp_path / "state", None, machine=HERE)
    assert (second.instance_id, second.run) == (first.instance_id, 2)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state" / "identity.json").stat().st_mode) == 0o600


def test_the_node_id_does_not_follow_the_hostname(tmp_path) -> None:
    take_identity(tmp_path, None, machine=HERE)
    assert take_identity(tmp_path, None, machine=Machine("renamed", "fingerprint-a", "b")).node_id == "gpu-box-7"


@pytest.mark.parametrize(
    ("hostname", "node_id"),
    [("Node-A", "node-a"), ("a__b..c", "a-b-c"), ("-x-", "x"), ("x" * 80, "x" * 63), ("节点-é-1", "1")],
)
def test_hostname_becomes_a_node_id(tmp_path, hostname: str, node_id: str) -> None:
    assert take_identity(tmp_path, None, machine=Machine(hostname, "f", "b")).node_id == node_id


def test_a_hostname_that_leaves_nothing(tmp_path) -> None:
    identity = take_identity(tmp_path, None, machine=Machine("节点", "f", "b"))
    assert identity.node_id.startswith("node-") and len(identity.node_id) == 11


def test_a_configured_id_wins_and_is_not_defaulted(tmp_path) -> None:
    take_identity(tmp_path, None, machine=HERE)
    second = take_identity(tmp_path, "chosen", machine=HERE)
    assert (second.node_id, second.defaulted, second.run) == ("chosen", False, 2)


def test_another_configured_id_is_refused_while_work_of_the_old_one_is_here(tmp_path) -> None:
    take_identity(tmp_path, "old", machine=HERE)
    with pytest.raises(IdentityError, match="--adopt-node-id"):
        take_identity(tmp_path, "new", holds_claims=lambda: True, machine=HERE)
    assert take_identity(tmp_path, "old", holds_claims=lambda: True, machine=HERE).node_id == "old"
    assert take_identity(tmp_path, "new", holds_claims=lambda: True, adopt=True, machine=HERE).node_id == "new"


def test_a_copied_state_folder_is_a_new_instance(tmp_path) -> None:
    first = take_identity(tmp_path, None, machine=HERE)
    copy = take_identity(tmp_path, None, machine=THERE)
    assert copy.instance_id != first.instance_id and copy.run == 1 and copy.node_id == first.node_id


def test_a_machine_without_fingerprint_keeps_its_instance(tmp_path) -> None:
    first = take_identity(tmp_path, None, machine=HERE)
    again = take_identity(tmp_path, None, machine=Machine("GPU.Box_7", None, "boot-1"))
    assert again.instance_id == first.instance_id


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"node_id": "a"}', '{"node_id": "A B", "instance_id": "x", "run": 1}']
)
def test_a_torn_file_is_set_aside(tmp_path, text: str) -> None:
    (tmp_path / "identity.json").write_text(text)
    identity = take_identity(tmp_path, None, machine=HERE)
    assert identity.run == 1
    assert (tmp_path / "identity.json.torn").read_text() == text
    assert json.loads((tmp_path / "identity.json").read_text())["instance_id"] == identity.instance_id


def test_changes_are_on_disk(tmp_path) -> None:
    identity = take_identity(tmp_path, None, machine=HERE)
    identity.take_run(77)
    old = identity.instance_id
    identity.new_instance()
    spare = identity.take_spare_node_id()
    assert spare.startswith("gpu-box-7-") and len(spare) == len("gpu-box-7-") + 6
    again = take_identity(tmp_path, None, machine=HERE)
    assert (again.node_id, again.run) == (spare, 2) and again.instance_id == identity.instance_id != old


def test_a_state_folder_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"state_dir: .*Not a directory"):
        take_identity(tmp_path / "file" / "state", None, machine=HERE)


def test_run_is_synced_before_it_shows(tmp_path, monkeypatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    take_identity(tmp_path, None, machine=HERE)
    assert len(synced) == 2  # the file, then its folder
