"""Builds are staged once, in an order that no reader can be hurt by, and a place that differs stops the run."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
from pathlib import Path
from typing import Any

from runtime.protocol.manifest import ARCHITECTURES, FILE_NAME, read_manifest
from tests.e2e.roles.ansible import Played
from tests.e2e.roles.distribution.three_places import Places, lines, shown
from tests.integration.contract.live import call
from tests.integration.distribution.mirrors import fake_builds, flip
from tests.lab import Lab

SCRIPT = "deploy-agent-all-in-one.sh"


def listed(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Path below ``folder`` -> inode, mode and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state = path.stat()
            name = str(path.relative_to(folder))
            found[name] = (state.st_ino, stat.S_IMODE(state.st_mode), path.read_bytes())
    return found


def items(played: Played, steps: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the loops of these tasks changed."""
    results = [one for step in steps for one in played.results(step, status="ok")]
    return [item for one in results for item in one["said"]["results"] if item["changed"]]


def test_a_preview_says_what_comes_then_it_comes_then_nothing_changes(places: Places, tmp_path: Path) -> None:
    places.have(fake_builds(tmp_path / "one", "one"))
    places.empty()
    names = [entry.file for entry in read_manifest(places.dist).builds.values()]

    preview = places.stage("--check", "--diff")
    assert not places.builds.exists() and not places.tree.exists()
    assert "Found before anything is staged" in shown(preview)

    real = places.stage()
    there = listed(places.builds)
    assert set(there) == {*names, FILE_NAME}
    assert {mode for _, mode, _ in there.values()} == {0o644}
    tree = listed(places.tree)
    assert set(tree) == {SCRIPT, *(f"static/agent/{name}" for name in there)}
    assert {mode for _, mode, _ in tree.values()} == {0o444}
    for name, (_, _, content) in there.items():
        assert content == (places.dist / name).read_bytes() == tree[f"static/agent/{name}"][2]
    # The preview named every file that came.
    steps = ("Stage the files", "Stage the manifest")
    done = [{item["distribution__item"]["path"] for item in items(one, steps)} for one in (preview, real)]
    assert done[0] == done[1] == {*map(str, places.builds.iterdir())} | {str(places.tree / name) for name in tree}
    assert len(lines(shown(real), "ok")) == 3 * len(ARCHITECTURES) + 1
    assert not lines(shown(real), "WRONG")

    again = places.stage()
    assert again.changed == {}
    assert (listed(places.builds), listed(places.tree)) == (there, tree)

    # Same name, same size: by its checksum.
    for folder, name in ((places.builds, names[0]), (places.mirrored, names[1])):
        flip(folder / name)
        folder.joinpath(name).chmod(there[name][1] if folder == places.builds else 0o444)
    places.stage()
    made = (listed(places.builds), listed(places.tree))
    assert [{name: found[1:] for name, found in one.items()} for one in made] == [
        {name: found[1:] for name, found in one.items()} for one in (there, tree)
    ]


def test_whoever_reads_meanwhile_finds_the_old_builds_or_the_new(places: Places, tmp_path: Path) -> None:
    """A file without its manifest's sum, a manifest whose file is not there, an answer that is not whole: never."""
    first, second = (fake_builds(tmp_path / mark, mark) for mark in ("before", "after"))
    places.hand_out(first)
    older = "heterofleet-agent-amd64-01234567"
    for folder in (places.builds, places.mirrored):
        (folder / older).write_bytes(b"of earlier times")
        (folder / "notes.txt").write_bytes(b"somebody else's")
    stop = threading.Event()
    seen: dict[str, set[str]] = {"folder": set(), "mirror": set(), "server": set()}
    faults: list[str] = []
    known = {entry.sha256 for folder in (first, second) for entry in read_manifest(folder).builds.values()}

    def read_folders() -> None:
        for name, folder in (("folder", places.builds), ("mirror", places.mirrored)):
            manifest = read_manifest(folder)
            for entry in manifest.builds.values():
                content = (folder / entry.file).read_bytes()
                if hashlib.sha256(content).hexdigest() != entry.sha256:
                    faults.append(f"{name}: {entry.file} is torn")
                seen[name].add(entry.sha256)

    def read_server() -> None:
        for arch in ARCHITECTURES:
            answer = call(places.plane.url, "GET", f"/static/agent?arch={arch}")
            sha256 = hashlib.sha256(answer.raw).hexdigest()
            if answer.status != 200 or sha256 not in known or answer.headers["x-checksum-sha256"] != sha256:
                faults.append(f"server: {answer.status} {sha256}")
            seen["server"].add(sha256)

    def watch(read: object) -> None:
        assert callable(read)
        while not stop.wait(0.01):
            try:
                read()
            except Exception as error:
                faults.append(repr(error))
                return

    threads = [threading.Thread(target=watch, args=(read,)) for read in (read_folders, read_server)]
    for thread in threads:
        thread.start()
    places.have(second)
    places.stage()
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert {name: found == known for name, found in seen.items()} == dict.fromkeys(seen, True)
    # The builds of before are kept for who has just read their manifest; older ones go, and nothing else does.
    kept = {entry.file for folder in (first, second) for entry in read_manifest(folder).builds.values()}
    for folder in (places.builds, places.mirrored):
        assert set(listed(folder)) == {*kept, FILE_NAME, "notes.txt"}


def test_a_mirror_that_differs_stops_the_run_before_any_node(places: Places, lab: Lab, tmp_path: Path) -> None:
    places.hand_out(fake_builds(tmp_path / "one", "one"))
    for entry in read_manifest(places.dist).builds.values():
        flip(places.mirrored / entry.file)
    fleet = places.fleet(lab.nodes[:2], staged=False)
    stage = {"name": "stage", "ansible.builtin.import_role": {"name": "distribution"}}
    touch = {"name": "touch a node", "ansible.builtin.command": {"argv": ["true"]}}
    plays = [
        {"name": name, "hosts": "nodes", "gather_facts": False, "tasks": tasks}
        for name, tasks in (("first", [stage, touch]), ("then", [touch]))
    ]
    fleet.folder.mkdir(parents=True, exist_ok=True)
    book = fleet.folder / "stops.yml"
    book.write_text(json.dumps(plays))
    played = fleet.play(book, check=False)
    assert played.rc != 0
    assert played.results("touch a node") == []
    assert "no node was touched" in "".join(played.failures.values())
    wrong = lines(shown(played), "WRONG")
    assert [(places.mirror in line, f" {arch} " in line) for line, arch in zip(wrong, ARCHITECTURES, strict=True)] == [
        (True, True)
    ] * 2
    assert "the file is not what the manifest beside it says" in " ".join(shown(played).split())


def test_builds_that_cannot_be_trusted_go_nowhere(places: Places, tmp_path: Path) -> None:
    places.have(fake_builds(tmp_path / "untrusted", "untrusted"))
    there = (listed(places.builds), listed(places.tree))
    manifest = read_manifest(places.dist)
    flip(places.dist / manifest.builds["arm64"].file)
    torn = places.stage(check=False, fleet_allow_dirty=True)
    assert torn.rc != 0
    assert lines(torn.failures["localhost"], "arm64", "WRONG") and "nothing was changed" in torn.failures["localhost"]

    places.have(fake_builds(tmp_path / "dirty", "dirty", dirty=True))
    dirty = places.stage(check=False)
    assert dirty.rc != 0
    assert "-dirty" in dirty.failures["localhost"] and "fleet_allow_dirty" in dirty.failures["localhost"]
    assert (listed(places.builds), listed(places.tree)) == there
