"""The control plane's own file: what is in it, the same bytes again, and nothing that is not pinned."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile
from pathlib import Path

from click.testing import CliRunner

from runtime.artifacts import packed
from runtime.artifacts.build import build
from runtime.artifacts.command import artifacts
from runtime.artifacts.recipe import SERVER
from runtime.artifacts.source import read_source
from runtime.artifacts.wheels import locked_names, wheels_for
from runtime.protocol.manifest import Manifest

RECIPE = dataclasses.replace(SERVER, pythons=("3.11",))


def made(tree: Path, out: Path) -> tuple[Manifest, Path]:
    manifest = build(tree, out, ("amd64",), allow_dirty=False, progress=print, recipe=RECIPE)
    return manifest, out / manifest.builds["amd64"].file


def test_the_server_s_file_is_whole_and_the_same_in_another_folder(sources: Path, tmp_path: Path) -> None:
    manifest, file = made(sources, tmp_path / "one")
    assert file.name == f"heterofleet-server-amd64-{manifest.builds['amd64'].sha256[:8]}"
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        stamp = json.loads(archive.read("runtime/_build.json"))
    assert (stamp["version"], stamp["commit"]) == (manifest.version, manifest.commit)
    assert {path.name for path in (sources / "templates").iterdir()} <= {
        Path(name).name for name in names if name.startswith("templates/")
    }
    migrations = "runtime/server/store/migrations/versions/"
    assert {path.name for path in (sources / migrations).glob("*.py")} <= {
        Path(name).name for name in names if name.startswith(migrations)
    }
    assert not [name for name in names if name.startswith(("runtime/agent/", "runtime/fleet/"))]

    other = tmp_path / "elsewhere"
    shutil.copytree(sources, other)
    assert made(other, tmp_path / "two")[0].builds == manifest.builds


def test_a_wheel_that_is_not_the_pinned_one_is_seen(tmp_path: Path, sources: Path) -> None:
    source = read_source(sources, RECIPE)
    wheels = wheels_for("amd64", print, source.lock, RECIPE.pythons)
    assert len(wheels) == len(locked_names(source.lock))
    file = tmp_path / "file"
    with zipfile.ZipFile(file, "w") as archive:
        for wheel in wheels:
            archive.write(wheel, f"{packed.DEPS}{wheel.name}")
    assert packed.unpinned(file, wheels, {}, whole=True) is None
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{packed.DEPS}other-1-py3-none-any.whl", b"what nobody has pinned")
    assert packed.unpinned(file, wheels, {}, whole=True) == f"{packed.DEPS}other-1-py3-none-any.whl"
    assert packed.unpinned(file, wheels[1:], {}, whole=True) == f"{packed.DEPS}{wheels[0].name}"


def test_pythons_are_chosen_for_a_server_only() -> None:
    refused = CliRunner().invoke(artifacts, ["build", "--python", "3.11"])
    assert (refused.exit_code, "--server" in refused.output) == (2, True)
