"""Nodes in all states: what the quick update refuses, and what the forced one makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.distribution.front import Answer, front
from tests.integration.distribution.site import KEY, UNIT, Site, changed, snapshot
from tests.integration.distribution.updating import OPT, SETTINGS, UNIT_FILE, Updating
from tests.lab import Lab
from tests.lab.control_plane import ControlPlane


@pytest.fixture(scope="module")
def stage(lab: Lab, plane: ControlPlane, kinds: dict[str, Path]) -> Iterator[Updating]:
    site = Site(lab.node(1), plane)
    site.uninstall("--purge", "--yes")
    site.node.put(KEY, plane.key, 0o600)
    made = Updating(site, lab, kinds)
    yield made
    made.offer("first")
    site.uninstall("--purge", "--yes")


HERE, OTHER = f"{OPT}/releases/$here", f"{OPT}/releases/$other"
HANGS = "an agent that hangs, in a cache that is broken"
STATES = {
    "no agent": "sh /root/uninstall-agent.sh --purge --yes",
    "a broken link and no settings": f"ln -sfn releases/gone {OPT}/current; rm {SETTINGS}",
    "a file and a folder in place of links, settings that are no YAML": (
        f"rm -f {OPT}/current {OPT}/previous; echo theirs >{OPT}/current; mkdir {OPT}/previous; "
        f"touch {OPT}/previous/x; printf '{{{{{{ \\n\\t' >{SETTINGS}"
    ),
    "no unit, wrong modes, left overs": (
        f"rm {UNIT_FILE}; chmod 0777 {SETTINGS} /etc/heterofleet/agent.key {HERE}; "
        f"chmod 0600 {HERE}/heterofleet-agent; chmod 0755 /var/lib/heterofleet/agent; "
        f"mkdir {SETTINGS}.new {OPT}/.undo; "
        f"mkdir -p {OTHER}; echo half >{OTHER}/heterofleet-agent; echo rest >{OTHER}/heterofleet-agent.new"
    ),
    "a masked unit, a program that crashes, settings that no agent takes": (
        f"systemctl stop {UNIT}; rm {UNIT_FILE}; systemctl mask --quiet {UNIT}; "
        f"echo 'exit 1' >{HERE}/heterofleet-agent; echo 'max_taskz: 5' >>{SETTINGS}"
    ),
    HANGS: (
        f"kill -STOP $(systemctl show -p MainPID --value {UNIT}); "
        f"find {OPT}/cache -name heartbeat.py -exec sh -c 'echo broken >\"$1\"' _ {{}} \\;"
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_force_ends_with_exactly_the_served_build(stage: Updating, state: str) -> None:
    here, other = stage.pair()
    node = stage.site.node
    node.sh(f"here={here} other={other}\n{STATES[state]}")
    if state != HANGS:
        refused = stage.quick()
        assert refused.returncode in (5, 8), refused.stderr
        assert "update-agent-force.sh" in refused.stderr or state == "no agent"
    done = stage.force("--key-file", KEY)
    assert done.returncode == 0, done.stderr
    stage.runs(other)
    facts = ["stat", "-c", "%a %u %g", SETTINGS, "/etc/heterofleet/agent.key", UNIT_FILE, f"{OPT}/releases/{other}"]
    facts += [f"{OPT}/current/heterofleet-agent", "/var/lib/heterofleet/agent"]
    modes = ["600", "600", "644", "755", "755", "700"]
    assert node.run(facts).stdout.splitlines() == [f"{mode} 0 0" for mode in modes]
    assert stage.site.property("UnitFileState") == "enabled"
    left = node.sh(f"ls -A {OPT} {OPT}/releases/* /etc/heterofleet /etc/systemd/system")
    assert [name for name in left.split() if name.endswith(("new", "undo"))] == []


def test_force_keeps_what_the_operator_wrote_and_moves_strange_files_aside(stage: Updating) -> None:
    stage.pair()
    node = stage.site.node
    node.put(SETTINGS, node.get(SETTINGS).decode() + "max_tasks: 9\n", 0o600)
    assert stage.quick().returncode == 0
    # Settings and link are lost; both are still in the release's folder.
    node.sh(f"echo '- no settings' >{SETTINGS}; rm {OPT}/current; mkdir {OPT}/current; echo mine >{OPT}/current/file")
    done = stage.force()
    assert done.returncode == 0, done.stderr
    assert "max_tasks: 9\n" in node.get(SETTINGS).decode()
    assert node.sh(f"cat {OPT}/current.set-aside-*/file") == "mine"
    assert node.sh(f"cat {SETTINGS}.set-aside-*") == "- no settings"
    assert "it is /opt/heterofleet/current.set-aside-" in done.stderr


def test_force_where_nothing_ran_says_so_when_the_new_agent_does_not_report(stage: Updating) -> None:
    stage.site.uninstall("--purge", "--yes")
    bare = snapshot(stage.site.node)
    stage.offer("exits")
    done = stage.force("--key-file", KEY)
    assert done.returncode == 7, done.stderr
    assert "no agent ran before, and none runs now" in done.stderr
    assert changed(bare, snapshot(stage.site.node)) == []


def test_a_file_that_may_not_change_is_named_with_the_way_out(stage: Updating) -> None:
    here, _ = stage.pair()
    before = stage.installation()
    stage.site.node.run(["chattr", "+i", SETTINGS])
    try:
        done = stage.force("--mgmt-addr", "192.0.2.1")
    finally:
        stage.site.node.run(["chattr", "-i", SETTINGS])
    assert done.returncode == 8, done.stderr
    assert f"chattr -ia {SETTINGS}" in done.stderr
    assert "the agent from before runs again" in done.stderr
    stage.runs(here)
    assert {**stage.installation(), "lists": ""} == {**before, "lists": ""}


def test_what_quick_refuses_and_says(stage: Updating) -> None:
    first, newer = stage.pair()
    node, before = stage.site.node, stage.installation()

    def refused(code: int, said: str, *words: str) -> None:
        done = stage.quick(*words)
        assert done.returncode == code, done.stdout + done.stderr
        assert said in done.stdout + done.stderr

    refused(0, f"dry run: would go from {first} to {newer}", "--dry-run")
    refused(6, "wanted version 9.9", "--version", "9.9")
    refused(8, "there is no earlier release", "--rollback")
    refused(2, "there is no release 1.0-none-00000000 here", "--rollback", "1.0-none-00000000")
    refused(2, "an earlier release comes with its settings", "--rollback", "--version", "0.1.0")
    refused(0, f"{first} runs already", "--rollback", first)
    node.put("/root/wrong", "another-key-0123456789", 0o600)
    refused(3, "refuses the key", "--key-file", "/root/wrong")
    with front(stage.site.plane.url, offset=8) as mirror:
        listing = json.loads((stage.site.plane.builds_dir / "manifest.json").read_text())
        mirror.answers["/static/agent/manifest.json"] = Answer(200, json.dumps({**listing, "dirty": True}).encode())
        refused(6, "hand out different builds", "--mirror", mirror.url)
        refused(6, "which no commit describes", "--server", mirror.url)
        refused(6, "which no commit describes", "--server", mirror.url, "--yes")
        refused(0, f"to {newer[:-9]}-dirty-{newer[-8:]}", "--server", mirror.url, "--allow-dirty", "--dry-run")
    assert stage.installation() == before
    stage.runs(first)


def test_a_build_comes_from_a_mirror_that_agrees(stage: Updating) -> None:
    _, newer = stage.pair()
    with front(stage.site.plane.url, offset=8) as mirror:
        path, content = stage.served_file()
        mirror.answers[path] = Answer(200, content)
        done = stage.quick("--mirror", mirror.url)
        assert done.returncode == 0, done.stderr
        assert path in mirror.paths()
        # The key goes to the control plane only.
        assert all("x-api-key" not in one.headers for one in mirror.seen)
    stage.runs(newer)


def test_three_releases_stay_with_what_they_were_unpacked_to(stage: Updating) -> None:
    here, other = stage.pair()
    node = stage.site.node
    for number in (1, 2, 3):
        node.sh(
            f"cp -a {OPT}/releases/{here} {OPT}/releases/0.0.{number}-old-00000000; "
            f"touch -d '-{10 - number} days' {OPT}/releases/0.0.{number}-old-00000000; "
            f"mkdir -p {OPT}/cache/user_code/0/stale{number}"
        )
    assert stage.quick().returncode == 0
    assert set(node.sh(f"ls {OPT}/releases").split()) == {here, other, "0.0.3-old-00000000"}
    assert node.sh(f"ls {OPT}/cache/user_code/0 | grep stale || :") == ""
    back = stage.quick("--rollback")
    assert back.returncode == 0, back.stderr
    stage.runs(here)
