"""Who is who: one row a situation, with whole agents (processes) against a real control plane.

=====================================  =================================================================================
situation                              end: the server; the first machine (A); the second (B)
=====================================  =================================================================================
clone_both_alive                       A's, one event instance_cloned; A's task runs on; B is a new instance, refused
clone_with_a_start_under_way           A's; A goes on pulling; B never pulls or starts what was under way
clone_with_copied_containers           A's; A's task runs on; B reports nothing of the copies
clone_after_silence                    A's again once A speaks; B, which passed for a reboot, is a new instance, refused
clone_made_while_off                   whoever spoke first holds the name; the other is a new instance, refused
clone_takes_a_spare_name               A's; B (defaulted, holds nothing) is <hostname>-<6 hex>
reimage_empty                          the new instance's, one node_replaced
reimage_with_running_container         the new instance's, claim and container with it: not restarted, ends as told
reimage_card_still_held                a card that waits for its container is not given away before that is gone
reimage_containers_gone                the new instance's; the task ends with end_unknown
other_hardware_idle                    B's by itself once A is silent
other_hardware_with_claims             A's until `nodes release`; then B's, which judges nothing of A; A's again later
renamed_host                           the same node, instance and task; the new hostname is shown
two_with_one_name                      the first's; handed on when it leaves or is silent, never back and forth
copied_state_folder                    A's, its task runs on; B a new instance without A's claims, with a spare name
stale_run                              A's with run known + 1; what was reported is not reported again
restart_between_two_beats_of_a_pair    as clone_both_alive, though the server was restarted in between
restart_before_a_takeover              refused first: A had no chance to speak; B's after the silence
two_servers_clone                      the same through two processes on one PostgreSQL
two_servers_first_beats                two first beats of one name at two processes: one holds it, one is refused
template_without_state                 two nodes, each registered once
same_hostname                          the second is <hostname>-<6 hex>; it keeps that over a restart
same_hostname_holding_work             the second keeps its name and waits: a container of it is there
renamed_in_settings_with_container     exit 78 with the words; --adopt-node-id starts, the container runs on
renamed_in_settings_with_outbox        exit 78 with the words; the old name delivers
renamed_in_settings_idle               the new node; the old one is left, and can be deleted
takeover_during_leaving_idle           B's at once
takeover_during_leaving_with_claims    A's until it returns; another machine waits for the release
torn_identity                          the new instance's, node id, claim and container as before
unwritable_state                       exit 73; the server hears nothing
hostnames                              each registers, polls and is shown as it is; ids are ASCII
hostname_of_a_spare                    three nodes
database_from_before_the_takeover      the new instance's again after the silence; its container runs on; rolled_back
moved_server                           both nodes as before, no new binding; a result that waited is delivered
deleted_while_alive                    refused while heard; after it a new node with the same instance
no_fingerprint_on_either_side          B waits for the release: two unknowns are not the same machine
firmware_readable_later                the same instance and node; a new image is known as the same machine
released_holder_returns                A's again when nobody took the name
=====================================  =================================================================================

In all of them the refused agent stays up and says why in its status; no name passes to and fro: how often a name
was bound is counted over many beats.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.protocol.names import is_node_id
from tests.integration.identity.machine import LOST_AFTER_S, Servers
from tests.integration.identity.rows import Place, Row, Running
from tests.integration.postgres import Postgres
from tests.integration.waiting import until
from tests.lab import Lab, places

ADOPTED_S = 120
"""Where a first look does not find all that it takes, the next reconciliation comes a minute later."""
ROWS: dict[str, Row] = {}
CASES: dict[str, str] = {}


def row(case: str | None = None) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS[function.__name__] = function
        if case:
            CASES[function.__name__] = case
        return function

    return add


def settled(at: Place, node_id: str, bindings: int, *machines: object) -> None:
    """The name is bound as often as said, and stays so over four more beats of each machine."""
    for machine in machines:
        machine.beats(4)  # type: ignore[attr-defined]
    assert at.servers.bindings(node_id) == bindings, at.servers.events(node_id)


# -- clones -----------------------------------------------------------------------------------------------------------


@row()
def clone_both_alive(at: Place) -> None:
    """A virtual machine was cloned while its agent ran, state folder and all."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, before = at.at_work(1, a.node_id, "forever")
    first = a.instance
    b = at.clone(a, "b", engine=at.engine(2)).start()
    until("the copy is another instance", lambda: b.instance != first)
    b.refused("node_id_in_use", f"{at.name}-a", "heard")
    settled(at, a.node_id, 1, a, b)
    assert at.servers.node(a.node_id)["instance_id"] == a.instance == first
    assert a.status()["registered"] and [held["task_id"] for held in a.status()["tasks"]] == [task]
    assert at.servers.events(a.node_id).count("node_state:instance_cloned") == 1
    assert at.running(1, task) == before and at.running(2, task) == []
    assert at.servers.claim(task) == first and at.servers.task(task)["status"] == "running"
    assert b.status()["tasks"] == [] and b.status()["undelivered"] == 0
    shown = b.run_here("status")
    assert shown.returncode == 1 and "node_id_in_use" in shown.stdout and "registered  no" in shown.stdout


@row()
def clone_with_a_start_under_way(at: Place) -> None:
    """A task was being pulled when the machine was cloned: it must not start twice."""
    with socket.create_server((places.HOST_ADDRESS, 0)) as silent:
        a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
        image = f"{places.HOST_ADDRESS}:{silent.getsockname()[1]}/slow:1"
        task = at.servers.submit(a.node_id, "forever", image=image)
        until("the pull begins", lambda: any("pull" in held for held in a.status().get("tasks", [])))
        b = at.clone(a, "b", engine=at.engine(2)).start()
        phases: set[str] = set()

        def cloned() -> bool:
            phases.update(held["phase"] for held in b.status().get("tasks", []))
            return b.instance != a.instance

        until("the copy is another instance", cloned)
        b.refused("node_id_in_use")
        b.beats(3)
        assert phases <= {"claimed"}, phases
        assert b.status()["tasks"] == []
        assert at.servers.claim(task) == a.instance and at.servers.task(task)["attempt"] == 1


@row()
def clone_with_copied_containers(at: Place) -> None:
    """The clone has the disk of the engine too: its containers look like one's own that a reboot ended."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, (container,) = at.at_work(1, a.node_id, "forever")
    b = at.clone(a, "b", engine=at.engine(2))
    labels = json.loads(at.node(1).docker("inspect", "-f", "{{json .Config.Labels}}", container[0]).stdout)
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    made = at.node(2).docker("create", *words, at.lab.task_image, "exit", "0").stdout.strip()
    journal = (b.state / "journal.db").read_bytes()
    assert container[0].encode() in journal or (b.state / "journal.db-wal").exists()
    at.node(2).docker("start", made)
    b.start()
    until("the copy is another instance", lambda: b.instance != a.instance)
    b.refused("node_id_in_use")
    settled(at, a.node_id, 1, a, b)
    assert at.running(1, task) == [container]
    assert at.servers.task(task)["status"] == "running" and at.servers.claim(task) == a.instance
    assert at.node(2).docker("ps", "-aq", "--no-trunc").stdout.split().count(made) == 1, "nobody judges the copy"


@row()
def clone_after_silence(at: Place) -> None:
    """The clone was started while the original was cut off: until that speaks it looks like its reboot."""
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    first = a.instance
    b = at.clone(a, "b")
    a.freeze()
    at.servers.state(a.node_id, "lost")
    b.start().registered()
    assert b.instance == first
    a.thaw()
    until("the copy is another instance", lambda: b.instance != first)
    b.refused("node_id_in_use")
    a.registered()
    settled(at, a.node_id, 1, a, b)
    assert at.servers.node(a.node_id)["instance_id"] == first == a.instance


@row()
def clone_made_while_off(at: Place) -> None:
    """The disk was copied while the machine was off, and both are started."""
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    first = a.instance
    a.stop()
    b = at.clone(a, "b")
    a.boot()
    a.start().registered()
    b.start()
    until("the copy is another instance", lambda: b.instance != first)
    b.refused("node_id_in_use")
    a.registered()
    settled(at, a.node_id, 1, a, b)
    assert a.instance == first and at.servers.node(a.node_id)["instance_id"] == first


@row()
def clone_takes_a_spare_name(at: Place) -> None:
    """The name came from the hostname, and the clone holds nothing: it is a node of its own."""
    a = at.machine("a").start().registered()
    b = at.clone(a, "b").start()
    until("the copy took another name", lambda: b.node_id != a.node_id)
    b.registered()
    assert re.fullmatch(f"{at.name}-a-[0-9a-f]{{6}}", b.node_id) and b.instance != a.instance
    settled(at, a.node_id, 1, a, b)
    assert at.servers.bindings(b.node_id) == 1
    a.registered()


# -- new images and new hardware --------------------------------------------------------------------------------------


@row()
def reimage_empty(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    first = a.instance
    a.kill()
    a.wipe()
    a.boot()
    a.start().registered()
    assert a.instance != first
    settled(at, a.node_id, 2, a)
    assert at.servers.events(a.node_id).count("node_replaced") == 1


@row()
def reimage_with_running_container(at: Place) -> None:
    """The state folder was lost; the engine's containers were not."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, before = at.at_work(1, a.node_id, "forever", gpus={"count": 1, "vendor": "virtual"})
    a.kill()
    a.wipe()
    a.start().registered()
    until("the container is adopted", lambda: [held["task_id"] for held in a.status()["tasks"]] == [task], ADOPTED_S)
    settled(at, a.node_id, 2, a)
    assert at.running(1, task) == before and at.servers.allocations(a.node_id) == [False]
    assert at.servers.claim(task) == a.instance
    assert at.servers.call("POST", f"/tasks/{task}/stop")[0] == 202
    assert at.servers.is_status(task, "stopped")["attempt"] == 1
    until("the card is free", lambda: at.servers.allocations(a.node_id) == [])


@row()
def reimage_card_still_held(at: Place) -> None:
    """Nobody knows the task any more, and its container still holds the card."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    card = {"count": 1, "vendor": "virtual"}
    task, ((container, _),) = at.at_work(1, a.node_id, "forever", gpus=card)
    a.kill()
    assert at.servers.call("DELETE", f"/tasks/{task}?force=true")[0] == 204
    a.wipe()
    a.start().registered()
    second = at.servers.submit(a.node_id, "forever", gpus=card)
    a.beats(8)
    assert at.servers.allocations(a.node_id) == [True]
    assert at.servers.task(second)["status"] == "pending" and at.running(1, task)
    at.node(1).docker("rm", "-f", container)
    at.servers.is_status(second, "running")


@row()
def reimage_containers_gone(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, ((container, _),) = at.at_work(1, a.node_id, "forever")
    a.kill()
    at.node(1).docker("rm", "-f", container)
    a.wipe()
    a.boot()
    a.start().registered()
    ended = at.servers.is_status(task, "failed")
    assert (ended["reason"], ended["attempt"]) == ("end_unknown", 1)


@row()
def other_hardware_idle(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    b = at.machine("b", node_id=f"{at.name}-n").start().refused("node_id_in_use", f"{at.name}-a", "heard")
    a.kill()
    b.registered()
    settled(at, b.node_id, 2, b)


@row()
def other_hardware_with_claims(at: Place) -> None:
    """The machine was replaced; whether the old one is gone only people know."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    name = a.node_id
    task, before = at.at_work(1, name, "forever", gpus={"count": 1, "vendor": "virtual"})
    b = at.machine("b", node_id=name, engine=at.engine(2)).start().refused("node_id_in_use", "heard")
    cli = at.servers.planes[0].cli
    assert cli("nodes", "release", name, "--yes", check=False).returncode == 6
    assert at.servers.call("POST", f"/nodes/{name}/release")[1]["code"] == "node_online"
    a.freeze()
    b.refused("node_id_in_use", "1 claim(s)", f"heterofleet nodes release {name}")
    assert cli("nodes", "release", name, check=False).returncode == 8, "nobody said yes"
    b.beats(3)
    assert at.servers.node(name)["instance_id"] == a.instance
    released = cli("nodes", "release", name, "--yes", "-o", "json")
    assert json.loads(released.stdout)["instance_id"] is None
    b.registered()
    settled(at, name, 2, b)
    held = at.servers.task(task)
    assert (held["status"], held["attempt"], held["node_id"]) == ("running", 1, name)
    assert held["node_lost_since"] is not None and at.servers.claim(task) == a.instance
    assert at.servers.allocations(name) == [False] and at.running(1, task) == before
    a.thaw()
    a.refused("node_id_in_use", f"{at.name}-b")
    a.beats(3)
    assert [one["task_id"] for one in a.status()["tasks"]] == [task] and at.running(1, task) == before
    b.stop()
    a.registered()
    until("its task goes on", lambda: at.servers.task(task)["node_lost_since"] is None)
    assert at.running(1, task) == before
    settled(at, name, 3, a)
    assert "operator_action:node_released" in at.servers.events(name)


@row("FC-013")
def renamed_host(at: Place) -> None:
    """A rename made a second node, or only some views followed it."""
    a = at.machine("a", engine=at.engine(1)).start().registered()
    name, instance = a.node_id, a.instance
    task, before = at.at_work(1, name, "forever")
    for hostname, restart in ((f"{at.name}-b", True), (f"{at.name}-c", False)):
        a.name(hostname)
        if restart:
            a.stop()
            a.start().registered()
        until("the new hostname is shown", lambda h=hostname: at.servers.node(name).get("hostname") == h)
        assert at.servers.node(name)["host"]["hostname"] == hostname
        a.beats(2)
    assert at.servers.names(at.name) == [name] and (a.node_id, a.instance) == (name, instance)
    assert at.running(1, task) == before and at.servers.task(task)["status"] == "running"
    assert at.servers.bindings(name) == 1


# -- one name for two -------------------------------------------------------------------------------------------------


@row()
def two_with_one_name(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    b = at.machine("b", node_id=f"{at.name}-n").start().refused("node_id_in_use", f"{at.name}-a", "another node id")
    settled(at, a.node_id, 1, a, b)
    a.stop()
    b.registered()
    a.start().refused("node_id_in_use", f"{at.name}-b")
    settled(at, a.node_id, 2, a, b)
    b.kill()
    a.registered()
    settled(at, a.node_id, 3, a)


@row()
def copied_state_folder(at: Place) -> None:
    """The state folder went to another machine by tar, to save the installation there."""
    a = at.machine("a", engine=at.engine(1)).start().registered()
    task, before = at.at_work(1, a.node_id, "forever")
    b = at.machine("b", engine=at.engine(2))
    a.copy_state(b)
    b.start()
    until("it took a name of its own", lambda: b.node_id != a.node_id)
    b.registered()
    assert b.instance != a.instance and re.fullmatch(f"{at.name}-b-[0-9a-f]{{6}}", b.node_id)
    assert b.status()["tasks"] == [] and b.status()["run"] == 1
    settled(at, a.node_id, 1, a, b)
    assert at.running(1, task) == before and at.servers.claim(task) == a.instance
    assert at.servers.bindings(b.node_id) == 1


@row()
def stale_run(at: Place) -> None:
    """The state folder was put back from a backup: run and journal are of the day before."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    ended, ((going, _),) = at.at_work(1, a.node_id, "on-term", "3", "forever")
    a.stop()
    shutil.copytree(a.state, a.folder / "backup")
    at.node(1).docker("kill", "-s", "TERM", going)
    a.start().registered()
    at.servers.is_status(ended, "failed")
    task, before = at.at_work(1, a.node_id, "forever")
    a.stop()
    a.start().registered()
    a.stop()
    instance, known = a.instance, a.identity()["run"]
    a.wipe()
    shutil.copytree(a.folder / "backup", a.state)
    a.start().registered()
    assert a.instance == instance and a.status()["run"] == known + 1
    until("the container is adopted", lambda: [held["task_id"] for held in a.status()["tasks"]] == [task], ADOPTED_S)
    settled(at, a.node_id, 1, a)
    assert at.running(1, task) == before and at.servers.task(task)["attempt"] == 1
    assert (at.servers.task(ended)["status"], at.servers.task(ended)["exit_code"]) == ("failed", 3)


# -- the server goes and comes ----------------------------------------------------------------------------------------


def pair_over(at: Place, between: Callable[[], None], **second: int) -> None:
    """A clone is heard once as a reboot; then ``between``; then the original speaks again.

    The clone's engine answers only after its first beats: with one it would tell, rightly for a reboot, that the
    container is gone, and how far it gets with that before it is frozen is luck."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, before = at.at_work(1, a.node_id, "forever")
    first = a.instance
    engine = at.folder / "late.sock"
    b = at.clone(a, "b", engine=f"unix://{engine}", **second)
    a.freeze()
    b.start().registered()
    assert b.instance == first, "it looks like a reboot"
    b.freeze()
    engine.symlink_to(at.engine(2).removeprefix("unix://"))
    between()
    a.thaw()
    until("the original is heard", lambda: "node_state:instance_cloned" in at.servers.events(a.node_id))
    b.thaw()
    until("the copy is another instance", lambda: b.instance != first)
    b.refused("node_id_in_use")
    a.registered()
    settled(at, a.node_id, 1, a, b)
    assert a.instance == first and at.running(1, task) == before and at.running(2, task) == []
    assert at.servers.claim(task) == first and at.servers.task(task)["status"] == "running"


def restart_between_two_beats_of_a_pair(at: Place) -> None:
    """What the server knew of the boots was in its memory only: after a restart the original was taken for the copy."""
    pair_over(at, at.servers.restart)


def two_servers_clone(at: Place) -> None:
    """Original and copy speak to different processes, neither of which hears both."""
    pair_over(at, lambda: None, server=1)


def two_servers_first_beats(at: Place) -> None:
    """Both processes saw a free name, and one of the two agents got an error of the database."""
    for turn in range(2):
        name = f"{at.name}-{turn}"
        pair = [at.machine(f"{turn}-{side}", node_id=name, server=side) for side in (0, 1)]
        for machine in pair:
            machine.start()
        until("one holds the name", lambda pair=pair: any(machine.status().get("registered") for machine in pair))
        pair.sort(key=lambda machine: not machine.status().get("registered"))
        pair[1].refused("node_id_in_use")
        settled(at, name, 1, *pair)
        for machine in pair:
            machine.kill()


def restart_before_a_takeover(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    b = at.machine("b", node_id=f"{at.name}-n").start().refused("node_id_in_use")
    a.kill()
    at.servers.restart()
    started = time.monotonic()
    until("it holds the name", lambda: at.servers.node(b.node_id)["instance_id"] == b.instance)
    assert time.monotonic() - started >= LOST_AFTER_S - 1, "the holder was given time to speak"
    b.registered()
    settled(at, b.node_id, 2, b)


def database_from_before_the_takeover(at: Place) -> None:
    """The database was put back to a time when the former instance held the name."""
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, before = at.at_work(1, a.node_id, "forever")
    plane = at.servers.planes[0]
    plane.stop()
    files = [path for path in plane.state_dir.glob("heterofleet.db*") if "serving" not in path.name]
    kept = {path: path.read_bytes() for path in files}
    plane.start()
    a.kill()
    a.wipe()
    a.start().registered()
    until("the container is adopted", lambda: [held["task_id"] for held in a.status()["tasks"]] == [task], ADOPTED_S)
    a.beats(2)
    plane.stop()
    for path in plane.state_dir.glob("heterofleet.db*"):
        if "serving" not in path.name:
            path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    plane.start()
    until("the former holder has lost the name", lambda: at.servers.bindings(a.node_id) == 2)
    a.registered()
    a.beats(4)
    assert at.servers.bindings(a.node_id) == 2
    assert at.running(1, task) == before and at.servers.claim(task) == a.instance
    assert at.servers.call("GET", "/events?kind=database_rolled_back")[1]["events"], "the server knows"


def moved_server(at: Place) -> None:
    """The control plane moved to another folder and port with its database; the nodes were led there."""
    a = at.machine("a", node_id=f"{at.name}-a", engine=at.engine(1)).start().registered()
    b = at.machine("b", node_id=f"{at.name}-b").start().registered()
    task = at.servers.submit(a.node_id, "forever")
    ended = at.servers.submit(a.node_id, "on-term", "7", "forever")
    for one in (task, ended):
        at.servers.is_status(one, "running")
    ((going, _),) = until("the container runs", lambda: at.running(1, ended))
    before = until("the container runs", lambda: at.running(1, task))
    instances = [a.instance, b.instance]
    at.servers.stop()
    at.node(1).docker("kill", "-s", "TERM", going)
    old_listen = at.servers.planes[0].listen
    at.servers.move(26)
    at.servers.start()
    a.stop()
    a.configure(a.configured)  # the install script run again: new settings, a restart
    a.start().registered()
    assert at.servers.is_status(ended, "failed")["exit_code"] == 7, "the result waited for the new server"
    assert not b.status()["registered"]
    at.servers.stop()
    at.servers.move(27, listen=old_listen)  # the name leads to the new host now: nothing is done on the node
    at.servers.start()
    b.registered()
    assert [a.instance, b.instance] == instances
    assert [at.servers.bindings(machine.node_id) for machine in (a, b)] == [1, 1]
    a.stop()
    a.configure(a.configured)
    a.start().registered()
    assert at.running(1, task) == before and at.servers.task(task)["status"] == "running"


# -- templates and hostnames ------------------------------------------------------------------------------------------


@row("FC-012")
def template_without_state(at: Place) -> None:
    """Two machines of one template shared machine-id and firmware UUID: one node flipped between them, or they
    enrolled for ever."""
    a = at.machine("a").start().registered()
    b = at.clone(a, "b", state=False)
    b.name(f"{at.name}-b")
    b.start().registered()
    settled(at, a.node_id, 1, a, b)
    assert at.servers.names(at.name) == [f"{at.name}-a", f"{at.name}-b"] == [a.node_id, b.node_id]
    assert at.servers.bindings(b.node_id) == 1 and a.instance != b.instance
    assert a.identity()["fingerprint"] == b.identity()["fingerprint"]


@row()
def same_hostname(at: Place) -> None:
    a = at.machine("a", hostname=f"{at.name}-host").start().registered()
    b = at.machine("b", hostname=f"{at.name}-host").start()
    until("it took another name", lambda: (b.state / "identity.json").exists() and b.node_id != a.node_id)
    b.registered()
    spare = b.node_id
    assert re.fullmatch(f"{at.name}-host-[0-9a-f]{{6}}", spare)
    b.stop()
    b.start().registered()
    settled(at, a.node_id, 1, a, b)
    assert b.node_id == spare and at.servers.names(at.name) == [f"{at.name}-host", spare]


@row()
def same_hostname_holding_work(at: Place) -> None:
    """It holds a container of that name: to take another one would leave it behind."""
    b = at.machine("b", hostname=f"{at.name}-host", engine=at.engine(2)).start().registered()
    task, before = at.at_work(2, b.node_id, "forever")
    b.freeze()
    at.servers.state(b.node_id, "lost")
    assert at.servers.call("POST", f"/nodes/{b.node_id}/release")[0] == 200
    a = at.machine("a", hostname=f"{at.name}-host").start().registered()
    b.thaw()
    b.refused("node_id_in_use", f"{at.name}-host")
    b.beats(4)
    assert b.node_id == a.node_id == f"{at.name}-host" and at.running(2, task) == before
    assert [held["task_id"] for held in b.status()["tasks"]] == [task]
    a.stop()
    b.registered()
    assert at.running(2, task) == before


@row("FC-014")
def hostnames(at: Place) -> None:
    """A name with accents or Chinese characters was put into a header, and the client crashed."""
    long = f"{at.name}-" + "x" * 200
    names = [f"节点-é-{at.name}", "", "!!!", long, f"{at.name}.Example_ORG", b"\xff\xfe-b-" + at.name.encode()]
    machines = [at.machine(f"m{number}", hostname=name).start() for number, name in enumerate(names)]
    for machine, name in zip(machines, names, strict=True):
        machine.registered()
        assert is_node_id(machine.node_id)
        machine.beats(1)
        shown = at.servers.node(machine.node_id)
        wanted = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        assert (shown["hostname"] or "") == wanted == (shown["host"]["hostname"] or "")
        listed = at.servers.planes[0].cli("nodes", "show", machine.node_id, "-o", "json")
        assert (json.loads(listed.stdout)["hostname"] or "") == wanted
        assert at.servers.bindings(machine.node_id) == 1
    assert machines[0].node_id == at.name
    for machine in machines[1:3]:
        assert re.fullmatch("node-[0-9a-f]{6}", machine.node_id)
    assert len(machines[3].node_id) == 63


@row()
def hostname_of_a_spare(at: Place) -> None:
    """A host is really called what another agent made up as its spare name."""
    a = at.machine("a", hostname=f"{at.name}-host").start().registered()
    b = at.machine("b", hostname=f"{at.name}-host").start()
    until("it took another name", lambda: (b.state / "identity.json").exists() and b.node_id != a.node_id)
    b.registered()
    c = at.machine("c", hostname=b.node_id).start()
    until("it took another name", lambda: (c.state / "identity.json").exists() and c.node_id != b.node_id)
    c.registered()
    assert re.fullmatch(f"{b.node_id}-[0-9a-f]{{6}}", c.node_id)
    settled(at, b.node_id, 1, a, b, c)
    assert len(at.servers.names(at.name)) == 3


# -- the settings say another name ------------------------------------------------------------------------------------


@row()
def renamed_in_settings_with_container(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-old", engine=at.engine(1)).start().registered()
    old, new = a.node_id, f"{at.name}-new"
    task, before = at.at_work(1, old, "forever")
    a.stop()
    a.configure(new)
    refused = a.run_here("run")
    assert refused.returncode == 78
    assert all(word in refused.stderr for word in (new, old, "--adopt-node-id", "1 claim(s)"))
    (a.state / "journal.db").unlink()  # also when only the engine knows of it
    refused = a.run_here("run")
    assert refused.returncode == 78 and "1 container(s)" in refused.stderr
    a.start("--adopt-node-id").refused("instance_mismatch", f"heterofleet nodes release {old}")
    until(f"{old} is gone", lambda: at.servers.node(old)["state"] in ("offline", "lost"))
    assert at.servers.call("POST", f"/nodes/{old}/release")[0] == 200
    a.registered()
    assert a.node_id == new
    settled(at, new, 1, a)
    assert at.running(1, task) == before, "given up is not ended"
    held = at.servers.task(task)
    assert (held["status"], held["node_id"], held["attempt"]) == ("running", old, 1)
    assert held["node_lost_since"] is not None
    told = a.status()["foreign"]
    assert before[0][0] in [one["container_id"] for one in told or []], "it is listed, and holds its cards"


@row()
def renamed_in_settings_with_outbox(at: Place) -> None:
    """A result that the server does not have yet would have nobody to report it."""
    a = at.machine("a", node_id=f"{at.name}-old", engine=at.engine(1)).start().registered()
    task, ((container, _),) = at.at_work(1, a.node_id, "on-term", "5", "forever")
    url = json.loads((a.folder / "agent.yaml").read_text())["server_url"]
    a.stop()
    settings = (a.folder / "agent.yaml").read_text()
    (a.folder / "agent.yaml").write_text(settings.replace(url, "http://127.0.0.1:9"))
    at.node(1).docker("kill", "-s", "TERM", container)
    a.start()
    until("the result waits", lambda: a.status().get("undelivered") == 1)
    a.stop()
    a.configure(f"{at.name}-new")
    refused = a.run_here("run")
    assert refused.returncode == 78 and "1 undelivered result(s)" in refused.stderr
    a.configure(f"{at.name}-old")
    a.start().registered()
    assert at.servers.is_status(task, "failed")["exit_code"] == 5
    until("nothing is left", lambda: a.status()["undelivered"] == 0 and not a.status()["tasks"])
    a.stop()
    a.configure(f"{at.name}-new")
    a.start().registered()
    assert a.node_id == f"{at.name}-new"


@row()
def renamed_in_settings_idle(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-old").start().registered()
    instance = a.instance
    a.stop()
    a.configure(f"{at.name}-new")
    a.start().registered()
    assert (a.node_id, a.instance) == (f"{at.name}-new", instance)
    settled(at, f"{at.name}-new", 1, a)
    left = at.servers.node(f"{at.name}-old")
    assert left["instance_id"] is None and "node_state:renamed" in at.servers.events(f"{at.name}-old")
    at.servers.state(f"{at.name}-old", "offline")
    assert at.servers.planes[0].cli("nodes", "delete", f"{at.name}-old", "--yes").returncode == 0
    assert at.servers.names(at.name) == [f"{at.name}-new"]


# -- leaving ----------------------------------------------------------------------------------------------------------


@row()
def takeover_during_leaving_idle(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    a.stop()
    b = at.machine("b", node_id=f"{at.name}-n").start().registered()
    assert at.servers.bindings(b.node_id) == 2
    a.start().refused("node_id_in_use", f"{at.name}-b")
    settled(at, b.node_id, 2, a, b)


@row()
def takeover_during_leaving_with_claims(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, before = at.at_work(1, a.node_id, "forever")
    a.stop()
    b = at.machine("b", node_id=f"{at.name}-n").start().refused("node_id_in_use", "1 claim(s)", "nodes release")
    b.beats(LOST_AFTER_S + 2)
    assert at.servers.node(a.node_id)["instance_id"] == a.instance
    a.start().registered()
    settled(at, a.node_id, 1, a, b)
    assert at.running(1, task) == before and at.servers.task(task)["status"] == "running"


# -- the state folder -------------------------------------------------------------------------------------------------


@row()
def torn_identity(at: Place) -> None:
    a = at.machine("a", engine=at.engine(1)).start().registered()
    name, first = a.node_id, a.instance
    task, before = at.at_work(1, name, "forever")
    a.kill()
    a.name(f"{at.name}-renamed")  # the name must not be made anew from it
    whole = (a.state / "identity.json").read_text()
    (a.state / "identity.json").write_text(whole[: len(whole) // 2])
    a.start().registered()
    assert a.node_id == name and a.instance != first
    settled(at, name, 2, a)
    assert at.running(1, task) == before and at.servers.claim(task) == a.instance
    a.kill()
    (a.state / "identity.json").write_text("")
    a.start().registered()
    settled(at, name, 3, a)
    assert at.servers.call("POST", f"/tasks/{task}/stop")[0] == 202
    at.servers.is_status(task, "stopped")


@row()
def unwritable_state(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n")
    a.state.write_text("a file is in the way")
    ended = a.run_here("run")
    assert ended.returncode == 73 and "state_dir" in ended.stderr
    assert at.servers.node(f"{at.name}-n") == {}


# -- the operator -----------------------------------------------------------------------------------------------------


@row()
def deleted_while_alive(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n").start().registered()
    name, instance = a.node_id, a.instance
    assert at.servers.call("DELETE", f"/nodes/{name}")[1]["code"] == "node_online"
    a.freeze()
    at.servers.state(name, "lost")
    assert at.servers.call("DELETE", f"/nodes/{name}")[0] == 204
    assert at.servers.node(name) == {}
    a.thaw()
    a.registered()
    assert a.instance == instance
    settled(at, name, 2, a)
    at.servers.state(name, "online")


@row()
def released_holder_returns(at: Place) -> None:
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1)).start().registered()
    task, before = at.at_work(1, a.node_id, "forever")
    a.freeze()
    at.servers.state(a.node_id, "lost")
    assert at.servers.call("POST", f"/nodes/{a.node_id}/release")[0] == 200
    assert at.servers.task(task)["node_lost_since"] is not None
    a.thaw()
    a.registered()
    until("its task goes on", lambda: at.servers.task(task)["node_lost_since"] is None)
    settled(at, a.node_id, 2, a)
    assert at.running(1, task) == before and at.servers.claim(task) == a.instance


# -- firmware ---------------------------------------------------------------------------------------------------------


@row()
def no_fingerprint_on_either_side(at: Place) -> None:
    """Hosts of which neither machine-id nor firmware can be read are not all one machine."""
    nothing = {"machine_id": None, "product": "00000000-0000-0000-0000-000000000000"}
    a = at.machine("a", node_id=f"{at.name}-n", engine=at.engine(1), **nothing).start().registered()
    task, before = at.at_work(1, a.node_id, "forever")
    assert a.identity()["fingerprint"] is None
    b = at.machine("b", node_id=f"{at.name}-n", engine=at.engine(2), **nothing).start()
    a.freeze()
    b.refused("node_id_in_use", "1 claim(s)", "nodes release")
    b.beats(4)
    assert at.servers.node(a.node_id)["instance_id"] == a.instance and at.running(1, task) == before


@row()
def firmware_readable_later(at: Place) -> None:
    """The first start came before the machine-id was written, the second without access to the firmware."""
    a = at.machine("a", node_id=f"{at.name}-n", machine_id="uninitialized").start().registered()
    instance = a.instance
    for machine_id, product in (("4" * 32, "kept"), ("4" * 32, None)):
        a.stop()
        a.firmware("machine-id", machine_id)
        if product is None:
            a.firmware("product_uuid", None)
        a.start().registered()
        assert a.instance == instance
    settled(at, a.node_id, 1, a)


# -- running them -----------------------------------------------------------------------------------------------------

ALONE: dict[str, Row] = {
    one.__name__: one
    for one in (
        restart_between_two_beats_of_a_pair,
        restart_before_a_takeover,
        database_from_before_the_takeover,
        moved_server,
    )
}
ON_TWO_SERVERS: dict[str, Row] = {one.__name__: one for one in (two_servers_clone, two_servers_first_beats)}
NUMBERS = {name: number for number, name in enumerate([*ROWS, *ALONE, *ON_TWO_SERVERS])}


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """All rows that are asked for, side by side; those that stop the server have one of their own."""
    asked = {item.callspec.params.get("situation") for item in request.session.items if hasattr(item, "callspec")}
    folder = tmp_path_factory.mktemp("identity")
    shared = Servers("identity", 20)
    shared.start()
    made = [shared]

    def place(name: str) -> Place:
        servers = shared
        if name in ALONE:
            made.append(servers := Servers(f"identity-{name}", 22 + list(ALONE).index(name)))
            servers.start()
        return Place(f"r{NUMBERS[name]:02d}", folder / name, servers, lab)

    running = Running({name: row for name, row in {**ALONE, **ROWS}.items() if name in asked}, place)
    yield running
    running.close()
    for servers in made:
        servers.remove()


@pytest.fixture(scope="module")
def pair(postgres: Postgres) -> Iterator[Servers]:
    with postgres.database() as url:
        two = Servers("identity-pair", 30, count=2, database_url=url.replace("postgresql://", "postgresql+psycopg://"))
        two.start()
        yield two
        two.remove()


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(name, marks=[pytest.mark.case(CASES[name])] if name in CASES else [], id=name)
        for name in [*ROWS, *ALONE]
    ],
)
def test_situation(situation: str, rows: Running) -> None:
    """One row of the table above; what happened is told at its function."""
    rows.result(situation)


@pytest.mark.parametrize("name", ON_TWO_SERVERS)
def test_situation_on_two_servers(name: str, pair: Servers, lab: Lab, tmp_path: Path) -> None:
    """The same with agents that speak to different processes."""
    at = Place(f"r{NUMBERS[name]:02d}", tmp_path, pair, lab)
    try:
        ON_TWO_SERVERS[name](at)
    finally:
        at.close()


def test_the_table_names_every_row() -> None:
    assert __doc__ is not None
    named = re.findall(r"^([a-z][a-z_]+)  ", __doc__, re.M)
    assert named[1:] and set(named) - {"situation"} == {*ROWS, *ALONE, *ON_TWO_SERVERS}
