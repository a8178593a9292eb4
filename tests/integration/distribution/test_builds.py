"""Real builds: equal bytes everywhere, the right machine in every native part, and a start that is quick."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from runtime.artifacts import wheels
from runtime.artifacts.build import build, check_machines
from runtime.artifacts.errors import BuildError
from runtime.artifacts.wheels import PLATFORMS
from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.integration.distribution.conftest import checkout

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def agent_file(builds: Path, arch: str) -> Path:
    return builds / read_manifest(builds).builds[arch].file


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_manifest_is_what_lies_beside_it(builds: Path) -> None:
    document = json.loads((builds / "manifest.json").read_text())
    assert list(document) == ["version", "commit", "built_at", "dirty", "protocol", "builds"]
    assert (document["built_at"], document["dirty"]) == ("2026-01-02T03:04:05Z", False)
    assert {entry["file"] for entry in document["builds"].values()} | {"manifest.json"} == names(builds)
    for entry in document["builds"].values():
        content = (builds / entry["file"]).read_bytes()
        assert entry["size"] == len(content)
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
        assert entry["md5"] == hashlib.md5(content).hexdigest()


def test_another_folder_time_zone_umask_and_home_give_the_same_bytes(
    sources: Path, builds: Path, tmp_path: Path
) -> None:
    other = tmp_path / "a longer name" / "other"
    subprocess.run(["git", "clone", "--quiet", str(sources), str(other)], check=True, umask=0o027)
    script = (
        "import sys; from pathlib import Path; from runtime.artifacts.build import build; "
        "build(Path(sys.argv[1]), Path(sys.argv[2]), ['amd64', 'arm64'], allow_dirty=False, progress=print)"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(other), str(tmp_path / "out")],
        check=True,
        umask=0o077,
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(wheels.cache_folder().parent),
            "TZ": "Asia/Kathmandu",
            "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "7",
        },
    )
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (builds / "manifest.json").read_bytes()
    for arch in ARCHITECTURES:
        assert agent_file(tmp_path / "out", arch).read_bytes() == agent_file(builds, arch).read_bytes()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_native_part_is_for_this_machine(builds: Path, arch: str) -> None:
    parts = check_machines(arch, agent_file(builds, arch))
    assert {part.machine for part in parts} == {arch}
    names = " ".join(part.path for part in parts)
    for tag in ("cp39", "cp310", "cp311", "cp312", "cp313", "cp314"):
        assert f"pyyaml-6.0.3-{tag}-{tag}-" in names
    assert "psutil" in names


def test_only_agent_and_protocol_are_inside(builds: Path) -> None:
    with zipfile.ZipFile(agent_file(builds, "amd64")) as opened:
        ours = {name.split("/")[1] for name in opened.namelist() if name.startswith("runtime/") and name != "runtime/"}
        stamp = json.loads(opened.read("runtime/_build.json"))
    assert ours == {"__init__.py", "_build.json", "agent", "protocol"}
    manifest = read_manifest(builds)
    assert stamp == {
        "version": manifest.version,
        "commit": manifest.commit,
        "built_at": manifest.built_at,
        "dirty": False,
    }


def test_starts_and_says_its_version_cold_and_warm(builds: Path, tmp_path: Path) -> None:
    manifest = read_manifest(builds)
    for _ in ("cold", "warm"):
        done = subprocess.run(
            [agent_file(builds, "amd64"), "version"],
            capture_output=True,
            text=True,
            env={"PATH": SYSTEM_PATH, "HOME": str(tmp_path), "PEX_ROOT": str(tmp_path / "cache")},
        )
        assert done.returncode == 0, done.stderr
        assert f"{manifest.version}/{manifest.commit}" in done.stdout
    assert (tmp_path / "cache" / "venvs").is_dir()


def test_says_which_python_is_wanted_where_there_is_none(builds: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # a Python that is too old for the question
    old.chmod(0o755)
    (tmp_path / "readlink").symlink_to("/usr/bin/readlink")
    done = subprocess.run(
        ["/bin/sh", agent_file(builds, "amd64"), "version"], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "no Python 3.9 to 3.14" in done.stderr


def test_a_second_build_needs_no_network(sources: Path, builds: Path, tmp_path: Path, monkeypatch) -> None:
    def no_pip(*_: object, **__: object) -> None:
        raise AssertionError("pip was asked")

    monkeypatch.setattr(wheels, "_pip_download", no_pip)
    again = build(sources, tmp_path, ["amd64"], allow_dirty=False, progress=print)
    assert again.builds["amd64"] == read_manifest(builds).builds["amd64"]


def test_a_wheel_that_is_not_the_pinned_one_is_refused(builds: Path, tmp_path: Path, monkeypatch) -> None:
    cached = next((wheels.cache_folder() / "wheels").glob("*-amd64"))
    shutil.copytree(cached, tmp_path / "heterofleet" / "wheels" / cached.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planted = next((tmp_path / "heterofleet" / "wheels" / cached.name).glob("requests-*.whl"))
    planted.write_bytes(planted.read_bytes() + b"x")
    with pytest.raises(BuildError, match=r"requests-.* is not what agent-requirements\.txt pins"):
        wheels.wheels_for("amd64", print)


def test_a_dirty_tree_is_refused_and_marked_when_allowed(tmp_path: Path) -> None:
    tree = checkout(tmp_path / "tree")
    (tree / "runtime" / "agent" / "planted.py").write_text("x = 1\n")
    with pytest.raises(BuildError, match=r"runtime/agent/planted\.py[\s\S]*--allow-dirty"):
        build(tree, tmp_path / "out", ["amd64"], allow_dirty=False, progress=print)
    assert not (tmp_path / "out").exists()
    manifest = build(tree, tmp_path / "out", ["amd64"], allow_dirty=True, progress=print)
    assert manifest.dirty
    assert "-dirty-" in manifest.release("amd64")
    with zipfile.ZipFile(tmp_path / "out" / manifest.builds["amd64"].file) as opened:
        assert "runtime/agent/planted.py" in opened.namelist()
    assert names(tmp_path / "out") == {manifest.builds["amd64"].file, "manifest.json"}


def test_without_git_or_a_commit_it_says_so(tmp_path: Path, monkeypatch) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    with pytest.raises(BuildError, match="git cannot read"):
        build(bare, tmp_path / "out", ["amd64"], allow_dirty=True, progress=print)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildError, match="git is not installed"):
        build(bare, tmp_path / "out", ["amd64"], allow_dirty=True, progress=print)
    assert not (tmp_path / "out").exists()


def test_a_build_that_fails_leaves_the_one_before(sources: Path, builds: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    shutil.copytree(builds, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    # The second architecture fails when the first is done.
    monkeypatch.setattr("runtime.artifacts.build.PYTHONS", ("3.12", "3.13"))
    monkeypatch.setattr("runtime.artifacts.build.PLATFORMS", {"amd64": PLATFORMS["amd64"], "arm64": PLATFORMS["amd64"]})
    with pytest.raises(BuildError, match="pex could not pack the arm64 build"):
        build(sources, out, ["amd64", "arm64"], allow_dirty=False, progress=print)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
