"""Updates of an agent that supervises five containers: forth, back, by force, and with builds that are no good."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.distribution.front import Answer, front
from tests.integration.distribution.site import KEY, Site
from tests.integration.distribution.updating import KINDS, OPT, SETTINGS, TASKS, UNIT_FILE, Updating
from tests.lab import Lab
from tests.lab.control_plane import ControlPlane

UNDONE_WITHIN_S = 90


@pytest.fixture(scope="module")
def updating(lab: Lab, plane: ControlPlane, kinds: dict[str, Path]) -> Iterator[Updating]:
    """The first build on the node, and five tasks that run until `over` ends them."""
    site = Site(lab.node(1), plane)
    site.uninstall("--purge", "--yes")
    site.node.put(KEY, plane.key, 0o600)
    made = Updating(site, lab, kinds)
    made.level("first")
    made.start_tasks()
    yield made
    site.node.sh("docker ps -aq --filter label=heterofleet.task | xargs -r docker rm -f")
    made.offer("first")
    site.uninstall("--purge", "--yes")


@pytest.fixture
def five(updating: Updating) -> Iterator[Updating]:
    """Whatever the test does: the same five containers run on, and the agent that runs then supervises them."""
    before = updating.containers()
    yield updating
    assert updating.containers() == before
    assert all(running for _, _, running in before.values())
    assert updating.supervised() == set(TASKS)


@pytest.mark.case("FC-065")
@pytest.mark.case("FC-066")
def test_forth_by_force_and_back(five: Updating) -> None:
    """Copying over a running program failed, and the restart killed what ran in the service's control group."""
    first, newer = five.level("first"), five.offer("newer")
    unit_was_read = five.site.property("NeedDaemonReload")
    done = five.quick()
    assert done.returncode == 0, done.stderr
    five.runs(newer)
    assert five.site.node.get(f"{OPT}/current/agent.yaml") == five.site.node.get(SETTINGS)
    assert five.site.node.run(["readlink", f"{OPT}/previous"]).stdout.strip() == f"releases/{first}"
    assert unit_was_read == five.site.property("NeedDaemonReload") == "no"

    pid = five.site.property("MainPID")
    again = five.quick()
    assert (again.returncode, again.stderr) == (0, "")
    assert f"{newer} runs already; nothing to do" in again.stdout
    assert five.site.property("MainPID") == pid

    forced = five.force()
    assert forced.returncode == 0, forced.stderr
    five.runs(newer)
    assert five.site.property("MainPID") != pid

    back = five.quick("--rollback")
    assert back.returncode == 0, back.stderr
    five.runs(first)
    forth = five.quick("--rollback", newer)
    assert forth.returncode == 0, forth.stderr
    five.runs(newer)


def test_going_back_brings_the_settings_and_the_unit_of_that_release(five: Updating) -> None:
    first, _ = five.level("first"), five.offer("newer")
    node = five.site.node
    text = node.get(SETTINGS).decode() + "# ours\nmax_tasks: 7\n"
    node.put(SETTINGS, text, 0o600)
    unit = node.get(UNIT_FILE).decode() + "# an older text\n"
    node.put(f"{OPT}/releases/{first}/heterofleet-agent.service", unit)
    assert five.quick("--mgmt-addr", "192.0.2.9").returncode == 0
    changed_text = node.get(SETTINGS).decode()
    assert 'mgmt_addr: "192.0.2.9"' in changed_text
    assert changed_text.endswith("# ours\nmax_tasks: 7\n")
    back = five.quick("--rollback")
    assert back.returncode == 0, back.stderr
    five.runs(first)
    # What the operator wrote by hand before the update is part of what ran then.
    assert node.get(SETTINGS).decode() == text
    assert node.get(UNIT_FILE).decode() == unit
    assert five.site.property("NeedDaemonReload") == "no"


FLIP = """
import glob, sys, time
found = []
while not found:
    found = glob.glob(sys.argv[1])
with open(found[0], "r+b") as file:
    file.seek(3000000)
    byte = file.read(1)
    file.seek(3000000)
    file.write(bytes([byte[0] ^ 1]))
"""


@pytest.mark.parametrize(
    ("kind", "codes", "words"),
    [
        ("exits", (7,), "this build ends at once"),
        ("silent", (7,), "confirmed no heartbeat within 60 s"),
        ("flipped on the way", (6,), "sha256"),
        ("flipped on the disk", (6, 7, 8), "taking back"),
    ],
)
def test_a_bad_build_is_undone_in_time_and_the_old_agent_goes_on(
    five: Updating, kind: str, codes: tuple[int, ...], words: str
) -> None:
    first = five.level("first")
    node = five.site.node
    bad = five.offer(kind.partition(" ")[0] if kind in KINDS else "newer")
    five.forget(bad)
    before = five.installation()
    if kind == "flipped on the disk":
        place = f"{OPT}/releases/{bad}/heterofleet-agent"
        node.run(["systemd-run", "--quiet", "--collect", "python3", "-c", FLIP, place])
    with ThreadPoolExecutor(1) as pool, front(five.site.plane.url, offset=8) as mirror:
        # A control plane looks at what it hands out; a mirror is any web server.
        path, content = five.served_file()
        mirror.answers[path] = Answer(200, content[:3000000] + bytes([content[3000000] ^ 1]) + content[3000001:])
        second = pool.submit(second_script, five) if kind == "silent" else None
        began = time.monotonic()
        done = five.quick(*(["--mirror", mirror.url] if kind == "flipped on the way" else []))
        took = time.monotonic() - began
        if second is not None:
            assert second.result().returncode == 8
            assert "another HeteroFleet script is at work" in second.result().stderr
    assert done.returncode in codes, done.stderr
    assert words in done.stderr
    assert took < UNDONE_WITHIN_S
    five.runs(first)
    assert five.installation() == before
    assert five.site.property("ActiveState") == "active"
    # What was found wrong before the restart never touched the agent.
    assert "the agent from before runs again" in done.stderr or done.returncode == 6


def second_script(five: Updating) -> subprocess.CompletedProcess[str]:
    """Run while the first one waits for a heartbeat."""
    five.site.node.sh(f"until [ -e {OPT}/.undo/touched ]; do sleep 0.1; done")
    return five.force()


def test_the_five_end_and_their_results_arrive(updating: Updating) -> None:
    """Last of this file: the tasks that lived through all of that."""
    for task in TASKS:
        updating.site.node.docker("exec", f"task-{task}", "touch", "/tmp/over")
    ended = updating.wait_for_tasks("completed", "failed")
    assert [ended[task]["exit_code"] for task in TASKS] == [0, 1, 2, 3, 4]
    assert {ended[task]["status"] for task in TASKS[1:]} == {"failed"}
    assert [ended[task]["attempt"] for task in TASKS] == [1] * len(TASKS)
