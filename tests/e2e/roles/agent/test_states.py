"""Builds that are no good, runs that are cut, hosts in all states: what there is in the end is right.

Three nodes at a time, each with another trouble: one run of Ansible shows three of them. The tests go on from each
other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.protocol.manifest import FILE_NAME
from tests.e2e.roles.agent.tree import needs_to_run, pid, tree
from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.bare import make_bare
from tests.e2e.roles.builds import Builds
from tests.integration.distribution.site import UNIT, changed, snapshot
from tests.lab import Lab, Node
from tests.lab.process import wait_for

OPT, SETTINGS = "/opt/heterofleet", "/etc/heterofleet/agent.yaml"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
pytestmark = pytest.mark.timeout(900)  # three hosts at a time, on a machine that others use, too
SWITCH = "Switch to the release, start it, and wait until the control plane has heard it"


@pytest.fixture(scope="module")
def three(room: Fleet, builds: Builds) -> Iterator[Fleet]:
    """The first build on all three."""
    room.role("agent", "main")
    yield room


def copied(folder: Path, place: Path, change: str) -> Path:
    """Builds that are wrong in a way of their own."""
    shutil.copytree(folder, place)
    manifest = json.loads((place / FILE_NAME).read_text())
    builds = manifest["builds"]
    if change == "another architecture":
        builds["amd64"] = builds["arm64"]
        (place / FILE_NAME).write_text(json.dumps(manifest))
    if change == "one byte":
        with (place / builds["amd64"]["file"]).open("r+b") as file:
            file.seek(3_000_000)
            byte = file.read(1)
            file.seek(3_000_000)
            file.write(bytes([byte[0] ^ 1]))
    if change == "dirty":
        (place / FILE_NAME).write_text(json.dumps({**manifest, "dirty": True}))
    return place


def test_bad_builds_are_taken_back_and_the_host_says_why(three: Fleet, builds: Builds, tmp_path: Path) -> None:
    """What can be seen beforehand never touches the agent; one that ends at once is gone, and the old one is heard."""
    exits, flipped, bare = three.nodes
    make_bare([bare])
    first, nothing = Builds.release(builds.first), snapshot(bare)
    before = {node.name: (tree(node), pid(node)) for node in (exits, flipped)}
    three.host_vars = {
        exits.name: {"agent_builds_dir": str(builds.kind("exits"))},
        flipped.name: {"agent_builds_dir": str(copied(builds.newer, tmp_path / "flipped", "one byte"))},
        bare.name: {"agent_builds_dir": str(copied(builds.newer, tmp_path / "arm64", "another architecture"))},
    }
    done = three.role("agent", "main", check=False)
    assert {host: one["result"] for host, one in done.outcomes.items()} == dict.fromkeys(
        before | {bare.name: 0}, "restored"
    )
    said = done.failures
    assert "because the agent ends whenever it is started" in said[exits.name]
    assert "this build ends at once" in said[exits.name]  # its journal
    assert "the agent from before runs again and is registered" in said[exits.name]
    assert "is not the build that was wanted: found sha256" in said[flipped.name]
    assert "is a build for arm64, and this host is x86_64" in said[bare.name]
    assert "no agent ran before, and none runs now" in said[bare.name]
    for node in (exits, flipped):
        needs_to_run(node, first)
        assert tree(node) == before[node.name][0]
    assert pid(flipped) == before[flipped.name][1]
    lived = ("/root", "/run/motd.dynamic")
    assert [line for line in changed(nothing, snapshot(bare)) if not line[2:].startswith(lived)] == []

    three.host_vars = {exits.name: {"agent_builds_dir": str(copied(builds.newer, tmp_path / "dirty", "dirty"))}}
    dirty = three.role("agent", "main", hosts=exits.name, check=False)
    assert dirty.outcomes[exits.name]["result"] == "refused"
    assert "is a build that no commit describes" in dirty.failures[exits.name]
    levelled = three.role("agent", "level", "--check", hosts=exits.name)
    three.host_vars = {}
    assert "-dirty-" in levelled.outcomes[exits.name]["to"]
    assert tree(exits) == before[exits.name][0]


@dataclass(frozen=True)
class Cut:
    """``task``: killed when it has begun; ``until``: a shell condition on the node that comes first; ``host``: what the
    node's own process of that moment gets, too, as in a power cut."""

    task: str
    until: str = "true"
    host: str = ""


CUTS = {
    "when the build is copied": Cut("Put the settings into their file"),
    "when the link is new": Cut(
        SWITCH, '[ "$(readlink /opt/heterofleet/current)" = releases/$other ]', "pkill -KILL -f -- '[-]IB -$'"
    ),
    "while it waits": Cut(SWITCH, f"[ -e {OPT}/.undo/touched ]"),
}


@pytest.mark.case("FC-067")
@pytest.mark.parametrize("name", CUTS)
def test_a_run_that_is_cut_is_made_good_by_the_next(three: Fleet, builds: Builds, name: str) -> None:
    """A later failure dropped the restart, the next run saw no change, and the old code ran for weeks."""
    cut, node = CUTS[name], three.nodes[0]
    here = node.run(["readlink", f"{OPT}/current"]).stdout.strip().removeprefix("releases/")
    folder = builds.newer if here == Builds.release(builds.first) else builds.first
    other = Builds.release(folder)
    node.sh(f"rm -rf {OPT}/releases/{other} {OPT}/previous")
    three.variables["fleet_builds_dir"] = str(folder)
    run = three.start(three.folder / "agent-main.yml", "--limit", node.name)
    wait_for(cut.task, lambda: run.reached(cut.task) or "not yet", 120, 0.02)
    node.sh(f"other={other}\nuntil {cut.until}; do :; done\n{cut.host or ':'}", timeout=120)
    run.kill()
    run.wait()
    # Whatever was left: the link leads to a program, and the node has an agent after a boot.
    assert node.run(["test", "-x", f"{OPT}/current/heterofleet-agent"]).returncode == 0
    assert node.run(["systemctl", "is-enabled", UNIT]).stdout.strip() == "enabled"
    again = three.role("agent", "main", hosts=node.name)
    assert again.outcomes[node.name]["to"] == other
    needs_to_run(node, other)
    assert node.sh(f"find {OPT} -maxdepth 1 -mindepth 1 -name '.*'") == ""
    if cut.host:
        assert again.results("Take back what an earlier run left half done", status="ok")


@pytest.mark.case("FC-067")
def test_what_runs_is_what_counts_and_not_what_changed(three: Fleet) -> None:
    """All files are as wanted, no record is left, and an older process runs: it is started anew."""
    node = three.nodes[0]
    release = node.run(["readlink", f"{OPT}/current"]).stdout.strip().removeprefix("releases/")
    text, was = node.get(SETTINGS).decode(), pid(node)
    node.put(SETTINGS, text + "max_tasks: 9\n", 0o600)
    node.run(["cp", "-p", SETTINGS, f"{OPT}/releases/{release}/agent.yaml"])
    done = three.role("agent", "main", hosts=node.name)
    assert [task.removeprefix("agent : ") for task in done.changed[node.name]] == [SWITCH]
    assert pid(node) != was
    needs_to_run(node, release)


def test_what_a_script_left_half_done_is_taken_back_by_the_role(three: Fleet) -> None:
    """And the other way round: both write down in one form what they are about to change."""
    node, plane = three.nodes[0], three.plane
    assert plane is not None
    release = node.run(["readlink", f"{OPT}/current"]).stdout.strip().removeprefix("releases/")
    url = f"{plane.url}/update-agent-force.sh"
    node.sh(
        f"curl -fsSLo /root/force.sh {url}; sh /root/force.sh --mgmt-addr 192.0.2.77 >/dev/null 2>&1 & child=$!\n"
        f"until [ -e {OPT}/.undo/touched ]; do :; done; kill -KILL $child; wait $child || :"
    )
    assert node.run(["test", "-d", f"{OPT}/.undo"]).returncode == 0
    done = three.role("agent", "main", hosts=node.name)
    assert (
        "an earlier run was cut short"
        in done.results("Take back what an earlier run left half done")[0]["said"]["stdout"]
    )
    assert "192.0.2.77" not in node.get(SETTINGS).decode()
    needs_to_run(node, release)


def planted(node: Node, lines: str) -> None:
    node.sh(f"here=$(readlink {OPT}/current)\n{lines}")


def test_level_makes_whole_what_is_in_any_state(three: Fleet, lab: Lab, builds: Builds) -> None:
    """It hangs, is masked, is half there: each ends with exactly the staged build, and containers run on."""
    hangs, masked, strange = three.nodes
    three.role("agent", "main", hosts=strange.name)
    lab.load_image([hangs])
    words = ["-d", "--name", "task-kept", "--label", "heterofleet.task=kept", lab.task_image, "forever"]
    hangs.docker("run", *words)
    started = hangs.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", "task-kept").stdout
    planted(
        hangs,
        f"kill -STOP $(systemctl show -p MainPID --value {UNIT})\n"
        f"find {OPT}/cache -name heartbeat.py -exec sh -c 'echo broken >\"$1\"' _ {{}} \\;",
    )
    planted(
        masked,
        f"systemctl stop {UNIT}; rm {UNIT_FILE}; systemctl mask --quiet {UNIT}; "
        f"echo 'exit 1' >{OPT}/$here/heterofleet-agent; echo 'max_taskz: 5' >>{SETTINGS}; chmod 0777 {SETTINGS}",
    )
    planted(
        strange,
        f"rm -f {OPT}/current {OPT}/previous; echo theirs >{OPT}/current; mkdir {OPT}/previous; "
        f"touch {OPT}/previous/x; rm {SETTINGS}; mkdir {SETTINGS}; echo mine >{SETTINGS}/file; "
        f"chmod 0755 /var/lib/heterofleet/agent; mkdir {OPT}/.undo",
    )
    refused = three.role("agent", "main", hosts=strange.name, check=False)
    assert "is not what belongs there; levelling moves it aside" in refused.failures[strange.name]
    three.variables["fleet_builds_dir"] = str(builds.newer)
    done = three.role("agent", "level")
    release = Builds.release(builds.newer)
    assert {one["result"] for one in done.outcomes.values()} == {"changed"}
    assert {one["to"] for one in done.outcomes.values()} == {release}
    for node in three.nodes:
        assert node.run(["readlink", f"{OPT}/current"]).stdout.strip() == f"releases/{release}"
        facts = [
            "stat",
            "-c",
            "%a %u %g",
            SETTINGS,
            "/etc/heterofleet/agent.key",
            UNIT_FILE,
            f"{OPT}/releases/{release}",
        ]
        modes = node.run([*facts, f"{OPT}/current/heterofleet-agent", "/var/lib/heterofleet/agent"]).stdout
        assert modes.splitlines() == [f"{mode} 0 0" for mode in ("600", "600", "644", "755", "755", "700")]
        assert node.run(["systemctl", "is-enabled", UNIT]).stdout.strip() == "enabled"
    assert hangs.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", "task-kept").stdout == started
    assert strange.sh(f"cat {OPT}/current.set-aside-*; cat {SETTINGS}.set-aside-*/file") == "theirs\nmine"
    assert "max_taskz" not in masked.get(SETTINGS).decode()
    assert "max_taskz" in masked.sh(f"cat {SETTINGS}.set-aside-*")
    assert "the agent did not take the settings" in done.outcomes[masked.name]["reason"]
