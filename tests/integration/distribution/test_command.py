"""``heterofleet artifacts`` as a program: what it prints and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.integration.distribution.conftest import ROOT, Served, checkout

HETEROFLEET = str(Path(sys.executable).parent / "heterofleet")


def artifacts(*words: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HETEROFLEET_")}
    return subprocess.run(
        [HETEROFLEET, "artifacts", *words], capture_output=True, text=True, cwd=cwd, env={**clean, **environ}
    )


def test_verify_prints_a_table_and_ends_with_0(builds: Path, served: Served) -> None:
    done = artifacts("verify", "--dist", str(builds), "--server", served.url)
    assert (done.returncode, done.stderr) == (0, "")
    for entry in read_manifest(builds).builds.values():
        assert done.stdout.count(entry.sha256) == done.stdout.count(entry.md5) == 2


def test_verify_says_what_differs_and_ends_with_1(builds: Path, served: Served) -> None:
    (served.folder / "manifest.json").unlink()
    done = artifacts("verify", "--dist", str(builds), "-o", "json", HETEROFLEET_SERVER_URL=served.url)
    assert done.returncode == 1
    rows = json.loads(done.stdout)["files"]
    assert [(row["arch"], row["problem"] is None) for row in rows] == [
        *((arch, True) for arch in ARCHITECTURES),
        *((arch, False) for arch in ARCHITECTURES),
    ]
    assert "no agent builds here" in rows[2]["problem"]


def test_verify_ends_with_4_when_nothing_answers_and_with_1_without_a_folder(builds: Path, tmp_path: Path) -> None:
    nobody = artifacts("verify", "--dist", str(builds), "--server", "http://127.0.0.1:9")
    assert nobody.returncode == 4
    assert "cannot reach http://127.0.0.1:9" in nobody.stderr
    nothing = artifacts("verify", "--dist", str(tmp_path))
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "manifest.json: No such file or directory" in nothing.stderr


def test_build_refuses_a_dirty_tree_with_1_and_an_unknown_architecture_with_2(tmp_path: Path) -> None:
    tree = checkout(tmp_path / "tree")
    (tree / "setup.cfg").write_text((tree / "setup.cfg").read_text() + "# changed\n")
    dirty = artifacts("build", cwd=tree, PYTHONPATH=str(tree))
    assert (dirty.returncode, dirty.stdout) == (1, "")
    assert " M setup.cfg" in dirty.stderr and "--allow-dirty" in dirty.stderr
    assert not (tree / "dist").exists()
    assert artifacts("build", "--arch", "mips", cwd=tree, PYTHONPATH=str(tree)).returncode == 2


def test_an_installed_package_says_that_builds_need_a_checkout(tmp_path: Path) -> None:
    installed(tmp_path)
    done = artifacts("build", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "builds are made from a checkout of the sources" in done.stderr


def test_an_installed_package_builds_the_checkout_it_was_made_from_and_no_other(tmp_path: Path) -> None:
    site = installed(tmp_path / "site")
    tree = checkout(tmp_path / "tree")
    (tree / "setup.cfg").write_text((tree / "setup.cfg").read_text() + "# changed\n")
    same = artifacts("build", cwd=tree / "runtime", PYTHONPATH=str(site))
    assert f"{tree} differs from its commit" in same.stderr  # so it is that tree which would be built
    with (tree / "runtime/artifacts/build.py").open("a") as opened:
        opened.write("# another way\n")
    other = artifacts("build", cwd=tree, PYTHONPATH=str(site))
    assert (same.returncode, other.returncode) == (1, 1)
    assert "(build.py): install this checkout first" in other.stderr


def installed(site: Path) -> Path:
    shutil.copytree(ROOT / "runtime", site / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    return site
