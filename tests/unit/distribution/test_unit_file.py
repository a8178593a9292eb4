"""The systemd unit, read as systemd reads it."""

from __future__ import annotations

import pytest

from runtime.server.services import builds


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """``Section.Key`` -> its values in order."""
    text = builds.environment().get_template("heterofleet-agent.service.j2").render()
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
        ("Service.SystemCallFilter", "~listen"),
        ("Service.SystemCallErrorNumber", "EPERM"),
        ("Install.WantedBy", "multi-user.target"),
    ],
)
def test_says(unit: dict[str, list[str]], key: str, value: str) -> None:
    assert unit[key] == [value]


def test_environment_is_path_and_cache_and_no_secret(unit: dict[str, list[str]]) -> None:
    variables = dict(value.split("=", 1) for value in unit["Service.Environment"])
    assert variables.keys() == {"PATH", "PEX_ROOT"}
    assert variables["PEX_ROOT"] == "/opt/heterofleet/cache"
    folders = variables["PATH"].split(":")
    assert "/usr/lib/wsl/lib" in folders
    # systemd expands no $PATH here, and a relative folder would depend on where it starts.
    assert all(folder.startswith("/") and "$" not in folder for folder in folders)
    assert "Service.EnvironmentFile" not in unit
