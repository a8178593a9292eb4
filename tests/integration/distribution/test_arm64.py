"""The arm64 build on an (emulated) arm64 machine: it starts, says its version, and loads its native parts."""

from __future__ import annotations

import json
from pathlib import Path

from runtime.protocol.manifest import read_manifest
from tests.lab import arm64

PARTS = """
import json, platform, psutil, yaml
print(json.dumps([platform.machine(), yaml.__with_libyaml__, psutil.cpu_count() > 0, yaml.safe_load("a: [1]")]))
"""


def test_it_starts_says_its_version_and_loads_its_native_parts(builds: Path, tmp_path: Path) -> None:
    manifest = read_manifest(builds)
    python = arm64.python()
    environ = {"HOME": str(tmp_path), "PEX_ROOT": str(tmp_path / "pex"), "LC_ALL": "C.UTF-8"}
    agent = builds / manifest.builds["arm64"].file
    done = arm64.start(python, agent, "version", env=environ, timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"{manifest.version}/{manifest.commit}" in done.stdout
    done = arm64.start(python, agent, "-c", PARTS, env={**environ, "PEX_INTERPRETER": "1"}, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["aarch64", True, True, {"a": [1]}]


def test_the_amd64_build_does_not_start_there(builds: Path, tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    agent = builds / read_manifest(builds).builds["amd64"].file
    environ = {"HOME": str(tmp_path), "PEX_ROOT": str(tmp_path / "pex"), "LC_ALL": "C.UTF-8"}
    done = arm64.start(arm64.python(), agent, "version", env=environ, timeout=240)
    assert done.returncode != 0
    assert "aarch64" in done.stderr
