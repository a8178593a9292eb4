"""The systemd unit, read as systemd reads it."""

from __future__ import annotations

import pytest

from runtime.agent.app import STOP_S
from runtime.artifacts.scripts import environment


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """``Section.Key`` -> its values in order."""
    text = environment().get_template("heterofleet-agent.service.j2").render()
    found: dict[str, list[str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


@pytest.mark.case("FC-018")
def test_an_engine_upgrade_does_not_stop_the_agent(unit: dict[str, list[str]]) -> None:
    """The unit required the engine: an upgrade of Docker stopped the agent, and nothing started it again."""
    wanted = {"docker.service", "network-online.target"}
    assert set(unit["Unit.Wants"][0].split()) == wanted
    assert set(unit["Unit.After"][0].split()) == wanted
    hard = ("Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom", "Upholds")
    assert not [key for key in unit if key.partition(".")[2] in hard]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (
            "Service.ExecStart",
            "/opt/heterofleet/current/heterofleet-agent run --config /etc/heterofleet/agent.yaml",
        ),
        ("Service.Type", "notify"),
        ("Service.WatchdogSec", "60"),
        ("Service.Restart", "always"),
        ("Service.RestartSec", "5"),
        ("Unit.StartLimitIntervalSec", "0"),
        ("Service.KillMode", "mixed"),
        ("Service.TimeoutStopSec", "30"),
        ("Service.OOMScoreAdjust", "-900"),
        ("Service.SystemCallErrorNumber", "EPERM"),
        ("Service.LimitCORE", "0"),
        ("Install.WantedBy", "multi-user.target"),
    ],
)
def test_says(unit: dict[str, list[str]], key: str, value: str) -> None:
    assert unit[key] == [value]


@pytest.mark.case("FC-066")
def test_ends_what_the_agent_started_and_leaves_the_containers(unit: dict[str, list[str]]) -> None:
    """With the default KillMode a restart killed the jobs; here they belong to the engine. ``mixed`` asks the agent,
    and only what is left when it has ended is killed; time for that is more than the agent's own limit."""
    assert unit["Service.KillMode"] == ["mixed"]
    assert int(unit["Service.TimeoutStopSec"][0]) > STOP_S
    assert "Service.SendSIGKILL" not in unit
    assert "Service.Slice" not in unit
    assert "Service.Delegate" not in unit


def test_no_port_can_be_opened(unit: dict[str, list[str]]) -> None:
    """Both lines are deny lists (a later one without ``~`` would turn the first into an allow list)."""
    assert unit["Service.SystemCallFilter"] == ["~io_uring_setup", "~listen"]


@pytest.mark.parametrize(
    "key",
    [
        *("PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateNetwork", "ProtectSystem", "ProtectHome"),
        *("ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups", "ProtectProc", "ProtectHostname"),
        *("ProtectClock", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "TemporaryFileSystem", "BindPaths"),
        *("RootDirectory", "RootImage", "MountFlags", "RuntimeDirectory", "StateDirectory", "DevicePolicy"),
        *("DeviceAllow", "MemoryDenyWriteExecute", "NoNewPrivileges", "User", "DynamicUser", "RestrictNamespaces"),
        *("CapabilityBoundingSet", "MemoryMax", "TasksMax", "SystemCallArchitectures"),
    ],
)
def test_stays_in_the_machines_own_mounts_and_devices(unit: dict[str, list[str]], key: str) -> None:
    """Volumes are pinned by mounts that Docker must see, cards need their device files, vendors' tools start helpers
    of their own kind: what gives the agent a view of its own breaks one of them."""
    assert f"Service.{key}" not in unit


def test_environment_is_path_cache_and_heaps_and_no_secret(unit: dict[str, list[str]]) -> None:
    variables = dict(value.split("=", 1) for value in unit["Service.Environment"])
    assert variables.keys() == {"PATH", "PEX_ROOT", "MALLOC_ARENA_MAX"}
    assert variables["PEX_ROOT"] == "/opt/heterofleet/cache"
    folders = variables["PATH"].split(":")
    assert "/usr/lib/wsl/lib" in folders
    # systemd expands no $PATH here, and a relative folder would depend on where it starts.
    assert all(folder.startswith("/") and "$" not in folder for folder in folders)
    assert "Service.EnvironmentFile" not in unit
