"""Holding volumes in place: with real mounts, and crashes between any two statements."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from runtime.agent.tasks import pins as module
from runtime.agent.tasks.pins import SETTLED_S, Pins
from runtime.agent.tasks.records import Key
from runtime.agent.tasks.volumes import Fence
from runtime.protocol.tasks import Volume
from tests.integration.fence.yard import GOOD, Yard

KEY = Key("5f6c0d1e-0000-4000-8000-000000000001", 2)
ROOT = Path(__file__).parents[3]


def volume(path: Path, container: str = "/x") -> Volume:
    return Volume(str(path), container)


def pin(yard: Yard, *paths: Path, key: Key = KEY) -> list[Path]:
    yard.pins.pin(key, [volume(path, f"/x{n}") for n, path in enumerate(paths)], yard.fence)
    return [Path(yard.pins.place(key, n)) for n in range(len(paths))]


def shared_tree(yard: Yard) -> Path:
    """A file system that tells its mounts to others, as those of a systemd host do, with another one in it."""
    top = yard.data / "tree"
    (top).mkdir()
    yard.mount("-t", "tmpfs", "tmpfs", top)
    subprocess.run(["mount", "--make-rshared", top], check=True)
    (top / "job" / "inner").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "inner", top / "job" / "inner"], check=True)
    (top / "job" / "inner" / "file").write_text("deep")
    return top / "job"


def test_what_is_mounted_below_is_there_and_stays_there(yard: Yard) -> None:
    job = shared_tree(yard)
    (place,) = pin(yard, job)
    assert (place / "inner" / "file").read_text() == "deep"
    assert yard.places.stat().st_mode & 0o777 == 0o700
    yard.pins.release(KEY)
    assert (job / "inner" / "file").read_text() == "deep", "the customer's own mount must not go with the pin"
    assert (yard.held(), list(yard.places.iterdir())) == ([], [])


def test_nothing_comes_back_to_the_host(yard: Yard) -> None:
    """What the host mounts later is seen at the place; what happens at the place is not seen on the host."""
    job = shared_tree(yard)
    (place,) = pin(yard, job)
    for name in ("later", "there"):
        (job / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "later", job / "later"], check=True)
    (job / "later" / "file").write_text("new")
    assert (place / "later" / "file").read_text() == "new"
    subprocess.run(["mount", "-t", "tmpfs", "there", place / "there"], check=True)
    (place / "there" / "file").write_text("only here")
    assert list((job / "there").iterdir()) == []
    subprocess.run(["umount", place / "inner"], check=True)
    assert (job / "inner" / "file").read_text() == "deep"
    yard.pins.release(KEY)
    assert (job / "later" / "file").read_text() == "new"


def test_no_other_namespace_gets_a_copy(yard: Yard) -> None:
    """A copy in a service's namespace would keep the customer's disk busy for as long as that service runs."""
    shared = yard.root / "run"
    shared.mkdir()
    yard.mount("-t", "tmpfs", "tmpfs", shared)
    subprocess.run(["mount", "--make-shared", shared], check=True)
    places = shared / "places"
    watcher = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert watcher.stdout is not None
        watcher.stdout.readline()  # it has a namespace of its own now
        Pins(places).pin(KEY, [volume(yard.good)], yard.fence)
        there = Path(f"/proc/{watcher.pid}/mountinfo").read_text()
        assert f" {shared} " in there
        assert f"{places}/" in Path("/proc/self/mountinfo").read_text()
        assert f"{places}/" not in there
    finally:
        watcher.communicate(timeout=10)
        Pins(places).release(KEY)
        subprocess.run(["umount", places], check=True)


def test_flags_of_the_source_stay(yard: Yard) -> None:
    (yard.data / "tight").mkdir()
    yard.mount("-t", "tmpfs", "-o", "ro,noexec,nosuid,nodev", "tmpfs", yard.data / "tight")
    (place,) = pin(yard, yard.data / "tight")
    wanted = os.ST_RDONLY | os.ST_NOEXEC | os.ST_NOSUID | os.ST_NODEV
    assert os.statvfs(place).f_flag & wanted == wanted
    with pytest.raises(OSError, match="Read-only"):
        (place / "x").touch()


def test_many_the_same_twice_and_one_in_another(yard: Yard) -> None:
    folders = [yard.data / f"d{n}" for n in range(250)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "number").write_text(str(number))
    places = pin(yard, *folders, yard.good, yard.good, yard.good / "marker")
    assert [(place / "number").read_text() for place in places[:250]] == [str(n) for n in range(250)]
    assert {(place / "marker").read_text() for place in places[250:252]} == {GOOD}
    assert places[252].read_text() == GOOD
    yard.pins.release(KEY)
    assert (yard.held(), list(yard.places.iterdir())) == ([], [])
    assert (yard.good / "marker").read_text() == GOOD


def test_pinning_again_begins_anew(yard: Yard) -> None:
    pin(yard, yard.good, yard.data / "good" / "marker")
    (place,) = pin(yard, yard.good)
    assert (place / "marker").read_text() == GOOD
    assert yard.held() == [str(place)]


def test_a_folder_that_is_exchanged_stays_what_it_was(yard: Yard) -> None:
    sources = yard.pins.pin(KEY, [volume(yard.good)], yard.fence)
    facts = [(source.path, source.device, source.inode) for source in sources]
    yard.good.rename(yard.data / "aside")
    yard.good.symlink_to(yard.out)
    place = Path(yard.pins.place(KEY, 0))
    assert (place / "marker").read_text() == GOOD
    assert yard.pins.holds(KEY, facts)
    assert yard.alarm.rung() == []
    subprocess.run(["umount", place], check=True)
    subprocess.run(["mount", "--bind", yard.out, place], check=True)
    assert not yard.pins.holds(KEY, facts), "what somebody else puts there is noticed"


def test_odd_claims_get_a_place_of_their_own(yard: Yard) -> None:
    keys = [Key(uid, 1) for uid in ("../../etc", "a/b", "", "x" * 500, "\ud800", "plain")]
    places = {yard.pins.place(key, 0) for key in keys}
    assert len(places) == len(keys)
    assert {str(Path(place).parents[1]) for place in places} == {str(yard.places)}


def test_leftovers_go_when_nobody_names_them(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, orphan = Key("needed", 1), Key("orphan", 1)
    for key in (needed, orphan):
        pin(yard, yard.good, key=key)
    yard.pins.sweep({needed})
    assert yard.pins.exists(orphan), "one that young may belong to a container that is being made"
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + SETTLED_S + 1)
    yard.pins.sweep({needed})
    assert (yard.pins.exists(needed), yard.pins.exists(orphan)) == (True, False)
    assert yard.held() == [yard.pins.place(needed, 0)]
    assert (yard.good / "marker").read_text() == GOOD


def test_an_agent_that_may_not_mount_says_so(yard: Yard) -> None:
    """No way back to the plain path: without a pin nothing is handed to the engine."""
    program = (
        "from runtime.agent.tasks.pins import *; from runtime.agent.tasks.pins import Pins, PinFailed\n"
        f"pins = Pins(Path({str(yard.places)!r}))\n"
        "try:\n"
        f"    pins.pin(Key('u', 1), [Volume({str(yard.good)!r}, '/x')], Fence([{str(yard.data)!r}]))\n"
        "except PinFailed as error:\n"
        "    print(error, pins.exists(Key('u', 1)))\n"
    )
    argv = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "CAP_SYS_ADMIN" in done.stdout
    assert done.stdout.strip().endswith("False")
    assert "Operation not permitted" in done.stdout


def dying(step: Callable[[], Any], lines: int) -> int:
    """Run ``step`` in a child that ends without a word at its ``lines``-th line of the module; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = lines

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os._exit(9)
        return trace

    try:
        sys.settrace(trace)
        step()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("step", ["pin", "release"])
def test_a_crash_between_any_two_lines_loses_nothing_and_leaks_nothing(yard: Yard, step: str) -> None:
    job = shared_tree(yard)
    volumes = [volume(job), volume(yard.good / "marker", "/y")]
    fence = Fence([str(yard.data)])
    lines, ended = 1, False
    while not ended:
        pins = Pins(yard.places)
        if step == "release":
            pins.pin(KEY, volumes, fence)
            ended = dying(lambda: pins.release(KEY), lines) == 0  # noqa: B023 (called at once)
        else:
            ended = dying(lambda: pins.pin(KEY, volumes, fence), lines) == 0  # noqa: B023 (called at once)
        if not ended and lines % 3:  # the next agent carries on: it pins anew, or lets go
            Pins(yard.places).pin(KEY, volumes, fence)
            assert (Path(pins.place(KEY, 0)) / "inner" / "file").read_text() == "deep"
        Pins(yard.places).release(KEY)
        assert (yard.held(), list(yard.places.iterdir()) if yard.places.exists() else []) == ([], [])
        assert (job / "inner" / "file").read_text() == "deep"
        assert (yard.good / "marker").read_text() == GOOD
        lines += 1
    assert lines > 20
