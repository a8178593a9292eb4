"""A claim's volumes from the check to the running container, on the machine's own engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.drivers.driver import EngineFacts, Mount
from runtime.agent.tasks.checks import CheckFailed
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.mounting import ELSEWHERE, SWAPPED
from runtime.protocol.reasons import Reason
from runtime.protocol.tasks import Volume
from tests.integration.agent_tasks.agent_bench import load_task_image
from tests.integration.fence.rig import Rig
from tests.integration.fence.yard import GOOD, TRAP, Yard

ROOT = Path(__file__).parents[3]


@pytest.fixture
def rig(lab: Any, yard: Yard) -> Rig:
    load_task_image()
    return Rig(yard)


@pytest.fixture
def held(rig: Rig, yard: Yard, request: pytest.FixtureRequest) -> Iterator[Held]:
    held = rig.claim(f"fence-{yard.root.parent.name.replace('_', '-')}", Volume(str(yard.good), "/job"))
    yield held
    rig.remove(held)


def trap_by_mount(yard: Yard, held: Held) -> None:
    """Somebody with root's rights puts the trap where the claim's folder is held."""
    place = yard.pins.place(held.key, 0)
    subprocess.run(["umount", place], check=True)
    subprocess.run(["mount", "--bind", yard.out, place], check=True)


def exchange(yard: Yard) -> None:
    """The folder's name leads to the trap now."""
    yard.good.rename(yard.data / "aside")
    yard.good.symlink_to(yard.out)


def test_exchanged_after_the_check_it_gets_what_was_checked(rig: Rig, yard: Yard, held: Held) -> None:
    mounts = rig.mounting.hold(held)
    exchange(yard)
    container = rig.create(held, mounts, "/bin/cat", "/job/marker")
    exchanged = held.record.mounts
    assert rig.mounting.stands(held)
    assert held.record.mounts == exchanged, "what is held is not admitted anew"
    rig.driver.start(container)
    assert (rig.output(container), yard.alarm.rung()) == (GOOD, [])


def test_exchanged_before_the_check_it_is_refused(rig: Rig, yard: Yard, held: Held) -> None:
    exchange(yard)
    with pytest.raises(CheckFailed, match=r"leads to .*/out, outside") as failed:
        rig.mounting.hold(held)
    assert (failed.value.reason, yard.alarm.rung()) == (Reason.VOLUME_REJECTED, [])


def test_after_create_another_source_is_noticed_before_the_start(rig: Rig, yard: Yard, held: Held) -> None:
    rig.create(held, rig.mounting.hold(held), "/bin/cat", "/job/marker")
    trap_by_mount(yard, held)
    with pytest.raises(CheckFailed, match=SWAPPED) as failed:
        rig.mounting.stands(held)
    assert (failed.value.reason, yard.alarm.rung()) == (Reason.VOLUME_REJECTED, [])


def test_after_the_start_it_is_the_container_that_is_looked_at(rig: Rig, yard: Yard, held: Held) -> None:
    mounts = rig.mounting.hold(held)
    container = rig.create(held, mounts, "/bin/sleep", "60")
    rig.driver.start(container)
    assert not rig.mounting.swapped(held, rig.driver.inspect(container))
    rig.driver.remove(container, True)
    other = rig.create(held, [Mount(str(yard.out), "/job", True)], "/bin/sleep", "60")
    rig.driver.start(other)
    assert rig.mounting.swapped(held, rig.driver.inspect(other)), "the claim's places are fine, the container is not"


def test_a_container_that_is_over_is_not_called_exchanged(rig: Rig, yard: Yard, held: Held) -> None:
    """Its number may be another program's by the time that one looks."""
    container = rig.create(held, rig.mounting.hold(held), "/bin/cat", "/job/marker")
    rig.driver.start(container)
    facts = rig.driver.inspect(container)
    rig.ended(container)
    assert not rig.mounting.swapped(held, facts)


def test_a_wake_compares_again(rig: Rig, yard: Yard, held: Held) -> None:
    """Asleep, a container has nothing mounted: its sources are looked up anew when it wakes."""
    container = rig.create(held, rig.mounting.hold(held), "/bin/cat", "/job/marker")
    rig.driver.start(container)
    rig.ended(container)
    exchange(yard)
    assert rig.mounting.stands(held)
    rig.driver.start(container)
    assert rig.output(container) == GOOD * 2
    trap_by_mount(yard, held)
    with pytest.raises(CheckFailed, match=SWAPPED):
        rig.mounting.stands(held)
    assert yard.alarm.rung() == []


def test_after_a_restart_of_the_machine_a_wake_admits_again(rig: Rig, yard: Yard, held: Held) -> None:
    """/run is empty then: nothing is held, and the folder may have become anything."""
    container = rig.create(held, rig.mounting.hold(held), "/bin/cat", "/job/marker")
    rig.driver.start(container)
    rig.ended(container)
    yard.pins.release(held.key)
    assert rig.mounting.stands(held)
    rig.driver.start(container)
    assert rig.output(container) == GOOD * 2
    yard.pins.release(held.key)
    exchange(yard)
    with pytest.raises(CheckFailed, match=r"leads to .*/out, outside"):
        rig.mounting.stands(held)
    assert yard.alarm.rung() == []


def test_what_root_mounts_below_a_sleeping_containers_folder_is_seen_before_the_wake(
    rig: Rig, yard: Yard, held: Held
) -> None:
    subprocess.run(["mount", "--bind", yard.data, yard.data], check=True)
    try:
        subprocess.run(["mount", "--make-shared", yard.data], check=True)
        (yard.good / "later").mkdir()
        container = rig.create(held, rig.mounting.hold(held), "/bin/cat", "/job/marker")
        rig.driver.start(container)
        rig.ended(container)
        assert rig.mounting.stands(held)
        yard.mount("--bind", "/etc", yard.good / "later")
        with pytest.raises(CheckFailed, match="/etc is mounted at or below it"):
            rig.mounting.stands(held)
    finally:
        subprocess.run(["umount", "-R", "-l", yard.data], check=True)


def test_a_container_with_plain_sources_is_made_anew(rig: Rig, yard: Yard, held: Held) -> None:
    """An agent of an earlier release made it, and gave Docker the path itself."""
    rig.create(held, [Mount(str(yard.good), "/job", True)], "/bin/cat", "/job/marker")
    assert not rig.mounting.stands(held)


def test_an_engine_with_its_own_folders_is_noticed(rig: Rig, yard: Yard, held: Held) -> None:
    """Engine and agent in two mount namespaces: Docker would have mounted an empty mount point."""
    program = (
        "import json, sys\nfrom tests.integration.fence import test_mounting\ntest_mounting.elsewhere(*sys.argv[1:])\n"
    )
    (yard.root / "state").rename(yard.root / "state-before")
    argv = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        "-c",
        program,
        str(yard.root),
        held.key.uid,
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [Reason.ENGINE_UNAVAILABLE.value, ELSEWHERE]


def elsewhere(root: str, name: str) -> None:
    """Runs in a mount namespace that the engine does not see."""
    yard = Yard.__new__(Yard)
    yard.root, yard.data, yard.places = Path(root), Path(root, "data"), Path(root, "places")
    rig = Rig(yard)
    held = rig.claim(f"{name}-elsewhere", Volume(str(yard.data / "good"), "/job"))
    try:
        rig.create(held, rig.mounting.hold(held), "/bin/ls", "/job")
        rig.mounting.stands(held)
        print(json.dumps(["started"]))
    except CheckFailed as failed:
        print(json.dumps([failed.reason.value, failed.text]))
    finally:
        rig.remove(held)


def test_an_engine_on_another_machine_gets_no_volumes(yard: Yard, lab: Any) -> None:
    rig = Rig(yard, docker_host="tcp://user:secret@198.18.0.99:2375")
    with pytest.raises(CheckFailed, match="an engine on this machine") as failed:
        rig.mounting.hold(rig.claim("fence-tcp", Volume(str(yard.good), "/job")))
    assert failed.value.reason is Reason.ENGINE_UNAVAILABLE
    assert "secret" not in failed.value.text
    assert rig.mounting.hold(rig.claim("fence-tcp-none")) == ()


def test_the_engines_own_folder_is_denied_wherever_it_is(yard: Yard, lab: Any) -> None:
    rig = Rig(yard, volumes_allow=["/"])
    moved = yard.data / "engine"
    (moved / "overlay2").mkdir(parents=True)
    for place in (moved, moved / "overlay2", yard.data):
        rig.engine.facts = EngineFacts("e", "20.10", root_dir=str(moved))
        with pytest.raises(CheckFailed, match=f"never allowed: it reaches {moved}"):
            rig.mounting.hold(rig.claim("fence-root", Volume(str(place), "/job")))


def test_the_agents_own_files_are_denied(yard: Yard, lab: Any) -> None:
    key = yard.data / "key"
    key.write_text("k")
    rig = Rig(yard, api_key_file=str(key), docker_host=f"unix://{yard.data}/run/docker.sock")
    (yard.data / "run").mkdir()
    (yard.data / "run" / "docker.sock").touch()
    for place in (key, yard.data / "run", yard.data / "run" / "docker.sock"):
        with pytest.raises(CheckFailed, match="never allowed"):
            rig.mounting.hold(rig.claim("fence-own", Volume(str(place), "/job")))


def test_read_only_is_read_only_with_all_below(rig: Rig, yard: Yard) -> None:
    """Docker's own answer for what is mounted below a read-only volume depends on its release; here it is written
    down what this one does, for the top."""
    held = rig.claim("fence-read-only", Volume(str(yard.good), "/ro"), Volume(str(yard.good), "/rw", read_only=False))
    try:
        script = "echo x > /ro/new; echo y > /rw/new && cat /ro/new"
        container = rig.create(held, rig.mounting.hold(held), "/bin/sh", "-c", script)
        assert rig.mounting.stands(held)
        rig.driver.start(container)
        text = rig.output(container)
        assert "Read-only file system" in text
        assert "y" in text.splitlines()
        assert (yard.good / "new").read_text() == "y\n"
    finally:
        rig.remove(held)


def test_one_volume_in_another(rig: Rig, yard: Yard) -> None:
    (yard.data / "b").mkdir()
    (yard.data / "b" / "marker").write_text("b\n")
    (yard.good / "y").mkdir()
    volumes = [Volume(str(yard.data / "b"), "/x/y"), Volume(str(yard.good), "/x")]
    held = rig.claim("fence-nested", *volumes)
    try:
        container = rig.create(held, rig.mounting.hold(held), "/bin/cat", "/x/marker", "/x/y/marker")
        assert rig.mounting.stands(held)
        rig.driver.start(container)
        assert rig.output(container) == f"{GOOD}b\n"
        assert TRAP not in rig.output(container)
    finally:
        rig.remove(held)
