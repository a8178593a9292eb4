"""Moments at which a roll-out is cut short: seen on a node, so that a cut falls where it is meant to."""

from __future__ import annotations

from tests.e2e.roles.ansible import Run
from tests.lab import LabError, Node

_LINK = """
was=$(readlink /opt/heterofleet/current)
end=$(($(date +%s) + 240))
while [ "$(date +%s)" -lt "$end" ]; do
    [ "$(readlink /opt/heterofleet/current)" = "$was" ] || exit 0
    sleep 0.02
done
exit 1
"""
# The new agent is started, and nobody can have heard it yet: it takes longer to import itself.
_BEAT = """
was=$(systemctl show -p MainPID --value heterofleet-agent)
end=$(($(date +%s) + 240))
while [ "$(date +%s)" -lt "$end" ]; do
    now=$(systemctl show -p MainPID --value heterofleet-agent)
    [ "$now" = "$was" ] || [ "$now" = 0 ] || exit 0
    sleep 0.02
done
exit 1
"""
MOMENTS = {"link switch": _LINK, "first beat": _BEAT}

# What Ansible runs there now: the Python whose program comes on its standard input. By its id, and nothing else.
_KILL = """
for folder in /proc/[0-9]*; do
    words=$(tr '\\0' ' ' <"$folder/cmdline" 2>/dev/null)
    case $words in *python*' -IB - ') kill -9 "${folder#/proc/}" ;; esac
done
"""


def wait_for_moment(node: Node, moment: str) -> None:
    """Returns in the very moment, while the run goes on."""
    done = node.run(["sh", "-c", MOMENTS[moment]], check=False, timeout=300)
    if done.returncode != 0:
        raise LabError(f"{node.name}: the moment did not come: {moment}")


def cut(run: Run, how: str, nodes: list[Node]) -> None:
    """``how``: "interrupt" (Ctrl-C), "kill" (the controller is gone), "kill all" (what runs on the hosts, too)."""
    if how == "interrupt":
        run.interrupt()
    else:
        run.kill()
    if how == "kill all":
        for node in nodes:
            node.run(["sh", "-c", _KILL], check=False)
