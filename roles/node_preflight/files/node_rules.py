"""What the looks at the nodes mean: facts in, findings out, one small function a subject. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import installed_rules
from finding import Finding
from probe import Probe

from runtime.protocol.names import node_id_from_hostname

SKEW_S = 30
DOCKER_MIN_MIB = 2048
"""What the agent leaves free where the engine keeps its data (``disk_min_free_mib``)."""
UNPACKED = 8
"""A release, the one before and what is unpacked of both, in sizes of the file that is fetched."""
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
ESCALATION = "privilege escalation"
"""In Ansible's words when a host was reached, and the user did not become root in time."""
HEARD = ("online", "unreachable")


@dataclass(frozen=True)
class Seen:
    """One host: the raw probe, the facts of the look (None: there was none, ``trouble`` says why), its address of the
    control plane and the variables that are ours."""

    host: str
    probe: Probe
    look: Optional[Mapping[str, Any]]
    trouble: str = ""
    server_url: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Here:
    """What the controller knows: ids of control planes by address, their nodes (None: not asked), sizes of builds in
    bytes by architecture (None: none are needed)."""

    control_planes: Mapping[str, str]
    nodes: Mapping[str, Sequence[Mapping[str, Any]]]
    builds: Optional[Mapping[str, int]]


def node_findings(seen: Sequence[Seen], here: Here) -> list[Finding]:
    """Of all hosts, first each for itself and then what two of them must not share."""
    found: list[Finding] = []
    for one in seen:
        found += _of_one(one, here)
    found += _one_machine_twice(seen)
    found += _one_id_twice(seen)
    return found


def _of_one(seen: Seen, here: Here) -> Iterator[Finding]:
    reached = list(_reached(seen))
    yield from reached
    if seen.look is None:
        return
    if seen.look["uid"] != 0:
        # What this user may not see would be found missing.
        yield from _root(seen, seen.look, here)
        return
    for rule in (_python, _systemd, _architecture, _engine, _disk, _control_plane, _clock, _node_id):
        yield from rule(seen, seen.look, here)
    yield from installed_rules.findings(seen.host, seen.look)


def _reached(seen: Seen) -> Iterator[Finding]:
    """Whether anything could be seen at all, and if not, why."""
    probe = seen.probe
    if probe.unreachable and ESCALATION not in probe.trouble:
        yield Finding(seen.host, "SSH", probe.trouble or "no answer", "a connection", _way_in(probe.trouble))
    elif not probe.answered:
        yield Finding(
            seen.host, "sudo", probe.trouble or "no answer of a shell", "a shell as root",
            "let this user become root (ansible_become_password, or sudo without one)",
        )  # fmt: skip
    elif probe.python is None:
        yield Finding(
            seen.host, "Python", probe.found_python or "none", f"Python 3.9 to 3.14 on {probe.path}",
            "install one, for example the package python3 (or python3.11)",
        )  # fmt: skip
        if probe.uid != 0:
            yield from _root(seen, {"uid": probe.uid, "user": f"user {probe.uid}"}, None)
    elif seen.look is None:
        yield Finding(
            seen.host, "look", seen.trouble or "no answer", "the facts of this node",
            f"run {probe.python} on this node by hand: it may be damaged",
        )  # fmt: skip


def _way_in(trouble: str) -> str:
    """What to do about a connection that was not made, by the words of SSH."""
    if "IDENTIFICATION HAS CHANGED" in trouble:
        return "if this host was set up anew, forget its old host key (ssh-keygen -R ADDRESS) and accept the new one"
    if "Host key verification failed" in trouble or "host key is known" in trouble:
        return "accept its host key: ssh to it once by hand, compare the fingerprint, say yes"
    if "Permission denied" in trouble:
        return "let it know your key: ssh-copy-id USER@ADDRESS; else correct ansible_user or the key that is used"
    return "look at address, user and key of this host: ssh by hand shows more"


def _root(seen: Seen, look: Mapping[str, Any], _here: Optional[Here]) -> Iterator[Finding]:
    if look["uid"] != 0:
        yield Finding(
            seen.host, "root", f"the user {look['user']}", "root",
            "connect as root, or set ansible_become: true for this host",
        )  # fmt: skip


def _python(seen: Seen, look: Mapping[str, Any], _here: Here) -> Iterator[Finding]:
    if look["lacks"]:
        yield Finding(
            seen.host, "Python", f"{look['python']} without {', '.join(look['lacks'])}", "all of Python's own modules",
            "install the full package (python3, not python3-minimal)",
        )  # fmt: skip


def _systemd(seen: Seen, look: Mapping[str, Any], _here: Here) -> Iterator[Finding]:
    if not look["systemd"]:
        yield Finding(
            seen.host, "systemd", "no /run/systemd/system", "a host that systemd started",
            "the agent is a service of systemd; start this host with it, or take it out of the group nodes",
        )  # fmt: skip


def _architecture(seen: Seen, look: Mapping[str, Any], here: Here) -> Iterator[Finding]:
    arch = ARCHITECTURES.get(look["machine"])
    if arch is None:
        yield Finding(
            seen.host, "architecture", look["machine"], "x86_64 or aarch64", "there is no build for this machine"
        )
    elif here.builds is not None and arch not in here.builds:
        yield Finding(
            seen.host, "architecture", f"{arch}; builds are there for {', '.join(here.builds) or 'none'}",
            f"a build for {arch}", f"heterofleet artifacts build --arch {arch}",
        )  # fmt: skip


def _engine(seen: Seen, look: Mapping[str, Any], _here: Here) -> Iterator[Finding]:
    """A node that has or had an agent stays in the fleet whatever its engine does: its upgrade needs none."""
    engine = look["engine"]
    if engine["state"] in ("answers", "elsewhere"):
        return
    settings = seen.told.get("agent_settings") or {}
    without = isinstance(settings, Mapping) and settings.get("process_driver") is True
    here = look["installed"]
    refuses = not without and not (here["whole"] or here["current"] or here["unit"])
    if engine["state"] == "silent":
        yield Finding(
            seen.host, "Docker", f"no answer on {engine['at']}: {engine['why']}", "an engine that answers",
            "look at systemctl status docker, and start it", refuses,
        )  # fmt: skip
    else:
        yield Finding(
            seen.host, "Docker", "no Docker Engine", "an engine that answers",
            "install it (the role docker_engine does), or set agent_settings: {process_driver: true}", refuses,
        )  # fmt: skip


def _disk(seen: Seen, look: Mapping[str, Any], here: Here) -> Iterator[Finding]:
    places, engine_root = look["places"], look["engine"].get("root")
    opt = places["/opt/heterofleet"]
    needed = (UNPACKED * max((here.builds or {"": 0}).values(), default=0) >> 20) + 1
    if here.builds is not None and opt["free_mib"] < needed:
        yield Finding(
            seen.host, "disk", f"{opt['free_mib']} MiB free at /opt/heterofleet", f"{needed} MiB", "make room there"
        )
    if opt["noexec"]:
        yield Finding(
            seen.host, "disk", "/opt/heterofleet on a file system mounted noexec", "one that programs start from",
            "mount -o remount,exec, and correct /etc/fstab",
        )  # fmt: skip
    read_only = [path for path in sorted(places) if path != engine_root and places[path]["read_only"]]
    if read_only:
        yield Finding(
            seen.host, "disk", f"{read_only[0]} on a file system mounted read-only", "one that can be written",
            "mount -o remount,rw; when the kernel has done that by itself, look at its disk first",
        )  # fmt: skip
    if opt["files_left"] is not None and opt["files_left"] < 1000:
        yield Finding(
            seen.host,
            "disk",
            f"{opt['files_left']} files left at /opt/heterofleet",
            "1000",
            "make room for files there",
        )
    if engine_root and places[engine_root]["free_mib"] < DOCKER_MIN_MIB:
        free = places[engine_root]["free_mib"]
        yield Finding(
            seen.host, "disk", f"{free} MiB free at {engine_root}", f"{DOCKER_MIN_MIB} MiB",
            "make room: below it the agent pulls no image", refuses=False,
        )  # fmt: skip


def _control_plane(seen: Seen, look: Mapping[str, Any], here: Here) -> Iterator[Finding]:
    said, url = look["control_plane"], seen.server_url
    ours = here.control_planes.get(url)
    if said["state"] == "unreachable":
        yield Finding(
            seen.host, "control plane", said["why"], f"an answer of {url} to this node",
            "look at routes, firewalls and proxies between the two (agent_settings: {proxy: ...} names one)",
        )  # fmt: skip
    elif said["state"] != "not asked" and ours is not None and said["id"] != ours:
        yield Finding(
            seen.host, "control plane", f"another one at {url} ({said['id']})", f"the controller's ({ours})",
            "the address leads elsewhere from this node: look at its DNS, /etc/hosts and routes",
        )  # fmt: skip
    elif said["state"] == "key refused":
        yield Finding(
            seen.host, "key", f"{url} refuses the key (401)", "the system key of that control plane",
            "write the right key into the file of fleet_api_key_file that holds for this host",
        )  # fmt: skip


def _clock(seen: Seen, look: Mapping[str, Any], _here: Here) -> Iterator[Finding]:
    skew = look["control_plane"].get("skew_s")
    if skew is not None and abs(skew) > SKEW_S:
        yield Finding(
            seen.host, "clock", f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the control plane",
            f"at most {SKEW_S} s", "set up time synchronisation (timedatectl set-ntp true)", refuses=False,
        )  # fmt: skip


def node_id_of(seen: Seen) -> Optional[str]:
    """The id that this node's agent will have: given, in its settings, stored, else from the host name."""
    if seen.look is None:
        given = seen.told.get("agent_node_id")
        return given if isinstance(given, str) else None
    known = seen.look["identity"]
    words = (seen.told.get("agent_node_id"), known["configured"], known["stored"])
    return next((str(word) for word in words if word), node_id_from_hostname(known["hostname"]))


def _node_id(seen: Seen, look: Mapping[str, Any], here: Here) -> Iterator[Finding]:
    """Whether the control plane knows another instance by this id."""
    wanted, identity = node_id_of(seen), look["identity"]
    holder = next((one for one in here.nodes.get(seen.server_url, ()) if one.get("id") == wanted), None)
    if holder is None or holder.get("instance_id") in (None, identity["instance_id"]):
        return
    name, state = holder.get("hostname"), holder.get("state")
    if state in HEARD:
        yield Finding(
            seen.host, "node_id", f"{wanted} held by {name}, which is {state}", "an id that no other node has",
            "give this host another agent_node_id, or stop that agent",
        )  # fmt: skip
    elif name != identity["hostname"]:
        yield Finding(
            seen.host, "node_id", f"{wanted} last held by {name}, which is {state}", "an id that is free",
            f"if this host replaces it: heterofleet nodes release {wanted}", refuses=False,
        )  # fmt: skip


def _one_machine_twice(seen: Sequence[Seen]) -> Iterator[Finding]:
    machines: dict[str, list[str]] = defaultdict(list)
    for one in seen:
        machine = one.look["identity"]["machine"] if one.look else None
        if machine:
            machines[machine].append(one.host)
    for names in machines.values():
        for name in names if len(names) > 1 else ():
            others = ", ".join(other for other in names if other != name)
            yield Finding(
                name, "machine", f"the same machine as {others}", "one name for each machine",
                "remove one of the names; a clone needs an identity of its own (rm /etc/machine-id; "
                "systemd-machine-id-setup)",
            )  # fmt: skip


def _one_id_twice(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Two hosts that will have one id: for the two that the inventory gives it to, the settings say so."""
    ids: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        node_id = node_id_of(one)
        if node_id:
            ids[node_id].append(one)
    for node_id, holders in ids.items():
        if len(holders) == 1 or all(one.told.get("agent_node_id") for one in holders):
            continue
        for one in holders:
            others = ", ".join(other.host for other in holders if other is not one)
            yield Finding(
                one.host, "node_id", f"{node_id}, which {others} would have, too", "an id that no other node has",
                "give the hosts ids of their own in agent_node_id",
            )  # fmt: skip
