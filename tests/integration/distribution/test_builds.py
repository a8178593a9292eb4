"""Real builds: equal bytes everywhere, the right machine in every native part, and a start that is quick."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runtime.artifacts import wheels
from runtime.artifacts.build import build, check_machines
from runtime.artifacts.errors import BuildError
from runtime.artifacts.places import Folder
from runtime.artifacts.verify import verify
from runtime.artifacts.wheels import PLATFORMS
from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.integration.contract.live import SERVER, run
from tests.integration.distribution.conftest import checkout
from tests.integration.distribution.mirrors import native_file, wait

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


# Another user, who owns nothing of ours and may read it wherever it lies.
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
AS_NOBODY += ["--securebits=+no_setuid_fixup", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


@pytest.fixture
def their_folder() -> Iterator[Path]:
    """Not below pytest's own, whose parents nobody else may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_another_folder_user_time_zone_umask_and_home_give_the_same_bytes(
    sources: Path, builds: Path, their_folder: Path
) -> None:
    theirs = their_folder / "a longer name"
    theirs.mkdir()
    # Their git takes no repository of ours for granted, so they get the commit as a file.
    bundle = theirs / "commit.bundle"
    subprocess.run(["git", "-C", sources, "bundle", "create", "--quiet", bundle, "HEAD"], check=True)
    os.chown(theirs, NOBODY, NOBODY)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(theirs),
        "XDG_CACHE_HOME": str(theirs / "cache"),
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "7",
    }
    clone = [
        *AS_NOBODY,
        "git",
        "-c",
        "advice.detachedHead=false",
        "clone",
        "--quiet",
        str(bundle),
        str(theirs / "tree"),
    ]
    subprocess.run(clone, check=True, umask=0o027, env=environ, cwd="/")
    # The wheels as they were fetched before: fetching is not what is shown here.
    shutil.copytree(wheels.cache_folder() / "wheels", theirs / "cache" / "heterofleet" / "wheels")
    for path in (theirs / "cache", *(theirs / "cache").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    script = (
        "import os, sys; from pathlib import Path; from runtime.artifacts.build import build; print(os.getuid()); "
        "build(Path(sys.argv[1]), Path(sys.argv[2]), ['amd64', 'arm64'], allow_dirty=False, progress=lambda _: None)"
    )
    done = subprocess.run(
        [*AS_NOBODY, sys.executable, "-c", script, str(theirs / "tree"), str(theirs / "out")],
        check=True,
        umask=0o077,
        cwd="/",
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.split() == [str(NOBODY)]
    assert (theirs / "out" / "manifest.json").read_bytes() == (builds / "manifest.json").read_bytes()
    for arch in ARCHITECTURES:
        made = agent_file(theirs / "out", arch)
        assert made.stat().st_uid == NOBODY
        assert made.read_bytes() == agent_file(builds, arch).read_bytes()


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


@dataclass
class Cache:
    """A wheel cache of the test's own, filled from the real one, and what pip would bring."""

    folder: Path
    asked: int = 0
    brings: str = "good"

    def pip(self, into: Path, *_: object, **__: object) -> None:
        self.asked += 1
        for wheel in self.good.glob("*.whl"):
            shutil.copy(wheel, into)
        if self.brings == "altered":
            append(next(into.glob("requests-*.whl")))

    @property
    def good(self) -> Path:
        return self.folder.parents[2] / "good"


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.fixture
def cache(builds: Path, tmp_path: Path, monkeypatch) -> Cache:
    real = next((wheels.cache_folder() / "wheels").glob("*-amd64"))
    made = Cache(tmp_path / "heterofleet" / "wheels" / real.name)
    shutil.copytree(real, made.folder)
    shutil.copytree(real, made.good)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wheels, "_pip_download", made.pip)
    return made


def lock_text() -> str:
    return wheels.LOCK.read_text("utf-8")


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda folder: append(next(folder.glob("requests-*.whl"))), "is not what the lock file pins"),
        (lambda folder: append(next(folder.glob("psutil-*.whl"))), "is not what the lock file pins"),
        (lambda folder: (folder / "evil-1.0-py3-none-any.whl").write_bytes(b"PK"), "is not what the lock file pins"),
        (lambda folder: next(folder.glob("pyyaml-*cp39*.whl")).unlink(), "is not whole"),
        (lambda folder: (folder / wheels.LISTING).unlink(), "is not whole"),
    ],
    ids=["altered", "altered native", "one more", "one less", "no listing"],
)
def test_what_is_not_pinned_in_the_cache_is_fetched_again(
    cache: Cache, capsys: pytest.CaptureFixture[str], plant: Callable[[Path], object], words: str
) -> None:
    before = [(path.name, path.read_bytes()) for path in wheels.wheels_for("amd64", print, lock_text())]
    assert cache.asked == 0
    plant(cache.folder)
    after = [(path.name, path.read_bytes()) for path in wheels.wheels_for("amd64", print, lock_text())]
    assert after == before
    assert cache.asked == len(wheels.PYTHONS)
    assert f"{words}; fetching wheels again" in capsys.readouterr().out
    assert [path.name for path in cache.folder.parent.iterdir()] == [cache.folder.name]


def test_a_wheel_that_stays_wrong_is_refused(cache: Cache) -> None:
    append(next(cache.folder.glob("requests-*.whl")))
    cache.brings = "altered"
    with pytest.raises(BuildError, match=r"requests-.* is not what the lock file pins, also after fetching it again"):
        wheels.wheels_for("amd64", print, lock_text())


def test_a_wheel_that_the_lock_does_not_know_is_refused_by_its_hash(builds: Path, tmp_path: Path, monkeypatch) -> None:
    """The real pip: a release in the index with other bytes than the pinned ones is not taken."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lock = re.sub(r"(idna==\S+ \\\n\s+--hash=sha256:)[0-9a-f]{64}", r"\g<1>" + "0" * 64, lock_text())
    assert lock != lock_text()
    with pytest.raises(BuildError, match=r"pip could not fetch the amd64 wheels[\s\S]*(?i:hash)"):
        wheels.wheels_for("amd64", print, lock)
    assert not list((tmp_path / "heterofleet" / "wheels").iterdir())


def repacked(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """The archive at ``path`` with other contents."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    change(contents)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def named(contents: dict[str, bytes], end: str) -> str:
    return next(name for name in contents if name.endswith(end))


PLANTED: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "a pinned file altered": (lambda c: c.update({named(c, "requests/sessions.py"): b"x"}), "requests/sessions.py"),
    "a native file altered": (lambda c: c.update({named(c, ".abi3.so"): b"x"}), ".abi3.so"),
    "a pinned file less": (lambda c: c.pop(named(c, "idna/core.py")), "idna/core.py"),
    "a file more in a wheel": (lambda c: c.update({named(c, "idna/core.py") + "c": b"x"}), "idna/core.pyc"),
    "a wheel more": (lambda c: c.update({".deps/evil-1.0-py3-none-any.whl/evil.py": b"x"}), "evil.py"),
    "ours altered": (lambda c: c.update({"runtime/agent/main.py": b"x"}), "runtime/agent/main.py"),
    "ours one more": (lambda c: c.update({"runtime/agent/evil.py": b"x"}), "runtime/agent/evil.py"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_was_planted_in_the_cache_of_pex_does_not_come_into_a_build(
    sources: Path, builds: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """pex packs what it prepared before, and somebody may have been there."""
    (tmp_path / "heterofleet").mkdir()
    (tmp_path / "heterofleet" / "wheels").symlink_to(wheels.cache_folder() / "wheels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    change, name = PLANTED[what]
    packed: list[Path] = []

    def pack(_source: object, arch: str, _stage: object, _wheels: object, target: Path) -> None:
        shutil.copy(agent_file(builds, arch), target)
        packed.append(target)
        if len(packed) == 1 or stays:
            repacked(target, change)

    monkeypatch.setattr("runtime.artifacts.build._pack", pack)
    monkeypatch.setattr("runtime.artifacts.build._put_launcher", lambda *_: None)
    stays = False
    again = build(sources, tmp_path / "out", ["amd64"], allow_dirty=False, progress=print)
    assert again.builds["amd64"] == read_manifest(builds).builds["amd64"]
    assert len(packed) == 2
    assert f"{name}); removing it and packing again" in capsys.readouterr().out
    stays = True
    with pytest.raises(BuildError, match=f"{re.escape(name)} in the amd64 build is not what the sources and"):
        build(sources, tmp_path / "out", ["amd64"], allow_dirty=False, progress=print)


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
    monkeypatch.setattr("runtime.artifacts.build.PLATFORMS", {"amd64": PLATFORMS["amd64"], "arm64": PLATFORMS["amd64"]})
    with pytest.raises(BuildError, match="pex could not pack the arm64 build"):
        build(sources, out, ["amd64", "arm64"], allow_dirty=False, progress=print)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def planted_machine(folder: Path) -> None:
    """A native file for amd64 in the arm64 build, whose manifest then says so."""
    manifest = read_manifest(folder)
    entry = manifest.builds["arm64"]
    path = folder / entry.file
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(".deps/planted/native.so", native_file("amd64"))
    content = path.read_bytes()
    sums = {"md5": hashlib.md5(content).hexdigest(), "sha256": hashlib.sha256(content).hexdigest()}
    builds = {**manifest.builds, "arm64": replace(entry, size=len(content), **sums)}
    (folder / "manifest.json").write_text(replace(manifest, builds=builds).text())


def test_every_native_file_is_listed_with_its_machine(builds: Path) -> None:
    done = run(SERVER, "artifacts", "list", "--dist", str(builds), "-o", "json")
    assert done.returncode == 0, done.stderr
    native = json.loads(done.stdout)["native"]
    assert {(part["arch"], part["machine"], part["ok"]) for part in native} == {
        (arch, arch, True) for arch in ARCHITECTURES
    }
    # psutil once, and PyYAML for each of six Pythons.
    assert [sum(part["arch"] == arch for part in native) for arch in ARCHITECTURES] == [7, 7]
    table = run(SERVER, "artifacts", "list", "--dist", str(builds)).stdout
    assert all(part["path"] in table for part in native)


def test_a_planted_native_file_fails_the_listing_verify_and_publish(builds: Path, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    shutil.copytree(builds, dist)
    planted_machine(dist)
    listed = run(SERVER, "artifacts", "list", "--dist", str(dist))
    assert listed.returncode == 1
    line = next(line for line in listed.stdout.splitlines() if "planted" in line)
    assert line.split()[-3:] == ["amd64", "wrong", "machine"]
    rows = verify([Folder(dist)])
    assert [row.arch for row in rows if "native files of another machine" in str(row.problem)] == ["arm64"]
    published = run(SERVER, "artifacts", "publish", str(tmp_path / "tree"), "--from", str(dist))
    assert published.returncode == 1
    assert "native.so is for amd64" in published.stderr


def test_a_planted_native_file_fails_the_build(sources: Path, builds: Path, tmp_path: Path, monkeypatch) -> None:
    """A wheel of the other machine that the lock allows: its hash is right, its place is not."""

    def mixed(arch: str, progress: object, lock: str, *_pythons: object) -> list[Path]:
        found = wheels.wheels_for(arch, print, lock)
        other = wheels.wheels_for("amd64", print, lock)
        psutil = next(path for path in other if path.name.startswith("psutil"))
        bad = tmp_path / next(path.name for path in found if path.name.startswith("psutil"))
        shutil.copy(psutil, bad)
        return [bad if path.name == bad.name else path for path in found]

    monkeypatch.setattr("runtime.artifacts.build.wheels_for", mixed)
    with pytest.raises(
        BuildError, match=r"the arm64 build has native parts of another machine: .*psutil.* is for amd64"
    ):
        build(sources, tmp_path / "out", ["arm64"], allow_dirty=False, progress=print)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A temporary folder as hardened machines mount it."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,nosuid,mode=1777", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.case("FC-059")
def test_nothing_is_executed_from_a_temporary_folder(
    sources: Path, builds: Path, noexec: Path, tmp_path: Path, monkeypatch
) -> None:
    """/tmp was mounted noexec, and programs and their helpers that were unpacked there did not start."""
    monkeypatch.setenv("TMPDIR", str(noexec))
    monkeypatch.setattr(tempfile, "tempdir", None)
    again = build(sources, tmp_path / "out", ["amd64"], allow_dirty=False, progress=print)
    assert again.builds["amd64"] == read_manifest(builds).builds["amd64"]
    done = subprocess.run(
        [agent_file(builds, "amd64"), "version"],
        capture_output=True,
        text=True,
        env={"PATH": SYSTEM_PATH, "HOME": str(tmp_path), "PEX_ROOT": str(tmp_path / "cache"), "TMPDIR": str(noexec)},
    )
    assert done.returncode == 0, done.stderr
    assert again.commit in done.stdout


def test_a_build_that_is_told_to_stop_leaves_nothing_running_and_nothing_half_done(tmp_path: Path) -> None:
    """In place of pex stands a program that waits, as a slow disk would have it wait."""
    note, out = tmp_path / "pid", tmp_path / "out"
    code = (
        "import sys\n"
        "from runtime.artifacts import build, command\n"
        "from runtime.artifacts.children import run\n"
        "wait = ['sh', '-c', f'echo $$ >{sys.argv[1]}; exec sleep 600']\n"
        "build.run = lambda _, what, **more: run(wait, what, **more)\n"
        "command.artifacts(['build', '--allow-dirty', '--arch', 'amd64', '--out', sys.argv[2]])\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", code, note, out], cwd=root) as child:
        wait(lambda: note.exists() and note.read_text().endswith("\n"))
        child.terminate()
        assert child.wait(60) == 143
    wait(lambda: not Path(f"/proc/{int(note.read_text())}").exists())
    assert list(out.iterdir()) == []
