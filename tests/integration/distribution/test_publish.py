"""``artifacts publish``: the tree is whole for its readers at every moment, and equal builds change nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime.artifacts import folders
from runtime.artifacts import publish as publishing
from runtime.artifacts.command import artifacts
from runtime.artifacts.errors import BuildError
from runtime.artifacts.publish import ALL_IN_ONE, publish
from runtime.artifacts.scripts import script
from runtime.protocol.manifest import read_manifest
from tests.integration.bad_input.places import small_disk
from tests.integration.contract.live import SERVER, run
from tests.integration.distribution.mirrors import fake_builds, flip, whole


def put(builds: Path, tree: Path, **options: str) -> publishing.Published:
    return publish(builds, tree, progress=print, **options)  # type: ignore[arg-type]


def state(tree: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything below ``tree``: inode, mode, time of change and content."""
    found = {}
    for path in sorted(tree.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(tree))] = (about.st_ino, about.st_mode, about.st_mtime_ns, content)
    return found


def test_the_tree_is_what_the_contract_says(builds: Path, tmp_path: Path) -> None:
    tree = tmp_path / "deep" / "tree"
    before = os.umask(0o077)
    try:
        put(builds, tree, server_url="http://fleet.example:3333", mirror_url="https://mirror.example")
    finally:
        os.umask(before)
    named = {entry.file for entry in read_manifest(builds).builds.values()}
    wanted = {"static", "static/agent", "static/agent/manifest.json", ALL_IN_ONE}
    assert {str(path.relative_to(tree)) for path in tree.rglob("*")} == wanted | {f"static/agent/{n}" for n in named}
    for name in (*named, "manifest.json"):
        assert (tree / "static/agent" / name).read_bytes() == (builds / name).read_bytes()
    text = (tree / ALL_IN_ONE).read_text()
    assert text == script(ALL_IN_ONE, "http://fleet.example:3333", "https://mirror.example")
    modes = {path.is_dir(): set() for path in tree.rglob("*")}
    for path in (tree, *tree.rglob("*")):
        modes[path.is_dir()].add(oct(path.stat().st_mode & 0o7777))
    assert modes == {True: {"0o755"}, False: {"0o444"}}


def test_publishing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    builds, tree = fake_builds(tmp_path / "builds", "one"), tmp_path / "tree"
    assert put(builds, tree).changed
    before = state(tree)
    again = put(builds, tree)
    assert not again.changed
    assert {change.action for change in again.changes} == {"keep"}
    assert state(tree) == before


def test_the_builds_before_stay_for_their_readers_and_older_ones_go(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    manifests = []
    for mark in ("one", "two", "three"):
        put(fake_builds(tmp_path / mark, mark), tree)
        manifests.append(read_manifest(tree / "static/agent"))
    names = [{entry.file for entry in manifest.builds.values()} for manifest in manifests]
    assert {path.name for path in (tree / "static/agent").iterdir()} == names[1] | names[2] | {"manifest.json"}
    put(tmp_path / "three", tree)
    assert names[1] <= {path.name for path in (tree / "static/agent").iterdir()}


def test_other_files_of_a_web_server_stay(tmp_path: Path) -> None:
    tree = tmp_path / "www"
    (tree / "static/agent").mkdir(parents=True)
    others = [tree / "index.html", tree / "static/site.css", tree / "static/agent/notes.txt"]
    for path in others:
        path.write_text("theirs")
    for mark in ("one", "two", "three"):
        put(fake_builds(tmp_path / mark, mark), tree)
    assert [path.read_text() for path in others] == ["theirs"] * 3


class Steps:
    """Calls ``at`` before each renaming and each sync of the disk, with the number of the step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: Callable[[int], None]) -> None:
        self.count = 0
        replace, sync = Path.replace, os.fsync

        def counted() -> None:
            self.count += 1
            at(self.count)

        def replacing(path: Path, target: Path) -> Path:
            counted()
            return replace(path, target)

        def syncing(handle: int) -> None:
            counted()
            sync(handle)

        monkeypatch.setattr(Path, "replace", replacing)
        monkeypatch.setattr(os, "fsync", syncing)


def test_at_every_moment_a_reader_finds_a_whole_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    put(fake_builds(tmp_path / "one", "one"), tree)
    old = read_manifest(tree / "static/agent")
    steps = Steps(monkeypatch, lambda _: check())

    def check() -> None:
        assert whole(tree)
        assert all((tree / "static/agent" / entry.file).exists() for entry in old.builds.values())

    put(fake_builds(tmp_path / "two", "two"), tree)
    assert steps.count > 8
    check()
    assert read_manifest(tree / "static/agent") == read_manifest(tmp_path / "two")


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_cut_off_at_any_step_the_tree_is_whole_and_the_next_try_finishes(
    tmp_path: Path, fault: BaseException | type[BaseException]
) -> None:
    one, two = fake_builds(tmp_path / "one", "one"), fake_builds(tmp_path / "two", "two")
    last, stopped = 0, True
    while stopped:
        last += 1
        tree = tmp_path / f"tree-{last}"
        put(one, tree)
        with pytest.MonkeyPatch.context() as patched:

            def stop(step: int, last: int = last) -> None:
                if step == last:
                    raise fault

            Steps(patched, stop)
            stopped = False
            try:
                put(two, tree)
            except (KeyboardInterrupt, OSError):
                stopped = True
        assert whole(tree)
        assert not list(tree.rglob(f"{folders.SCRATCH}*"))
        put(two, tree)
        assert whole(tree)
        assert read_manifest(tree / "static/agent") == read_manifest(two)
    assert last > 8


def test_what_a_killed_publish_left_goes_with_the_next(tmp_path: Path) -> None:
    one, two, tree = fake_builds(tmp_path / "one", "one"), fake_builds(tmp_path / "two", "two"), tmp_path / "tree"
    put(one, tree)
    code = (
        "import os, sys, time; from pathlib import Path; from runtime.artifacts.publish import publish\n"
        "def hang(*_): print('here', flush=True); time.sleep(600)\n"
        "os.fsync = hang\n"
        "publish(Path(sys.argv[1]), Path(sys.argv[2]), progress=lambda _: None)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", code, two, tree], stdout=subprocess.PIPE, cwd=root) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)
    assert list(tree.rglob(f"{folders.SCRATCH}*"))
    assert whole(tree)
    put(two, tree)
    assert not list(tree.rglob(f"{folders.SCRATCH}*"))
    assert read_manifest(tree / "static/agent") == read_manifest(two)


def test_two_at_once_take_turns(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    marks = ("one", "two", "three")
    runs = [
        subprocess.Popen(
            [SERVER, "artifacts", "publish", tree, "--from", fake_builds(tmp_path / mark, mark), "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for mark in marks
    ]
    results = [(*one.communicate(timeout=120), one.returncode) for one in runs]
    assert [code for _, _, code in results] == [0, 0, 0], results
    assert whole(tree)
    assert json.loads(results[0][0])["changed"] is True


def test_a_full_disk_is_said_and_leaves_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = fake_builds(tmp_path / "builds", "one")
    with small_disk(tmp_path / "small", "64k") as disk:
        done = run(SERVER, "artifacts", "publish", str(disk / "tree"), "--from", str(builds))
        assert (done.returncode, done.stdout) == (1, "")
        assert "MB free and" in done.stderr
        assert "nothing was changed" in done.stderr
        # The disk fills up while it is written.
        monkeypatch.setattr(folders, "need_space", lambda *_: None)
        with pytest.raises(OSError, match="No space left on device") as raised:
            put(builds, disk / "tree")
        assert "No space left on device" in folders.words(raised.value)
        assert not [path for path in disk.rglob("*") if path.is_file()]


def test_a_dry_run_says_all_and_makes_nothing(tmp_path: Path) -> None:
    builds, tree = fake_builds(tmp_path / "builds", "one"), tmp_path / "tree"
    would = run(SERVER, "artifacts", "publish", str(tree), "--from", str(builds), "--dry-run", "-o", "json")
    assert would.returncode == 0, would.stderr
    document = json.loads(would.stdout)
    assert (document["dry_run"], document["changed"]) == (True, True)
    assert {file["action"] for file in document["files"]} == {"write"}
    assert not tree.exists()
    done = json.loads(run(SERVER, "artifacts", "publish", str(tree), "--from", str(builds), "-o", "json").stdout)
    assert done["files"] == document["files"]
    assert done["manifest"] == json.loads((builds / "manifest.json").read_text())
    before = state(tree)
    assert (
        json.loads(
            run(SERVER, "artifacts", "publish", str(tree), "--from", str(builds), "--dry-run", "-o", "json").stdout
        )["changed"]
        is False
    )
    assert state(tree) == before


def test_a_missing_architecture_is_warned_of(tmp_path: Path) -> None:
    builds = fake_builds(tmp_path / "builds", "one", ("amd64",))
    done = run(SERVER, "artifacts", "publish", str(tmp_path / "tree"), "--from", str(builds))
    assert done.returncode == 0
    assert "has no build for arm64" in done.stderr


def altered(builds: Path) -> None:
    flip(builds / read_manifest(builds).builds["arm64"].file)


def swapped(builds: Path) -> None:
    document = json.loads((builds / "manifest.json").read_text())
    document["builds"]["amd64"] = document["builds"]["arm64"]
    (builds / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (altered, "is not what manifest.json beside it says"),
        (swapped, "is no build for amd64: .*is for arm64"),
        (lambda folder: (folder / "manifest.json").unlink(), "make builds with `heterofleet artifacts build`"),
        (lambda folder: (folder / "manifest.json").write_text("<html>"), "not JSON"),
        (lambda folder: (folder / read_manifest(folder).builds["amd64"].file).unlink(), "No such file"),
    ],
    ids=["planted byte", "another machine", "no manifest", "a page", "a file less"],
)
def test_wrong_builds_are_not_published(tmp_path: Path, plant: Callable[[Path], None], words: str) -> None:
    wrong, tree = fake_builds(tmp_path / "wrong", "wrong"), tmp_path / "tree"
    put(fake_builds(tmp_path / "before", "before"), tree)
    before = state(tree)
    plant(wrong)
    with pytest.raises((BuildError, OSError), match=words):
        put(wrong, tree)
    assert state(tree) == before


def test_an_altered_tree_is_made_right(tmp_path: Path) -> None:
    builds, tree = fake_builds(tmp_path / "builds", "one"), tmp_path / "tree"
    put(builds, tree)
    folder = tree / "static/agent"
    amd64, arm64 = (folder / read_manifest(builds).builds[arch].file for arch in ("amd64", "arm64"))
    trap = tmp_path / "trap"
    trap.write_text("theirs")
    flip(amd64)
    arm64.unlink()
    arm64.symlink_to(trap)
    (tree / ALL_IN_ONE).chmod(0o777)
    changes = {change.path: change.action for change in put(builds, tree).changes}
    assert [changes[f"static/agent/{path.name}"] for path in (amd64, arm64)] == ["write", "write"]
    assert changes[ALL_IN_ONE] == "write"
    assert whole(tree)
    assert trap.read_text() == "theirs"
    assert not arm64.is_symlink()


@pytest.mark.parametrize("name", ["static", "static/agent"])
def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    builds, tree, elsewhere = fake_builds(tmp_path / "builds", "one"), tmp_path / "tree", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tree / name).parent.mkdir(parents=True)
    (tree / name).symlink_to(elsewhere)
    with pytest.raises(BuildError, match="is a link or a file, not a folder"):
        put(builds, tree)
    assert not list(elsewhere.iterdir())


def test_the_trees_own_folder_is_no_source(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    put(fake_builds(tmp_path / "builds", "one"), tree)
    with pytest.raises(BuildError, match="publish from another one"):
        put(tree / "static/agent", tree)


@pytest.mark.parametrize("url", ["fleet.example", "http://user:secret@host", "http://a/b", "http://a;b", "ftp://a"])
@pytest.mark.parametrize("option", ["--server", "--mirror"])
def test_an_address_that_no_script_may_carry_is_usage(tmp_path: Path, option: str, url: str) -> None:
    builds = fake_builds(tmp_path / "builds", "one")
    words = ["publish", str(tmp_path / "tree"), "--from", str(builds), option, url]
    done = CliRunner().invoke(artifacts, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "secret" not in done.stderr
    assert not (tmp_path / "tree").exists()
