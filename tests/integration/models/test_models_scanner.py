"""The scan for models with real children, real mounts, and a tree that is large."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.loop import Loop
from runtime.agent.models import scanner as scanning
from runtime.agent.models.memory import Memory
from runtime.agent.models.scanner import ModelScanner, ModelsSnapshot
from runtime.agent.models.walk import Walk
from tests import model_files as files
from tests.integration.models.silent_mount import silent_mount
from tests.integration.waiting import until
from tests.lab.process import run

FILES, FOLDERS = 200_000, 2_000


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(files.safetensors())


def paths(snapshot: ModelsSnapshot) -> set[str | None]:
    assert snapshot.models is not None
    return {model.path for model in snapshot.models}


def children_of(name: str) -> list[int]:
    """Processes whose command line has this text."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if name.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return [pid for pid in found if pid != os.getpid()]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """200,000 files in 2,000 folders: a model, loops and what else lies about, in each. In memory, since a disk takes
    half a minute to make them."""
    root = tmp_path_factory.mktemp("huge")
    run(["mount", "-t", "tmpfs", "-o", "size=256m,nr_inodes=400k", "huge", root])
    try:
        model, rest = files.safetensors(), FILES // FOLDERS - 4
        (root / "filler").touch()
        for number in range(FOLDERS):
            folder = root / f"org-{number % 20}" / f"model-{number}"
            folder.mkdir(parents=True)
            (folder / "config.json").write_bytes(b"{}")
            (folder / "model.safetensors").write_bytes(model)
            (folder / "up").symlink_to("../..")
            (folder / "self").symlink_to(".")
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            for extra in range(rest):
                os.link(root / "filler", f"part-{extra:03}.txt", dst_dir_fd=handle)
            os.close(handle)
            os.utime(folder, (1e9, 1e9))
        for path in (root, *root.iterdir()):
            os.utime(path, (1e9, 1e9))
        yield root
    finally:
        run(["umount", root])


@pytest.mark.case("FC-038")
def test_200_000_files_in_one_budget_and_then_only_what_changed(
    huge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[dict[str, int]] = []
    ask = scanning.ask

    def noting(*words: object, **more: object) -> list[dict[str, object]]:
        answers = ask(*words, **more)  # type: ignore[arg-type]
        looked.extend(answer["looked"] for answer in answers if "looked" in answer)  # not of what is not there
        return answers

    monkeypatch.setattr(scanning, "ask", noting)
    scanner = ModelScanner(ToolRunner(), [str(huge)], tmp_path)
    beats: list[float] = []
    heartbeat = Loop("beat", 0.2, lambda: beats.append(time.monotonic()), jitter=0.0)
    heartbeat.start()
    try:
        scanner.scan()
        first = scanner.snapshot()
    finally:
        heartbeat.stop()
        heartbeat.join(40)
    assert first.models is not None
    assert first.scan is not None
    assert not first.scan.partial, "the first scan fits into its budget"
    assert first.scan.error is None
    assert len(first.models) == FOLDERS
    assert {model.state for model in first.models} == {"complete"}
    assert max((b - a for a, b in zip(beats, beats[1:], strict=False)), default=0.0) < 1.2
    assert looked[0]["listed"] == looked[0]["folders"] == FOLDERS + 21

    until("what was just made is settled", lambda: time.time() - huge.joinpath("org-19/model-1999/model.safetensors")
          .stat().st_mtime > 2.5)  # fmt: skip
    scanner.scan()
    scanner.scan()
    assert looked[2]["listed"] == 0
    assert looked[2]["read"] == 0

    put(huge / "org-3/newcomer/model.safetensors")
    victim = huge / "org-4/model-4/model.safetensors"
    victim.write_bytes(files.safetensors()[:-1])
    scanner.scan()
    assert looked[3]["listed"] == 2, "the folder of the newcomer, and the one around it"
    assert looked[3]["read"] == 2, "the newcomer, and the file that was cut off in place"
    after = scanner.snapshot()
    assert str(huge / "org-3/newcomer") in paths(after)
    assert str(victim.parent) not in paths(after), "one too many for a beat: the one that is not whole is left out"
    assert after.truncated
    assert len(after.models or []) == FOLDERS


@pytest.mark.case("FC-041")
def test_a_dead_mount_holds_up_nothing_but_itself(tmp_path: Path) -> None:
    """The walker is in state D and outlives SIGKILL; the last good result stays, with its age; no second one is sent
    after the first; what lies elsewhere is looked at as ever."""
    net, disk = tmp_path / "net", tmp_path / "disk"
    put(net / "far/model.safetensors")
    put(disk / "near/model.safetensors")
    (disk / "below").mkdir()
    runner = ToolRunner()
    scanner = ModelScanner(runner, [str(net), str(disk)], tmp_path / "state", deadline_s=3.0)
    (tmp_path / "state").mkdir()
    scanner.scan()
    good = scanner.snapshot()
    assert paths(good) == {str(net / "far"), str(disk / "near")}
    assert good.scan is not None
    assert good.scan.error is None

    with silent_mount(net), silent_mount(disk / "below"):
        put(disk / "late/model.safetensors")
        scan = threading.Thread(target=scanner.scan)
        scan.start()
        until("the walk hangs in the kernel", lambda: any(state_of(pid) == "D" for pid in children_of(f'"{net}"')))
        [walker] = [pid for pid in children_of(f'"{net}"') if state_of(pid) == "D"]
        scan.join(60)
        assert not scan.is_alive()
        assert state_of(walker) == "D", "it was killed, and is there all the same"
        stuck = runner.stuck()
        assert stuck == [f"the scan for models on the mount {place}" for place in sorted((disk / "below", net))]
        dead = scanner.snapshot()
        assert paths(dead) == {str(net / "far"), str(disk / "near"), str(disk / "late")}
        assert dead.scan is not None
        assert dead.scan.at == good.scan.at, "the age of the oldest that is told"
        assert f"the scan for models on the mount {net} did not answer in 3 s" in (dead.scan.error or "")

        before = set(children_of(str(tmp_path)))
        scanner.scan()
        assert set(children_of(str(tmp_path))) == before
        assert "stuck in the kernel" in (scanner.snapshot().scan.error or "")  # type: ignore[union-attr]
        assert paths(scanner.snapshot()) == paths(dead)
    until("the walkers end when they are let go", lambda: not runner.stuck())
    scanner.scan()
    back = scanner.snapshot()
    assert paths(back) == {str(net / "far"), str(disk / "near"), str(disk / "late")}
    assert back.scan is not None
    assert back.scan.error is None
    assert (back.scan.at or "") > (good.scan.at or "")


@pytest.mark.case("FC-041")
def test_could_not_look_is_never_none(tmp_path: Path) -> None:
    net = tmp_path / "net"
    net.mkdir()
    with silent_mount(net):
        scanner = ModelScanner(ToolRunner(), [str(net)], None, deadline_s=1.0)
        assert scanner.snapshot().models is None
        scanner.scan()
        told = scanner.snapshot()
    assert told.scan is not None
    assert told.scan.partial
    assert "did not answer in 1 s" in (told.scan.error or "")
    # The default folder beside it was looked at, so the list is known as far as that goes.
    assert told.models is None or str(net) not in {model.path for model in told.models}


@pytest.mark.case("FC-038")
def test_a_folder_mounted_into_itself_is_seen_once(tmp_path: Path) -> None:
    """A loop without a link: no two of its paths have another inode, and none is longer than the first."""
    put(tmp_path / "root/m/model.safetensors")
    inside = tmp_path / "root/m/again"
    inside.mkdir()
    run(["mount", "--bind", tmp_path / "root", inside])
    try:
        scanner = ModelScanner(ToolRunner(), [str(tmp_path / "root")], None)
        scanner.scan()
        assert [model.path for model in scanner.snapshot().models or []] == [str(tmp_path / "root/m")]
        unaware = Walk(str(tmp_path / "root"), Memory()).run()
        assert set(unaware.memory.folders) == {"", "m"}
    finally:
        run(["umount", inside])


def test_a_folder_that_was_asked_for_and_is_not_there_is_said(tmp_path: Path) -> None:
    scanner = ModelScanner(ToolRunner(), [str(tmp_path / "nowhere"), str(tmp_path)], None)
    put(tmp_path / "m/model.safetensors")
    scanner.scan()
    told = scanner.snapshot()
    assert paths(told) == {str(tmp_path / "m")}
    assert told.scan is not None


def test_a_child_that_dies_is_an_error_and_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "m/model.safetensors")
    scanner = ModelScanner(ToolRunner(), [str(tmp_path)], None)
    scanner.scan()
    monkeypatch.setattr(scanning, "python_command", lambda *words: ["/bin/sh", "-c", "echo no room >&2; kill -9 $$"])
    scanner.scan()
    told = scanner.snapshot()
    assert paths(told) == {str(tmp_path / "m")}
    assert told.scan is not None
    assert "ended with -9: no room" in (told.scan.error or "")
