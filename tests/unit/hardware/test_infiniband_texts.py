"""Ports as ``ibv_devinfo`` and ``rdma link`` print them: which of them are InfiniBand, and which carry nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.agent.hardware.infiniband.ports import Fault, Port, lid_of, phys_state_of, rate_of, state_of
from runtime.agent.parse.registry import parse_text
from tests.fuzz import texts as corpus

COMMANDS = {"ibv_devinfo": [], "rdma": ["link"]}
TEXTS = {
    (tool, text.name): parse_text(tool, list(text.arguments), text.text)
    for tool in COMMANDS
    for text in corpus.own(tool)
}


def told(tool: str, name: str) -> list[tuple[Any, ...]]:
    keys = ("hca", "port", "state", "phys_state", "rate_gbps", "link_layer", "gid_prefix")
    return [tuple(port[key] for key in keys) for port in TEXTS[tool, name]["ports"]]


def test_the_transport_of_roce_is_infiniband_too_and_is_not_believed() -> None:
    found = TEXTS["ibv_devinfo", "one-ib-one-roce"]
    assert told("ibv_devinfo", "one-ib-one-roce") == [
        ("ibx_0", 1, "active", None, None, "InfiniBand", None),
        ("ibx_10", 1, "active", None, None, "Ethernet", None),
        ("ibx_2", 1, "init", None, None, "InfiniBand", None),
        ("ibx_2", 2, "down", None, None, "InfiniBand", None),
    ]
    assert (found["active"], found["infiniband"]) == (2, 3)
    assert [port["problem"] is None for port in found["ports"]] == [True, True, False, False]


def test_all_that_v_adds() -> None:
    assert told("ibv_devinfo", "verbose") == [
        ("ibp9s0", 1, "active", "LinkUp", 400.0, "InfiniBand", "fe80:0000:0000:0001"),
        ("rocep10s0", 1, "active", "LinkUp", 100.0, "Ethernet", "fe80:0000:0000:0000"),
        ("ibp11s0", 1, "down", "Disabled", None, "InfiniBand", "fe80:0000:0000:0000"),
    ]


def test_what_an_old_one_does_not_say_is_not_known() -> None:
    assert told("ibv_devinfo", "old-ofed") == [
        ("iby0", 1, "active", None, None, "InfiniBand", None),
        ("iby0", 2, "down", None, None, None, None),
    ]


def test_rdma_link_has_no_word_for_the_layer() -> None:
    """An interface beside a lid is that of IP over InfiniBand; neither of both tells nothing."""
    prefix = "fe80:0000:0000:000"
    assert told("rdma", "link") == [
        ("ibx_0", 1, "active", "LinkUp", None, "InfiniBand", f"{prefix}1"),
        ("ibx_1", 1, "init", "LinkUp", None, "InfiniBand", f"{prefix}0"),
        ("ibx_2", 1, "active", "LinkUp", None, "Ethernet", None),
        ("ibx_3", 1, "down", "Disabled", None, "Ethernet", None),
        ("ibx_4", 1, "down", "Polling", None, None, None),
    ]
    assert told("rdma", "old") == [
        ("iby0", 1, "down", "Disabled", None, None, None),
        ("iby5", 1, "active", "LinkUp", None, "InfiniBand", f"{prefix}0"),
        ("iby5", 2, None, None, None, "InfiniBand", f"{prefix}0"),
    ]
    assert told("rdma", "details") == [("ibx_0", 1, "active", "LinkUp", None, "InfiniBand", f"{prefix}2")]
    assert told("rdma", "json") == [told("rdma", "link")[0], told("rdma", "link")[2]]


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("ibv_devinfo", "No IB devices found"),
        ("ibv_devinfo", "\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n"),
        ("ibv_devinfo", "hca_id:\tx\n\t\tport:\t99999999999\n"),
        ("rdma", ""),
        ("rdma", "[" * 100_000),
        ("rdma", '[{"ifname": "x"}, {"ifname": 5, "port": 1}, 7]'),
        ("rdma", "0: ibx_0: node_type ca fw 1.2.3 node_guid 0:0:0:1"),
        ("sysfs", "[" * 100_000),
        ("ibstat", "CA 'x'\n\tPort 99999999999:\n"),
        ("rdma", f"link {'x' * 65}/1 state ACTIVE"),
    ],
)
def test_a_text_without_ports_has_none(tool: str, text: str) -> None:
    assert parse_text(tool, [], text)["ports"] == []


def test_a_text_that_was_pasted_twice_has_each_port_once() -> None:
    (text,) = (text.text for text in corpus.own("rdma") if text.name == "details")
    again = text.replace("ACTIVE", "DOWN")
    (port,) = parse_text("rdma", ["link"], text + again)["ports"]
    assert port["state"] == "down" and json.dumps(port)


def test_null_in_json_is_not_a_word() -> None:
    text = '[{"ifname": "ibx_0", "port": 1, "state": null, "lid": null, "netdev": null}]'
    (port,) = parse_text("rdma", ["-j", "link"], text)["ports"]
    assert {key: value for key, value in port.items() if value is not None} == {"hca": "ibx_0", "port": 1}


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (state_of, "4: ACTIVE", "active"),
        (state_of, "PORT_INIT (2)", "init"),
        (state_of, "Initializing", "init"),
        (state_of, "0: NOP", "nop"),
        (state_of, "UNKNOWN", None),
        (phys_state_of, "2: Polling", "Polling"),
        (phys_state_of, "POLLING (2)", "Polling"),
        (phys_state_of, "PORT_CONFIGURATION_TRAINNING (4)", "PortConfigurationTraining"),
        (phys_state_of, "7: Phy Test", "Phy Test"),
        (phys_state_of, "9" * 400, None),
        (rate_of, "800 Gb/sec (8X XDR)", 800.0),
        (rate_of, "2.5 Gb/sec (1X SDR)", 2.5),
        (rate_of, "9" * 400, None),
        (lid_of, "0x33bf", 0x33BF),
        (lid_of, "65535", 65535),
        (lid_of, "9" * 5000, None),
    ],
)
def test_values(read: Any, text: str, value: Any) -> None:
    assert read(text) == value


IB = Port("x", 1, link_layer="InfiniBand", state="active", phys_state="LinkUp", lid=5, sm_lid=2)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"sm_lid": 0}, Fault.NO_MANAGER_KNOWN),
        ({"lid": 0xFFFF}, Fault.NO_MANAGER_KNOWN),
        ({"sm_lid": 0, "lid": 0, "link_layer": "Ethernet"}, None),
        ({"sm_lid": None, "lid": None}, None),
        ({"state": None, "sm_lid": 0}, None),
        ({"state": "init"}, Fault.NO_MANAGER),
        ({"state": "down", "gid_zero": True}, Fault.VF_NOT_SET_UP),
        ({"state": "down", "gid_zero": False}, Fault.OTHER),
        ({"state": "down", "phys_state": "Polling", "gid_zero": True}, Fault.NO_PEER),
        ({"state": "down", "phys_state": "Disabled"}, Fault.SWITCHED_OFF),
        ({"state": "armed", "phys_state": None}, Fault.OTHER),
    ],
)
def test_why_a_port_carries_nothing(changed: dict[str, Any], fault: Any) -> None:
    port = Port(**{**IB.__dict__, **changed})
    assert port.fault is fault and (port.trouble is None) == (fault is None)
    assert fault is not Fault.OTHER or str(port.state) in str(port.trouble)
