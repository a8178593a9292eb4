"""What of a checkout goes into a build, and when a checkout is dirty: real git, small trees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.artifacts.errors import BuildError
from runtime.artifacts.source import read_source
from tests.integration.distribution.conftest import git

FILES = {
    ".gitignore": "__pycache__/\n*.pyc\n",
    "README.md": "words\n",
    "setup.cfg": "[metadata]\nversion = 1.2.3\n",
    "runtime/__init__.py": "",
    "runtime/agent/main.py": "print(1)\n",
    "runtime/protocol/build.py": "x = 1\n",
    "runtime/server/app.py": "y = 1\n",
    "runtime/artifacts/launcher.sh": "#!/bin/sh\n",
    "runtime/artifacts/agent-requirements.txt": "idna==3.20\n",
}
INSIDE = {"runtime/__init__.py", "runtime/agent/main.py", "runtime/protocol/build.py"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "as it is")
    return root


def put(name: str, text: str = "planted\n") -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return change


def staged(root: Path) -> None:
    put("runtime/agent/main.py")(root)
    git(root, "add", "--all")


def renamed(root: Path) -> None:
    git(root, "mv", "runtime/agent/main.py", "runtime/agent/first.py")


def test_a_clean_tree_is_what_its_commit_says(tree: Path) -> None:
    source = read_source(tree)
    assert (source.changes, set(source.files), source.lock) == ((), INSIDE, "idna==3.20\n")
    assert source.files["runtime/agent/main.py"] == b"print(1)\n"
    assert (source.launcher, source.build.version, source.build.dirty) == (b"#!/bin/sh\n", "1.2.3", False)
    head = subprocess.run(["git", "-C", tree, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert source.build.commit == head[:12]


@pytest.mark.parametrize(
    ("change", "words", "inside"),
    [
        (put("runtime/agent/main.py"), " M runtime/agent/main.py", INSIDE),
        (put("README.md"), " M README.md", INSIDE),
        (put("runtime/agent/new.py"), "?? runtime/agent/new.py", INSIDE | {"runtime/agent/new.py"}),
        (put("runtime/agent/a folder/näme.py"), "?? runtime/agent/a folder/näme.py", None),
        (put("elsewhere/new.txt"), "?? elsewhere/new.txt", INSIDE),
        (staged, "M  runtime/agent/main.py", INSIDE),
        (renamed, "R  runtime/agent/first.py", INSIDE - {"runtime/agent/main.py"} | {"runtime/agent/first.py"}),
        (lambda root: (root / "README.md").unlink(), " D README.md", INSIDE),
        (lambda root: (root / "runtime/agent/main.py").chmod(0o755), " M runtime/agent/main.py", INSIDE),
    ],
    ids=["changed", "elsewhere", "untracked", "odd name", "untracked elsewhere", "staged", "renamed", "gone", "mode"],
)
def test_a_dirty_tree_names_what_differs(
    tree: Path, change: Callable[[Path], None], words: str, inside: set[str] | None
) -> None:
    change(tree)
    source = read_source(tree)
    assert source.changes == (words,)
    assert source.build.dirty
    assert set(source.files) == (inside or INSIDE | {words[3:]})


def test_ignored_files_are_neither_dirt_nor_in_a_build(tree: Path) -> None:
    put("runtime/agent/__pycache__/main.cpython-311.pyc")(tree)
    assert read_source(tree).changes == ()
    put("runtime/agent/new.py")(tree)  # dirty, so the files are read and not the commit
    assert set(read_source(tree).files) == INSIDE | {"runtime/agent/new.py"}


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_what_git_was_told_to_overlook_does_not_come_into_a_build(tree: Path, flag: str) -> None:
    git(tree, "update-index", flag, "runtime/agent/main.py")
    put("runtime/agent/main.py")(tree)
    source = read_source(tree)
    assert source.changes == ()
    assert source.files["runtime/agent/main.py"] == b"print(1)\n"


def test_line_ends_of_a_checkout_are_not_those_of_a_build(tree: Path) -> None:
    git(tree, "config", "core.autocrlf", "true")
    (tree / "runtime/agent/main.py").unlink()
    git(tree, "checkout", "--", "runtime/agent/main.py")
    assert (tree / "runtime/agent/main.py").read_bytes() == b"print(1)\r\n"
    assert read_source(tree).files["runtime/agent/main.py"] == b"print(1)\n"


@pytest.mark.parametrize("committed", [True, False])
def test_a_link_does_not_come_into_a_build(tree: Path, committed: bool) -> None:
    (tree / "runtime/agent/link.py").symlink_to("/etc/passwd")
    if committed:
        git(tree, "add", "--all")
        git(tree, "commit", "--quiet", "--message", "a link")
    with pytest.raises(BuildError, match=r"runtime/agent/link\.py is a link"):
        read_source(tree)


def test_a_tree_inside_another_checkout_is_refused(tree: Path) -> None:
    inner = tree / "unpacked"
    shutil.copytree(tree, inner, ignore=shutil.ignore_patterns(".git", "unpacked"))
    with pytest.raises(BuildError, match=rf"unpacked is no checkout of its own but lies in {tree}"):
        read_source(inner)


def test_a_checkout_without_a_commit_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    with pytest.raises(BuildError, match="git cannot read"):
        read_source(tmp_path)


def test_the_environment_of_a_hook_leads_to_no_other_repository(tree: Path, tmp_path: Path, monkeypatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert read_source(tree).build.version == "1.2.3"


def test_a_tree_without_git_says_dev_unknown(sources: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(sources, plain, ignore=shutil.ignore_patterns(".git"))
    done = subprocess.run(
        [sys.executable, "-m", "runtime.agent.main", "version"],
        cwd=plain,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(plain), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "dev/unknown" in done.stdout
