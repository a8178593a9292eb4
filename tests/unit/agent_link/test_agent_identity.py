"""Node id, instance and run: as a table, over the file that holds them."""

from __future__ import annotations

import json
import os
import re
import stat
import uuid

import pytest

from runtime.agent.link import identity
from runtime.agent.link.identity import IdentityError, Machine, take_identity
from runtime.agent.state import StateError
from runtime.protocol.names import is_node_id

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
    def work(name: str) -> str:
        return f"one container of {name} is here"

    take_identity(tmp_path, "old", machine=HERE)
    with pytest.raises(IdentityError, match=r"settings say new.*one container of old is here.*--adopt-node-id"):
        take_identity(tmp_path, "new", holds_work=work, machine=HERE)
    assert take_identity(tmp_path, "old", holds_work=work, machine=HERE).node_id == "old"
    assert take_identity(tmp_path, "new", holds_work=work, adopt=True, machine=HERE).node_id == "new"


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


def test_a_torn_file_keeps_the_name_that_the_agent_had(tmp_path) -> None:
    first = take_identity(tmp_path, None, machine=HERE)
    (tmp_path / "status.json").write_text(json.dumps({"node_id": first.node_id}))
    (tmp_path / "identity.json").write_text("")
    again = take_identity(tmp_path, None, machine=Machine("renamed", "fingerprint-a", "boot-1"))
    assert (again.node_id, again.run, again.defaulted) == (first.node_id, 1, False)
    assert again.instance_id != first.instance_id and not again.copied
    # Without the file there is no name to keep: an image may be cleaned by removing it.
    (tmp_path / "identity.json").unlink()
    assert take_identity(tmp_path, None, machine=Machine("renamed", "f", "b")).node_id == "renamed"


@pytest.mark.parametrize(
    ("before", "now", "copied"),
    [
        (("m", "p"), ("m", "p"), False),
        (("m", "p"), ("m", "x"), True),
        (("m", "p"), ("x", "p"), True),
        (("m", None), ("m", "p"), False),  # readable only now
        (("m", "p"), ("m", None), False),  # not readable any more
        (("m", None), (None, "p"), False),  # nothing to compare
        (("m", "p"), (None, None), False),
        ((None, None), ("m", "p"), False),
        ((None, None), (None, None), False),
        (("m", None), ("x", "p"), True),
    ],
)
def test_only_what_is_known_twice_makes_another_machine(tmp_path, before, now, copied: bool) -> None:
    """An agent that could not read the firmware at one start became another instance, and waited for a release."""
    first = take_identity(tmp_path, None, machine=machine_of(*before))
    again = take_identity(tmp_path, None, machine=machine_of(*now))
    assert (again.instance_id != first.instance_id, again.copied) == (copied, copied)
    if not copied and any(before) and any(now):
        assert again.fingerprint == first.fingerprint, "the server knows the machine by it"
    if not any(now):
        assert again.fingerprint is None, "of which nothing is known must not pass for the machine of the folder"
    # What was known once is compared with later on, too.
    other = take_identity(tmp_path, None, machine=machine_of("another", "another"))
    assert other.copied == (any(before) or any(now))


def machine_of(machine_id, product) -> Machine:
    known = machine_id or product
    return Machine("host", f"{machine_id}+{product}" if known else None, "boot", (machine_id, product))


@pytest.mark.parametrize(
    ("machine_id", "product", "parts"),
    [
        ("4f" * 16, "4C4C4544-0042-4B10-8051-B4C04F4D3332", (True, True)),
        ("", "", (False, False)),
        ("uninitialized", "00000000-0000-0000-0000-000000000000", (False, False)),
        (None, "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", (False, False)),
        (None, "Not Settable", (False, False)),
        ("4f" * 16, "03000200-0400-0500-0006-000700080009", (True, False)),
    ],
)
def test_what_the_machine_shows(tmp_path, monkeypatch, machine_id, product, parts) -> None:
    """Placeholders of images and of firmware are no identity: two such machines would be one."""
    for name, value in (("MACHINE_ID", machine_id), ("PRODUCT_UUID", product)):
        path = tmp_path / name
        if value is not None:
            path.write_text(f"{value}\n")
        monkeypatch.setattr(identity, name, path)
    here = identity.this_machine()
    assert (here.parts[0] is not None, here.parts[1] is not None) == parts
    assert (here.fingerprint is not None) == any(parts)


@pytest.mark.parametrize(
    ("hostname", "pattern"),
    [
        ("gpu", "gpu-[0-9a-f]{6}"),
        ("节点", "node-[0-9a-f]{6}"),
        ("", "node-[0-9a-f]{6}"),
        ("!!!", "node-[0-9a-f]{6}"),
        ("x" * 200, "x{56}-[0-9a-f]{6}"),
        ("a" * 55 + "-b", "a{55}-[0-9a-f]{6}"),
    ],
)
def test_spare_names(hostname: str, pattern: str) -> None:
    spare = identity.spare_node_id(hostname)
    assert re.fullmatch(pattern, spare) and is_node_id(spare)


def test_a_name_given_up_by_force_is_remembered(tmp_path) -> None:
    """What runs under it is still its own, and a server that says so has not moved it."""

    def work(name: str) -> str:
        return f"a container of {name} is here"

    take_identity(tmp_path, "old", machine=HERE)
    taken = take_identity(tmp_path, "new", holds_work=work, adopt=True, machine=HERE)
    assert (taken.node_id, taken.former_node_ids) == ("new", ["old"])
    assert take_identity(tmp_path, "new", machine=HERE).former_node_ids == ["old"]
    assert take_identity(tmp_path, "old", holds_work=work, adopt=True, machine=HERE).former_node_ids == ["new"]
    assert take_identity(tmp_path / "idle", "new", adopt=True, machine=HERE).former_node_ids == []


def test_whether_the_machine_was_started_since(tmp_path) -> None:
    assert not take_identity(tmp_path, None, machine=HERE).booted, "there is nothing of an earlier boot"
    assert not take_identity(tmp_path, None, machine=HERE).booted
    assert take_identity(tmp_path, None, machine=Machine("GPU.Box_7", "fingerprint-a", "boot-2")).booted


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
