"""What the dynamic inventory makes of the control plane's nodes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.unit.inventory.rules import DYNAMIC

Node = dict[str, Any]


def node(name: str = "gpu-a", **more: Any) -> Node:
    """A node as the API shows it, with all that is known."""
    return {
        "id": name,
        "state": "online",
        "schedulable": True,
        "cordon": None,
        "draining": False,
        "instance_id": "0b5c",
        "hostname": f"{name}.example",
        "last_seen_at": "2026-01-02T03:04:05Z",
        "agent": {"version": "1.2.3", "commit": "0123456789ab", "dirty": False, "arch": "amd64"},
        "host": {"mgmt_addr": "192.168.3.11", "os": "Debian 12", "macs": ["02:00:00:00:00:01"]},
        "docker": {"available": True, "version": "26.0"},
        "gpus": [
            {"uuid": "GPU-1", "vendor": "nvidia", "model": "NVIDIA H100 80GB", "class": "nvidia-h100-80g"},
            {"uuid": "MIG-1", "vendor": "nvidia", "model": "slice", "class": "slice", "parent_uuid": "GPU-1"},
        ],
        "labels": {"rack": "a-12"},
        **more,
    }


def groups_of(one: Node) -> set[str]:
    said, warnings = DYNAMIC.inventory([one])
    assert warnings == []
    return {name for name in said if name != "_meta"}


ALL = {
    *("nodes", "state_online", "schedulable", "arch_amd64", "version_1_2_3", "label_rack_a_12"),
    *("vendor_nvidia", "model_NVIDIA_H100_80GB", "class_nvidia_h100_80g"),
}
CARDS = {"vendor_nvidia", "model_NVIDIA_H100_80GB", "class_nvidia_h100_80g"}


@pytest.mark.parametrize(
    ("change", "less", "more"),
    [
        ({}, set(), set()),
        ({"state": "lost"}, {"state_online"}, {"state_lost"}),
        ({"schedulable": False}, {"schedulable"}, {"cordoned"}),
        ({"draining": True}, set(), {"draining"}),
        ({"agent": {"version": "1.2.3", "dirty": True, "arch": "aarch64"}}, {"arch_amd64"}, {"arch_arm64", "dirty"}),
        ({"agent": None}, {"arch_amd64", "version_1_2_3"}, {"arch_unknown", "version_unknown"}),
        ({"gpus": None}, CARDS, {"cards_unknown"}),
        ({"gpus": []}, CARDS, {"cards_none"}),
        ({"labels": {}}, {"label_rack_a_12"}, set()),
        ({"labels": {"team/x": "Ü 1"}}, {"label_rack_a_12"}, {"label_team_x___1"}),
        ({"host": None, "docker": None}, set(), set()),
    ],
)
def test_groups(change: Node, less: set[str], more: set[str]) -> None:
    assert groups_of(node(**change)) == ALL - less | more


def test_variables() -> None:
    said, _ = DYNAMIC.inventory([node()])
    assert said["_meta"]["hostvars"]["gpu-a"] == {
        "ansible_host": "192.168.3.11",
        "heterofleet_state": "online",
        "heterofleet_schedulable": True,
        "heterofleet_draining": False,
        "heterofleet_cordon": None,
        "heterofleet_hostname": "gpu-a.example",
        "heterofleet_last_seen_at": "2026-01-02T03:04:05Z",
        "heterofleet_arch": "amd64",
        "heterofleet_version": "1.2.3",
        "heterofleet_commit": "0123456789ab",
        "heterofleet_dirty": False,
        "heterofleet_os": "Debian 12",
        "heterofleet_docker": "26.0",
        "heterofleet_labels": {"rack": "a-12"},
        "heterofleet_cards": {"nvidia-h100-80g": 1},
    }


def test_what_is_not_known_is_null_and_no_address_is_guessed() -> None:
    found = DYNAMIC.variables({"id": "gpu-a", "state": "online"})
    assert "ansible_host" not in found
    assert found["heterofleet_cards"] is None and found["heterofleet_arch"] is None


@pytest.mark.parametrize(
    "address", ["-oProxyCommand=reboot", "a b", "{{ 1 }}", "", "10.0.0.1\n", "x" * 300, "user@host", None, 7]
)
def test_an_address_is_no_option_of_ssh_and_no_template(address: Any) -> None:
    assert "ansible_host" not in DYNAMIC.variables(node(host={"mgmt_addr": address}))


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "::1", "fe80::1%eth0", "gpu-a.example.net"])
def test_addresses_and_names_are_taken(address: str) -> None:
    assert DYNAMIC.variables(node(host={"mgmt_addr": address}))["ansible_host"] == address


def test_two_labels_that_would_be_one_group_are_none() -> None:
    """A play on that group would meet hosts that nobody meant."""
    said, warnings = DYNAMIC.inventory([node("a", labels={"r": "x-1"}), node("b", labels={"r": "x_1"})])
    named = {name: entry["hosts"] for name, entry in said.items() if name.startswith("label_")}
    assert "label_r_x_1" not in named and sorted(named.values()) == [["a"], ["b"]]
    assert all(re.fullmatch(r"label_r_x_1_[0-9a-f]{6}", name) for name in named)
    assert len(warnings) == 2 and "label r=x-1" in warnings[0]


def test_a_node_whose_id_is_none_is_left_out_and_said() -> None:
    said, warnings = DYNAMIC.inventory([node("{{ 1 }}"), node("gpu-a")])
    assert said["nodes"]["hosts"] == ["gpu-a"] and "'{{ 1 }}'" in warnings[0]


def test_five_thousand_nodes() -> None:
    """All there, groups by what they have in common, in an order that only the nodes decide."""
    count = 5000
    nodes = [
        node(f"gpu-{number}", state=("online", "lost")[number % 2], labels={"rack": f"r{number % 100}"})
        for number in range(count)
    ]
    said, warnings = DYNAMIC.inventory(nodes)
    assert warnings == [] and len(said["_meta"]["hostvars"]) == len(said["nodes"]["hosts"]) == count
    assert len(said["state_lost"]["hosts"]) == count / 2 and len(said["label_rack_r7"]["hosts"]) == count / 100
    assert len(said) == 100 + len(ALL) + 1
    assert json.dumps(said) == json.dumps(DYNAMIC.inventory(reversed(nodes))[0] | {"_meta": said["_meta"]})


def test_a_name_of_ansible_s_own_marks_in_one_node_leaves_the_inventory_readable() -> None:
    labels = {"__ansible_type": "x", "__ansible_vault": "x", "rack": "a"}
    said, _ = DYNAMIC.inventory([node(labels=labels, gpus=[{"class": "__ansible_type"}])])
    variables = said["_meta"]["hostvars"]["gpu-a"]
    assert (variables["heterofleet_labels"], variables["heterofleet_cards"]) == ({"rack": "a"}, {})
