"""An update that ends by a signal or a power cut at some point: the node goes on, and the next run tidies up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.distribution.site import KEY, UNIT, Site
from tests.integration.distribution.updating import OPT, SETTINGS, Updating
from tests.lab import Lab
from tests.lab.control_plane import ControlPlane


@pytest.fixture(scope="module")
def stage(lab: Lab, plane: ControlPlane, kinds: dict[str, Path]) -> Iterator[Updating]:
    site = Site(lab.node(1), plane)
    site.uninstall("--purge", "--yes")
    site.node.put(KEY, plane.key, 0o600)
    yield Updating(site, lab, kinds)
    Updating(site, lab, kinds).offer("first")
    site.uninstall("--purge", "--yes")


POINTS = {
    "all is written down": f"[ -e {OPT}/.undo/complete ]",
    "the build is there": f"[ -e {OPT}/releases/$other/heterofleet-agent ]",
    "the link is new": f'[ "$(readlink {OPT}/current)" = releases/$other ]',
    "the agent starts": f"[ -e {OPT}/.undo/touched ]",
}


@pytest.mark.parametrize(
    ("point", "signal"),
    [
        *((point, "KILL") for point in ("all is written down", "the link is new")),
        ("the build is there", "TERM"),
        *(("the agent starts", signal) for signal in ("KILL", "TERM")),
    ],
)
def test_cut_at(stage: Updating, point: str, signal: str) -> None:
    first, newer = stage.pair()
    node, before = stage.site.node, stage.installation()
    url = f"{stage.site.plane.url}/update-agent-quick.sh"
    node.run(["curl", "-fsSLo", "/root/update-agent-quick.sh", url])
    code = node.sh(
        f"other={newer}\nsh /root/update-agent-quick.sh --mgmt-addr 192.0.2.77 >/root/out 2>&1 & child=$!\n"
        f"until {POINTS[point]} || ! kill -0 $child 2>/dev/null; do :; done\n"
        f"kill -{signal} $child; wait $child || echo $?"
    )
    if signal == "TERM":
        assert code == "9", node.sh("cat /root/out")
        stage.runs(first)
        assert {**stage.installation(), "lists": ""} == {**before, "lists": ""}
        assert node.run(["test", "-e", f"{OPT}/.undo"], check=False).returncode == 1
        return
    assert code == "137"
    # Whatever was left: the link leads to a program, and the node has an agent after a boot.
    assert node.run(["test", "-x", f"{OPT}/current/heterofleet-agent"]).returncode == 0
    assert stage.site.property("UnitFileState") == "enabled"
    done = stage.quick("--rollback", first) if point == "the agent starts" else stage.quick()
    assert done.returncode == 0, done.stderr
    assert "an earlier run was cut short" in done.stdout
    stage.runs(first if point == "the agent starts" else newer)
    assert "192.0.2.77" not in node.get(SETTINGS).decode()


# A program in the place of rm that ends the script when it has removed the half of what was written down.
CUT_RM = f"""#!/bin/sh
for word in "$@"; do
    case $word in
        {OPT}/.undo*) [ ! -d "$word/files" ] || {{ /bin/rm -rf "$word/files"; kill -KILL "$PPID"; exit; }} ;;
    esac
done
exec /bin/rm "$@"
"""


def test_cut_while_it_forgets_what_it_wrote_down(stage: Updating) -> None:
    """With the copies gone and the list of them still there, the next run took settings, unit and link for new."""
    stage.level("first")
    newer = stage.offer("newer")
    before, node = stage.installation(), stage.site.node
    node.put("/root/cut/rm", CUT_RM, 0o755)
    node.run(["curl", "-fsSLo", "/root/update-agent-quick.sh", f"{stage.site.plane.url}/update-agent-quick.sh"])
    code = node.sh("PATH=/root/cut:$PATH sh /root/update-agent-quick.sh >/root/out 2>&1 || echo $?", timeout=150)
    assert code == "137", node.sh("cat /root/out")
    stage.runs(newer)
    node.run(["systemctl", "stop", UNIT])  # whom nobody hears, the next run does not spare
    done = stage.quick()
    assert done.returncode == 0, done.stderr
    stage.runs(stage.current())
    lines = {line for line in before[SETTINGS].splitlines() if not line.startswith("written_for")}
    assert lines <= set(node.get(SETTINGS).decode().splitlines())
    assert node.sh(f"find {OPT} -maxdepth 1 -name '.*' -mindepth 1") == ""


def test_an_agent_that_worked_since_is_not_taken_back(stage: Updating) -> None:
    """The installation was cut when its agent ran: settings, identity and results went with the next update."""
    site, node = stage.site, stage.site.node
    site.uninstall("--purge", "--yes")
    stage.offer("first")
    node.run(["curl", "-fsSLo", "/root/install-agent.sh", f"{site.plane.url}/install-agent.sh"])
    running = "systemctl show -p MainPID heterofleet-agent | grep -qx MainPID=0"
    node.sh(
        f"sh /root/install-agent.sh --key-file {KEY} >/root/out 2>&1 & child=$!\n"
        f"until [ -e {OPT}/.undo/touched ] && ! {running}; do sleep 0.05; done; kill -KILL $child; wait $child || :\n"
        "until heterofleet-agent status --json --wait 2 >/dev/null 2>&1; do sleep 0.1; done"
    )
    was = site.status()
    newer = stage.offer("newer")
    done = stage.quick()
    assert done.returncode == 0, done.stderr
    assert "its agent is at work and stays" in done.stdout
    stage.runs(newer)
    assert site.status()["instance_id"] == was["instance_id"]
