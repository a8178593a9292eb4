"""From bare nodes to an upgrade, back and away: the role on one node, the scripts on another, and both leave the same.

The tests of this file go on from each other.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.roles.agent.tree import needs_to_run, pid, shown, tree
from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.bare import publish
from tests.e2e.roles.builds import Builds
from tests.integration.distribution.authority import Authority
from tests.integration.distribution.site import KEY, Site, changed, snapshot
from tests.lab import Lab, Node

pytestmark = pytest.mark.timeout(900)  # three hosts at a time, on a machine that others use, too
SETTINGS = "/etc/heterofleet/agent.yaml"
PEM = "/root/ca.pem"
# Said in check mode by a task of its own, because the real one does more than one module could say.
SAID_FOR = {
    "Say that the system key would be put into its file": "Put the system key into its file",
    "Say what would be switched and started": (
        "Switch to the release, start it, and wait until the control plane has heard it"
    ),
}
OWN = "# ours\nvolumes_allow:\n- /data\n- /srv/x\n"


@pytest.fixture(scope="module")
def by_role(room: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Node:
    one = room.nodes[0]
    room.variables["fleet_ca_file"] = str(Authority(tmp_path_factory.mktemp("authority")).file)
    room.host_vars[one.name] = {
        "agent_labels": {"site": "lab", "note": 'a "b" #c é'},
        "agent_mgmt_addr": "192.0.2.7",
    }
    return one


@pytest.fixture(scope="module")
def by_script(room: Fleet, by_role: Node) -> Node:
    one = room.nodes[1]
    one.put(PEM, Path(room.variables["fleet_ca_file"]).read_bytes())
    return one


def script(room: Fleet, node: Node, name: str, *words: str) -> None:
    assert room.plane is not None
    node.run(["curl", "-fsSLo", f"/root/{name}", f"{room.plane.url}/{name}"])
    done = node.run(["sh", f"/root/{name}", *words], check=False, timeout=150)
    assert done.returncode == 0, done.stderr


def need_equal(one: Node, other: Node) -> None:
    assert tree(one) == tree(other)
    assert shown(one) == shown(other)


def tasks(names: list[str]) -> list[str]:
    words = [name.removeprefix("agent : ") for name in names]
    return [SAID_FOR.get(word, word) for word in words]


def diffs(played: Any) -> dict[str, str]:
    """Path -> the content that a run with --diff said it will have."""
    found = [one for result in played.results(status="ok") for one in result["said"].get("diff") or []]
    return {one["after_header"]: one["after"] for one in found if isinstance(one, dict) and "after_header" in one}


@pytest.mark.case("FC-068")
@pytest.mark.case("FC-069")
def test_what_check_mode_says_of_a_bare_host_is_what_a_run_does(room: Fleet, by_role: Node) -> None:
    """A step skipped in check mode failed the next one, and a key was in --diff and in -vvv."""
    assert room.plane is not None
    before = snapshot(by_role, times=True)
    said = room.role("agent", "main", "--check", "--diff", "-vvv", hosts=by_role.name)
    # The login by SSH writes the message of the day; Ansible itself makes its folder of temporary files, empty again.
    lived = ("/root", "/run/motd.dynamic")
    strange = [line for line in changed(before, snapshot(by_role, times=True)) if not line[2:].startswith(lived)]
    assert strange == []
    promised = diffs(said)
    done = room.role("agent", "main", "--diff", "-vvv", hosts=by_role.name)
    assert tasks(said.changed[by_role.name]) == tasks(done.changed[by_role.name])
    assert len(tasks(said.changed[by_role.name])) == 6
    assert set(promised) >= {SETTINGS, "/etc/systemd/system/heterofleet-agent.service", "/etc/heterofleet/ca.pem"}
    for path, text in promised.items():
        assert by_role.get(path).decode() == text, path
    assert said.outcomes[by_role.name] == done.outcomes[by_role.name]
    for form in (room.plane.key, base64.b64encode(room.plane.key.encode()).decode()):
        assert form not in said.output + done.output
    needs_to_run(by_role, done.outcomes[by_role.name]["to"])


def test_role_and_script_leave_the_same(room: Fleet, by_role: Node, by_script: Node) -> None:
    words = ["--key-file", KEY, "--ca-file", PEM, "--mgmt-addr", "192.0.2.7"]
    words += ["--label", "site=lab", "--label", 'note=a "b" #c é']
    script(room, by_script, "install-agent.sh", *words)
    need_equal(by_role, by_script)


def test_twice_changes_nothing_on_either(room: Fleet, by_role: Node, by_script: Node) -> None:
    """Also on the node that a script has installed; the other variables of that host stay as they were."""
    both, pids = f"{by_role.name},{by_script.name}", (pid(by_role), pid(by_script))
    before = tree(by_role), tree(by_script)
    again = room.role("agent", "main", hosts=both)
    assert again.changed == {}
    assert {host: one["result"] for host, one in again.outcomes.items()} == dict.fromkeys(again.stats, "unchanged")
    assert len(again.stats) == 2
    assert ((pid(by_role), pid(by_script)), (tree(by_role), tree(by_script))) == (pids, before)


@pytest.mark.case("FC-065")
def test_an_upgrade_is_the_same_too(room: Fleet, builds: Builds, by_role: Node, by_script: Node) -> None:
    """The program that runs is not written over: the new one lies beside it, and a link is switched."""
    assert room.plane is not None
    for node in (by_role, by_script):
        node.put(SETTINGS, node.get(SETTINGS).decode() + OWN, 0o600)
    publish(room.plane, builds.newer)
    room.variables["fleet_builds_dir"] = str(builds.newer)
    done = room.role("agent", "main", hosts=by_role.name)
    first, newer = Builds.release(builds.first), Builds.release(builds.newer)
    assert done.outcomes[by_role.name] == {"result": "changed", "from": first, "to": newer, "reason": ""}
    script(room, by_script, "update-agent-quick.sh")
    need_equal(by_role, by_script)
    assert by_role.get(SETTINGS).decode().endswith(OWN)
    assert by_role.run(["readlink", "/opt/heterofleet/previous"]).stdout.strip() == f"releases/{first}"
    needs_to_run(by_role, newer)


def test_back_is_the_same_too(room: Fleet, builds: Builds, by_role: Node, by_script: Node) -> None:
    back = room.role("agent", "rollback", hosts=by_role.name)
    assert back.outcomes[by_role.name]["to"] == Builds.release(builds.first)
    script(room, by_script, "update-agent-quick.sh", "--rollback")
    need_equal(by_role, by_script)
    needs_to_run(by_role, Builds.release(builds.first))
    wrong = room.role("agent", "rollback", hosts=by_role.name, vars={"agent_release": "1.0-no-00000000"}, check=False)
    assert wrong.outcomes[by_role.name]["result"] == "refused"
    assert "there is no release 1.0-no-00000000 on this host; there are: " in wrong.failures[by_role.name]


def test_levelled_and_forced_are_the_same(room: Fleet, by_role: Node, by_script: Node) -> None:
    """Both end with the build on offer and a new process, though that build may be older or newer."""
    was = pid(by_role)
    level = room.role("agent", "level", hosts=by_role.name)
    assert level.outcomes[by_role.name]["result"] == "changed"
    assert pid(by_role) != was
    script(room, by_script, "update-agent-force.sh")
    need_equal(by_role, by_script)


def test_removed_is_the_same_too(room: Fleet, lab: Lab, by_role: Node, by_script: Node) -> None:
    """Task containers run on; the purge is refused until they may be lost."""
    assert room.plane is not None
    lab.load_image([by_role, by_script])
    for node in (by_role, by_script):
        words = ["-d", "--name", "task-kept", "--label", "heterofleet.task=kept", lab.task_image, "forever"]
        node.docker("run", *words)
    refused = room.role("agent", "uninstall", hosts=by_role.name, vars={"agent_purge": True}, check=False)
    assert refused.outcomes[by_role.name]["result"] == "refused"
    assert "nobody would supervise them (task-kept)" in refused.failures[by_role.name]
    said = room.role("agent", "uninstall", "--check", hosts=by_role.name)
    assert pid(by_role) != "0"
    done = room.role("agent", "uninstall", hosts=by_role.name)
    removed = [one.outcomes[by_role.name]["reason"].partition("; kept")[0] for one in (said, done)]
    assert removed[0].partition("; task")[0] == removed[1]
    assert "task-kept" in done.outcomes[by_role.name]["reason"]
    Site(by_script, room.plane).uninstall()
    assert tree(by_role) == tree(by_script)
    assert by_role.docker("inspect", "-f", "{{.State.Running}}", "task-kept").stdout.strip() == "true"
    words = {"agent_purge": True, "agent_force": True, "agent_remove_tasks": True}
    gone = room.role("agent", "uninstall", hosts=by_role.name, vars=words)
    assert "these are stopped and removed: task-kept" in gone.stdout
    assert by_role.docker("ps", "-aq", "--filter", "label=heterofleet.task").stdout == ""
    Site(by_script, room.plane).uninstall("--purge", "--yes")
    assert tree(by_role) == tree(by_script)
    assert not [line for line in tree(by_role) if "heterofleet" in line]
    assert room.role("agent", "uninstall", hosts=by_role.name, vars=words).changed == {}
