"""Every setting of both files: its default, its three sources, and what it does to a real process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware_settings import HardwareSettings
from runtime.agent.settings import AgentSettings, default_workers
from runtime.protocol import settings as settings_rules
from runtime.server.settings import ServerSettings
from tests.integration.contract.live import (
    AGENT,
    GOOD_KEY,
    SERVER,
    Live,
    call,
    clean_environment,
    control_plane,
    free_port,
    run,
)
from tests.lab.process import wait_for
from tests.lab.simulated_node import SimulatedNode

# name: (default, another value)
SERVER_TABLE: dict[str, tuple[Any, Any]] = {
    "mode": ("production", "production"),
    "listen": ("0.0.0.0:3333", "127.0.0.1:4333"),
    "doorbell_listen": ("0.0.0.0:3334", "127.0.0.1:4334"),
    "doorbell_url": (None, "https://fleet.example.com:3333"),
    "mirror_listen": (None, "127.0.0.1:5173"),
    "public_url": (None, "https://fleet.example.com"),
    "trusted_proxies": ([], ["10.0.0.0/8"]),
    "api_key": (None, GOOD_KEY),
    "api_key_file": (None, "/somewhere/key"),
    "api_key_previous": (None, GOOD_KEY + "-before"),
    "secret_key_file": (None, "/somewhere/secret"),
    "database_url": (None, "sqlite:////somewhere/hf.db"),
    "state_dir": ("/var/lib/heterofleet/server", "/somewhere/state"),
    "builds_dir": (None, "/somewhere/builds"),
    "heartbeat_interval_s": (5, 7.5),
    "unreachable_after_beats": (3, 4),
    "lost_after_beats": (12, 13),
    "start_grace_s": (120, 121),
    "offline_grace_s": (600, 601),
    "claim_overdue_s": (120, 122),
    "brake_fraction": (0.3, 0.4),
    "brake_min_nodes": (3, 5),
    "card_lost_after_beats": (3, 6),
    "card_back_after_beats": (3, 7),
    "mps_max": (4, 8),
    "default_vendor": (None, "hygon"),
    "retention_days": (30, 31),
    "threads": (16, 17),
    "connection_limit": (10000, 10001),
    "max_body_mib": (8, 9),
    "metrics_public": (False, True),
}
AGENT_TABLE: dict[str, tuple[Any, Any]] = {
    "server_url": (None, "https://fleet.example.com:3333"),
    "api_key": (None, GOOD_KEY),
    "api_key_file": (None, None),  # beside api_key it is refused; its effect is below
    "ca_file": (None, "/somewhere/ca.pem"),
    "proxy": (None, "http://10.0.0.1:3128"),
    "allow_plain_http": (False, True),
    "node_id": (None, "gpu-z"),
    "labels": ({}, {"rack": "7"}),
    "fabrics": ([], [{"name": "ib-a", "hcas": ["mlx5_0"]}]),
    "mgmt_addr": (None, "10.0.0.9"),
    "state_dir": ("/var/lib/heterofleet/agent", "/somewhere/agent"),
    "docker_host": (None, "unix:///somewhere/docker.sock"),
    "volumes_allow": (["/data", "/mnt", "/srv"], ["/pool"]),
    "volumes_deny": ([], ["/data/private"]),
    "file_roots": (["/data"], ["/pool"]),
    "model_scan_dirs": (["/data/heteroflow/model-cache"], ["/pool/models"]),
    "engine_priorities": ({}, {"gguf": ["llama.cpp"]}),
    "workers": (default_workers(), 3),
    "max_tasks": (64, 65),
    "allow_host_network": (True, False),
    "allow_ipc_host": (True, False),
    "verify_image_access": (False, True),
    "process_driver": (False, True),
    "process_allow_root": (False, True),
    "process_unconfined": (False, True),
    "reconcile_interval_s": (60, 61),
    "poll_interval_s": (5, 6),
    "safety_pull_s": (60, 62),
    "pull_attempts": (3, 4),
    "pull_stall_s": (300, 301),
    "pull_total_s": (1800, 1801),
    "report_attempts": (6, 7),
    "report_backoff_first_s": (1, 2),
    "report_backoff_max_s": (10, 11),
    "report_total_s": (60, 63),
    "outbox_keep_days": (30, 32),
    "hardware.detect": ("first", "all"),
    "hardware.tools": ({}, {"nvidia-smi": "/somewhere/nvidia-smi"}),
    "hardware.virtual_cards": (1, 2),
    "hardware.probe_image": (None, "probe:1"),
    "hardware.probe_command": ([], ["check", "--all"]),
    "hardware.probe_timeout_s": (60, 64),
    "disk_min_free_mib": (2048, 2049),
    "log_max_mib": (50, 51),
}
NOT_READ_YET = {
    "file_roots": "file instructions",
}
"""Settings that are checked and shown and change nothing yet, with the feature that brings their effect."""
SECRET = {"api_key", "api_key_previous", "database_url", "proxy"}


def defaults(cls: type, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name == "hardware":
            found.update(defaults(HardwareSettings, "hardware."))
            continue
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        found[prefix + field.name] = made
    return found


@pytest.mark.parametrize(("cls", "table"), [(ServerSettings, SERVER_TABLE), (AgentSettings, AGENT_TABLE)])
def test_the_settings_and_their_defaults_are_those_of_the_page(cls: type, table: dict[str, tuple[Any, Any]]) -> None:
    assert defaults(cls) == {name: default for name, (default, _) in table.items()}


@pytest.mark.parametrize(("cls", "folder"), [(ServerSettings, "server"), (AgentSettings, "agent")])
def test_a_setting_that_nothing_reads_is_named(cls: type, folder: str) -> None:
    import runtime

    sources = "\n".join(path.read_text() for path in sorted((Path(runtime.__file__).parent / folder).rglob("*.py")))
    dead = {name for name in defaults(cls) if not re.search(rf"\.{name.rpartition('.')[2]}\b", sources)}
    listed = {name for name in NOT_READ_YET if name in defaults(cls)}
    assert dead == listed


@pytest.mark.parametrize("cls", [ServerSettings, AgentSettings])
def test_a_setting_that_does_nothing_yet_says_so(cls: type) -> None:
    names = [name for name in NOT_READ_YET if name in defaults(cls)]
    wanted = {"file_roots": []}
    loaded = settings_rules.load(cls, document={name: wanted.get(name, True) for name in names}, document_name="a.yaml")
    said = {warning.partition(":")[0]: warning for warning in loaded.warnings}
    assert said.keys() == set(names)
    for name in names:
        assert "does nothing" in said[name]
        assert NOT_READ_YET[name] in said[name]


def environment_of(table: dict[str, tuple[Any, Any]]) -> dict[str, str]:
    def text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    return {
        f"HETEROFLEET_{name.upper().replace('.', '__')}": text(other)
        for name, (_, other) in table.items()
        if other is not None
    }


def nested(table: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, (_, other) in table.items():
        group, _, last = name.rpartition(".")
        (made.setdefault(group, {}) if group else made)[last] = other
    return made


# Two ways to give the same thing: never together.
SERVER_CHOICE = {name: row for name, row in SERVER_TABLE.items() if name != "api_key_file"}


def server_config(folder: Path, file: Optional[dict[str, Any]], *words: str, **variables: str) -> dict[str, Any]:
    path = folder / "server.yaml"
    path.write_text(json.dumps(file or {}))
    done = run(SERVER, "server", "config", "-o", "json", "--config", str(path), *words, env=variables)
    assert done.returncode == 0, done.stderr
    assert GOOD_KEY not in done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def shown(name: str, value: Any) -> Any:
    return "********" if name in SECRET else value


def test_the_servers_settings_come_from_the_file(tmp_path: Path) -> None:
    found = server_config(tmp_path, nested(SERVER_CHOICE))
    origin = str(tmp_path / "server.yaml")
    assert {name: found[name] for name in SERVER_CHOICE} == {
        name: {"value": shown(name, other), "origin": origin} for name, (_, other) in SERVER_CHOICE.items()
    }


def test_the_servers_settings_come_from_the_environment_over_the_file(tmp_path: Path) -> None:
    variables = environment_of(SERVER_CHOICE)
    found = server_config(tmp_path, {"threads": 99, "api_key": "another-long-key-99"}, **variables)
    assert {name: found[name] for name in SERVER_CHOICE} == {
        name: {"value": shown(name, other), "origin": f"HETEROFLEET_{name.upper()}"}
        for name, (_, other) in SERVER_CHOICE.items()
    }


def test_the_command_line_goes_over_both(tmp_path: Path) -> None:
    offered = ("mode", "listen", "doorbell_listen", "public_url", "state_dir", "builds_dir")
    words = [word for name in offered for word in (f"--{name.replace('_', '-')}", str(SERVER_TABLE[name][1]))]
    found = server_config(
        tmp_path, {"listen": "127.0.0.1:1", "api_key": GOOD_KEY}, *words, HETEROFLEET_STATE_DIR="/elsewhere"
    )
    assert {name: found[name] for name in offered} == {
        name: {"value": SERVER_TABLE[name][1], "origin": "command line"} for name in offered
    }


def agent_config(folder: Path, file: dict[str, Any], *words: str, **variables: str) -> dict[str, tuple[Any, str]]:
    path = folder / "agent.yaml"
    path.write_text(json.dumps(file))
    path.chmod(0o600)
    done = run(AGENT, "config", "--config", str(path), *words, env=variables)
    assert done.returncode == 0, done.stderr
    assert GOOD_KEY not in done.stdout + done.stderr
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    rows = {name: rest.rpartition("  # ") for name, _, rest in lines}
    return {name: (json.loads(value), origin) for name, (value, _, origin) in rows.items()}


def test_the_agents_settings_come_from_the_file(tmp_path: Path) -> None:
    ca = make_ca(tmp_path)
    table = {**AGENT_TABLE, "ca_file": (None, ca)}
    found = agent_config(tmp_path, nested(table))
    given = {name: row for name, row in table.items() if row[1] is not None}
    assert {name: found[name] for name in given} == {
        name: (shown(name, other), str(tmp_path / "agent.yaml")) for name, (_, other) in given.items()
    }


def test_the_agents_settings_come_from_the_environment_over_the_file(tmp_path: Path) -> None:
    table = {**AGENT_TABLE, "ca_file": (None, make_ca(tmp_path))}
    variables = environment_of(table)
    found = agent_config(tmp_path, {"workers": 9, "node_id": "gpu-of-the-file"}, **variables)
    given = {name: row for name, row in table.items() if row[1] is not None}
    assert {name: found[name] for name in given} == {
        name: (shown(name, other), f"HETEROFLEET_{name.upper().replace('.', '__')}")
        for name, (_, other) in given.items()
    }


def test_the_agents_command_line_goes_over_both(tmp_path: Path) -> None:
    words = ("--server", "https://other.example.com", "--node-id", "gpu-y", "--mgmt-addr", "10.0.0.8")
    found = agent_config(
        tmp_path,
        {"api_key": GOOD_KEY, "server_url": "https://file.example.com"},
        *words,
        HETEROFLEET_NODE_ID="gpu-of-the-environment",
    )
    assert found["server_url"] == ("https://other.example.com", "command line")
    assert found["node_id"] == ("gpu-y", "command line")
    assert found["mgmt_addr"] == ("10.0.0.8", "command line")


def make_ca(folder: Path) -> str:
    """Any file that is a certificate: this machine's own bundle."""
    import certifi

    path = folder / "ca.pem"
    path.write_bytes(Path(certifi.where()).read_bytes())
    return str(path)


# -- what they do: the control plane ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Path]]:
    """One control plane with nearly every setting changed."""
    folder = tmp_path_factory.mktemp("tuned")
    with control_plane(
        "contract-tuned",
        doorbell=f"127.0.0.1:{free_port()}",
        secret_key_file=str(folder / "the.secret"),
        database_url=f"sqlite:///{folder / 'the.db'}",
        builds_dir=str(folder / "builds"),
        api_key_previous="the-key-before-q7Tz",
        public_url="https://fleet.example.com:8443",
        heartbeat_interval_s=1,
        unreachable_after_beats=1,
        lost_after_beats=2,
        start_grace_s=0,
        offline_grace_s=0.5,
        claim_overdue_s=0.5,
        brake_min_nodes=1000,
        card_lost_after_beats=1,
        card_back_after_beats=2,
        mps_max=2,
        default_vendor="hygon",
        threads=3,
        max_body_mib=0.5,
        metrics_public=True,
    ) as plane:
        yield Live(plane), folder


def state_of(live: Live, node_id: str) -> str:
    return str(live.operator("GET", f"/api/v1/nodes/{node_id}").body["state"])


def test_files_lie_where_the_settings_say(tuned: tuple[Live, Path]) -> None:
    live, folder = tuned
    assert (folder / "the.secret").stat().st_mode & 0o777 == 0o600
    assert (folder / "the.db").stat().st_size > 0
    assert not list(live.plane.state_dir.glob("*.db")) and not (live.plane.state_dir / "secret.key").exists()
    assert str(folder / "builds") in call(live.url, "GET", "/static/agent").body["detail"]


def test_both_keys_are_taken(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    for key in (live.plane.key, "the-key-before-q7Tz"):
        assert call(live.url, "GET", "/api/v1/agent/preflight", headers={"X-API-Key": key}).status == 200


def test_the_interval_the_doorbell_and_the_public_url_are_told(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    status, answer = SimulatedNode(live.url, live.plane.key, "told").beat()
    assert (status, answer["interval_s"]) == (200, 1)
    doorbell = json.loads(live.plane.settings_file.read_text())["doorbell_listen"]
    assert answer["doorbell"].startswith("https://fleet.example.com:" + doorbell.rpartition(":")[2])
    host, _, port = doorbell.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    assert b"https://fleet.example.com:8443" in call(live.url, "GET", "/install-agent.sh").raw


def test_silent_nodes_are_unreachable_and_lost_when_the_settings_say(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    live.node("silent")
    seen: list[str] = []

    def lost() -> object:
        seen.append(state_of(live, "silent"))
        return seen[-1] == "lost" or seen[-1]

    wait_for("it is lost after two intervals", lost, 10, 0.05)
    assert list(dict.fromkeys(seen)) == ["online", "unreachable", "lost"]


def test_a_node_that_left_is_lost_after_its_grace(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    assert live.node("leaver").beat(leaving=True)[0] == 200
    wait_for("it is lost", lambda: state_of(live, "leaver") == "lost" or "not yet", 40)


def test_a_task_that_is_not_claimed_goes_back(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    node = live.node("lazy")
    live.create("unclaimed", node_id="lazy")

    def overdue() -> object:
        node.beat()
        events = live.operator("GET", "/api/v1/events?kind=claim_overdue&task=unclaimed").body["events"]
        return bool(events) or "no event"

    wait_for("the claim is overdue", overdue, 40)


def test_a_card_is_lost_and_back_after_the_beats_of_the_settings(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    node = live.node("cards", cards=2)
    node.cards = 1

    def health() -> str:
        return str(live.operator("GET", "/api/v1/gpus/GPU-cards-1").body["health"])

    assert node.beat()[0] == 200
    wait_for("one beat without it is enough", lambda: health() == "lost" or health(), 40)
    node.cards = 2
    assert node.beat()[0] == 200
    assert health() == "lost"
    assert node.beat()[0] == 200
    wait_for("two beats with it bring it back", lambda: health() == "ok" or health(), 40)


def test_the_default_vendor_decides_in_a_mixed_fleet(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    for vendor in ("nvidia", "hygon"):
        card = {"uuid": f"card-{vendor}", "vendor": vendor, "index": 0, "memory_total_mib": 1000}
        node = SimulatedNode(live.url, live.plane.key, f"of-{vendor}")
        assert node.beat(gpus=[card])[0] == 200
    assert live.create("which", gpus={"count": 1})["spec"]["gpus"]["vendor"] in (None, "hygon")
    SimulatedNode(live.url, live.plane.key, "none").beat()

    def placed() -> object:
        for vendor in ("nvidia", "hygon"):
            node = SimulatedNode(live.url, live.plane.key, f"again-{vendor}")
            node.beat(gpus=[{"uuid": f"c-{vendor}", "vendor": vendor, "index": 0, "memory_total_mib": 1000}])
        node_id = live.operator("GET", "/api/v1/tasks/which").body["node_id"]
        return (node_id or "").endswith("hygon") or f"on {node_id}"

    wait_for("it is placed on a card of the default vendor", placed, 40)


def test_a_card_takes_as_many_mps_tasks_as_the_setting_says(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    node = live.node("shared", cards=1)
    for number in range(3):
        live.create(f"mps-{number}", node_id="shared", gpus={"count": 1, "vendor": "nvidia", "mps": True})

    def placed() -> object:
        capable = {"uuid": "GPU-shared-0", "mig_capable": False, "mps_capable": True}
        assert node.beat(gpu_capabilities=[capable])[0] == 200
        states = sorted(live.operator("GET", f"/api/v1/tasks/mps-{n}").body["status"] for n in range(3))
        return states == ["pending", "scheduled", "scheduled"] or states

    wait_for("two of three are placed", placed, 40)


def test_threads_body_limit_and_metrics(tuned: tuple[Live, Path]) -> None:
    live, _ = tuned
    names = [path.read_text().strip() for path in Path(f"/proc/{live.plane.pid}/task").glob("*/comm")]
    waitress = [name for name in names if name.startswith("waitress")]
    assert len(waitress) in (0, 3)  # older interpreters do not give their threads' names to the kernel
    big = b'{"name": "' + b"a" * (600 << 10) + b'"}'
    refused = live.operator("POST", "/api/v1/tasks", big)
    assert (refused.code, refused.body["limit_mib"]) == ("body_too_large", 0.5)
    metrics = call(live.url, "GET", "/metrics")
    assert metrics.status == 200
    assert b"heterofleet_nodes" in metrics.raw


def test_connections_beyond_the_limit_wait(tmp_path: Path) -> None:
    with control_plane("contract-limit", connection_limit=10) as plane:
        host, _, port = plane.listen.rpartition(":")
        idle = [socket.create_connection((host, int(port)), timeout=5) for _ in range(20)]
        late = socket.create_connection((host, int(port)), timeout=5)
        late.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        late.settimeout(0.5)
        with pytest.raises(TimeoutError):
            late.recv(1)
        for connection in idle:
            connection.close()
        late.settimeout(20)
        assert late.recv(12) == b"HTTP/1.1 200"
        late.close()


def test_the_brake_follows_its_settings(tmp_path: Path) -> None:
    quick = {
        "heartbeat_interval_s": 1,
        "unreachable_after_beats": 1,
        "lost_after_beats": 3,
        "start_grace_s": 0,
        "brake_fraction": 0.1,
        "brake_min_nodes": 1,
    }
    with control_plane("contract-brake", **quick) as plane:
        live = Live(plane)
        live.node("one")
        live.node("two")
        wait_for(
            "one silent node of two is more than a tenth: the server doubts itself",
            lambda: call(live.url, "GET", "/readyz").body["brake"]["on"] is True or "off",
            10,
        )
        assert state_of(live, "one") != "lost"


def test_old_events_go_and_young_ones_stay(tmp_path: Path) -> None:
    with control_plane("contract-retention", retention_days=2) as plane:
        live = Live(plane)
        live.node("old")
        live.node("young")
        wait_for("both events are there", lambda: len(events(live)) == 2 or events(live), 40)
        plane.stop()
        with sqlite3.connect(plane.state_dir / "heterofleet.db") as database:
            database.execute("UPDATE events SET time = '2020-01-01T00:00:00.000Z' WHERE node_id = 'old'")
        database.close()
        plane.start()
        wait_for("only the young one is left", lambda: events(live) == ["young"] or events(live), 40)


def events(live: Live) -> list[str]:
    found = live.operator("GET", "/api/v1/events?kind=node_registered").body["events"]
    return [event["node_id"] for event in found]


def test_a_trusted_proxy_names_the_address_and_another_does_not(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "outside.example.com"}
    for trusted, wanted in (["127.0.0.0/8"], b"https://outside.example.com"), ([], b"http://127.0.0.1:"):
        with control_plane("contract-proxy", trusted_proxies=trusted) as plane:
            assert wanted in call(plane.url, "GET", "/install-agent.sh", headers=forwarded).raw


# -- what they do: the agent -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path, str]]:
    """What the control plane knows of a real agent with many settings changed: (node, state folder, key)."""
    folder = tmp_path_factory.mktemp("agent")
    with control_plane("contract-agent", heartbeat_interval_s=1) as plane:
        live = Live(plane)
        key_file = folder / "key"
        key_file.write_text(plane.key + "\n")
        key_file.chmod(0o600)
        tool = folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because of the test'; exit 9\n")
        tool.chmod(0o755)
        settings = {
            "server_url": plane.url,
            "api_key_file": str(key_file),
            "node_id": "chosen-id",
            "labels": {"rack": "7"},
            "fabrics": [{"name": "ib-a", "hcas": ["mlx5_0"]}],
            "mgmt_addr": "10.9.8.7",
            "state_dir": str(folder / "state"),
            "docker_host": f"unix://{folder}/no-engine.sock",
            "max_tasks": 5,
            "hardware": {"virtual_cards": 3},
        }
        file = folder / "agent.yaml"
        file.write_text(json.dumps(settings))
        file.chmod(0o600)
        with subprocess.Popen([AGENT, "run", "--config", str(file)], env=clean_environment()) as agent:
            try:

                def known() -> object:
                    answer = live.operator("GET", "/api/v1/nodes/chosen-id")
                    return (answer.status == 200 and bool(answer.body["gpus"])) or answer.raw.decode()

                wait_for("the node is there with its cards", known, 30)
                yield live.operator("GET", "/api/v1/nodes/chosen-id").body, folder, plane.key
            finally:
                agent.send_signal(signal.SIGTERM)
                agent.wait(30)


def test_the_control_plane_sees_the_agents_settings(seen_node: tuple[dict[str, Any], Path, str]) -> None:
    node, folder, _ = seen_node
    assert node["id"] == "chosen-id"
    assert node["labels"] == {"rack": "7"}
    assert [(fabric["name"], fabric["hcas"]) for fabric in node["fabrics"]] == [("ib-a", ["mlx5_0"])]
    assert node["host"]["mgmt_addr"] == "10.9.8.7"
    assert node["slots"]["total"] == 5
    assert [card["vendor"] for card in node["gpus"]] == ["virtual"] * 3
    assert node["docker"]["available"] is False
    assert node["exec_mode"] == "baremetal"
    assert {path.name for path in (folder / "state").iterdir()} >= {"journal.db", "status.json"}


def test_the_key_is_nowhere_but_in_its_file(seen_node: tuple[dict[str, Any], Path, str]) -> None:
    _, folder, key = seen_node
    holders = [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert [path.name for path in holders] == ["key"]
    assert hashlib.sha256(key.encode()).hexdigest() not in os.environ.values()
