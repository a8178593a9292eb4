"""`heterofleet server accept-restore`: what it shows, asks, does, and leaves alone."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.restore.planes import Speaker, World, is_status, submit, task
from tests.integration.server_core.plane import Agent, Plane, wait_until
from tests.lab.control_plane import HETEROFLEET

UID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


@contextlib.contextmanager
def put_back(world: World, *speakers: Speaker) -> Iterator[Plane]:
    """A control plane whose database was copied before these nodes saw a hundred changes more."""
    with world.serving() as plane:
        for speaker in speakers:
            speaker.beat(plane)
        submit(plane, "old", node_id="nowhere")
        # What was heard is in the copy.
        wait_until(lambda: len(world.rows("SELECT 1 FROM nodes WHERE facts IS NOT NULL")) == len(speakers), "facts")
        world.copy()
    world.put_back()
    with world.serving() as plane:
        for speaker in speakers:
            speaker.seen += 100
        yield plane


def revision(world: World) -> int:
    return int(world.rows("SELECT revision FROM control_plane")[0][0])


def test_in_the_ordinary_state_there_is_nothing_to_accept(world: World) -> None:
    with world.serving():
        shown = world.accept()
        assert (shown.exit_code, "nothing to accept" in shown.stdout) == (0, True)
        assert world.accepted()["nothing_to_do"] is True
    assert world.accept("--dry-run").exit_code == 0, "also while no server runs"


def test_it_is_shown_asked_for_and_done_once(world: World) -> None:
    a = Speaker("gpu-a")
    with put_back(world, a) as plane:
        assert a.beat(plane)["lost"]["from"] == revision(world)
        a.holds("lost", UID, 2, assigned=[a.card()])
        a.beat(plane)
        dry = world.accept("--dry-run")
        assert dry.exit_code == 0 and "lost" in dry.stdout and "adopt" in dry.stdout
        assert "token" not in dry.output
        declined = world.accept(answer="n\n")
        assert declined.exit_code == 8
        assert world.accept().exit_code == 8, "nobody there to answer"
        assert plane.call("GET", "/readyz").body["rolled_back"]["on"], "nothing was done"

        accepted = world.accept(answer="y\n")
        assert accepted.exit_code == 0, accepted.output
        wait_until(lambda: not plane.call("GET", "/readyz").body["rolled_back"]["on"], "the server knows")
        made = is_status(plane, "lost", "running")
        assert (made["uid"], made["attempt"], made["node_id"]) == (UID, 2, "gpu-a")
        assert [card["uuid"] for card in made["gpus_assigned"]] == ["GPU-a-gpu-a"]
        assert [warning["code"] for warning in made["warnings"]] == ["restored"]
        assert world.rows("SELECT gpu_uuid, uid, attempt, releasing FROM gpu_allocations") == [
            ("GPU-a-gpu-a", UID, 2, 0)
        ]
        codes = [event["code"] for event in plane.events("database_rolled_back")]
        assert codes == ["entered", "accepted"]
        before = revision(world)
        assert before > a.seen + 100_000
        again = world.accepted()
        assert (again["nothing_to_do"], revision(world)) == (True, before)

        answer = a.beat(plane)
        assert "lost" not in answer, "its beat still told what it had seen, and that is settled"
        assert [intent["uid"] for intent in answer["intents"]] == [UID]
        assert a.put(plane, "lost", 2, "running", "completed", exit_code=0).status == 200
        assert world.rows("SELECT * FROM gpu_allocations") == []


def test_nothing_is_placed_claimed_or_ended_meanwhile(world: World) -> None:
    """A task that waited at the time of the copy may have run since."""
    a = Speaker("gpu-a")
    with world.serving() as plane:
        a.beat(plane)
        submit(plane, "given")
        is_status(plane, "given", "scheduled")
        world.copy()
    world.put_back()
    with world.serving() as plane:
        a.seen += 100
        assert a.beat(plane)["lost"] is not None
        assert a.agent is not None
        listed = plane.call("GET", "/api/v1/tasks?node_id=gpu-a&status=scheduled", None, a.agent.headers)
        assert listed.body["tasks"] == []
        refused = a.put(plane, "given", 1, "scheduled", "running")
        assert (refused.status, refused.code) == (503, "database_rolled_back")
        for path in ("GET /api/v1/tasks/x", "POST /api/v1/tasks/x/stop", "DELETE /api/v1/tasks/x"):
            method, _, where = path.partition(" ")
            answer = plane.operator(method, where)
            assert (answer.status, answer.code) == (503, "database_rolled_back"), path
        submit(plane, "waits")
        why = plane.operator("GET", "/api/v1/tasks/waits/why").body
        assert "accept-restore" in why["summary"] and not why["fits"]
        text = plane.operator("GET", "/metrics").raw.decode()
        assert "heterofleet_database_rolled_back 1.0" in text
        a.beat(plane)
        done = world.accepted()
        assert done["requeue"] == ["given"], "the node says that it does not have it"
        a.beat(plane)
        assert is_status(plane, "given", "scheduled")["attempt"] > 1000
        assert a.put(plane, "given", task(plane, "given")["attempt"], "scheduled", "running").status == 200


def test_no_word_about_a_node_ends_or_moves_its_work_meanwhile(world: World) -> None:
    """Silence, a goodbye, a new holder of its name: what this database says of its tasks is no ground for anything."""
    witness, quiet, leaves = Speaker("gpu-a"), Speaker("gpu-quiet"), Speaker("gpu-leaves")
    limits = {"unreachable_after_beats": 1, "lost_after_beats": 2, "offline_grace_s": 1}
    with world.serving(heartbeat_interval_s=60) as plane:
        for speaker in (witness, quiet, leaves):
            speaker.beat(plane)
        for name, node, wish in (("fails", quiet, "fail"), ("moves", quiet, "reschedule"), ("given", leaves, "wait")):
            submit(plane, name, node_id=node.node_id, on_node_lost=wish, max_attempts=3)
            is_status(plane, name, "scheduled")
            if node is quiet:
                assert node.put(plane, name, 1, "scheduled", "running").status == 200
        world.copy()
    world.put_back()
    with world.serving(**limits) as plane:
        witness.seen += 100
        witness.beat(plane)
        leaves.beat(plane, leaving=True)
        wait_until(lambda: plane.operator("GET", "/api/v1/nodes/gpu-leaves").body["state"] == "offline", "it left")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 3.5, "long enough to be lost")
        assert plane.operator("GET", "/api/v1/nodes/gpu-quiet").body["state"] == "unreachable"
        heir = Speaker("gpu-quiet")
        # Up for long, as another boot: a copy of the machine, to which its claims do not pass.
        heir.agent = Agent(plane, "gpu-quiet", "of-a-copy", boot_id="another-boot", fingerprint="machine-gpu-quiet")
        wait_until(lambda: heir.try_beat(plane) == 200, "the name is another instance's")
        wishes = [(one, task(plane, one)["status"], task(plane, one)["attempt"]) for one in ("fails", "moves", "given")]
        assert wishes == [("fails", "running", 1), ("moves", "running", 1), ("given", "scheduled", 1)]


def test_a_node_that_was_not_heard_is_named_and_keeps_what_it_has(world: World) -> None:
    """Unknown is not none: its tasks are not taken for deleted when it comes at last."""
    a, late = Speaker("gpu-a"), Speaker("gpu-late")
    with put_back(world, a, late) as plane:
        a.beat(plane)
        a.beat(plane)
        refused = world.accept("--yes", "-o", "json")
        assert refused.exit_code == 6 and "gpu-late" in refused.stderr
        assert [node["told"] for node in json.loads(refused.stdout)["nodes"]] == [True, False]
        assert plane.call("GET", "/readyz").body["rolled_back"]["on"]
        world.accepted("--force")
        wait_until(lambda: not plane.call("GET", "/readyz").body["rolled_back"]["on"], "accepted")

        late.holds("lost", UID, assigned=[late.card()])
        assert late.beat(plane)["lost"] is not None, "it has seen what is lost, and is asked"
        late.beat(plane)
        assert late.agent is not None
        unknown = plane.call("GET", "/api/v1/tasks/lost", None, late.agent.headers)
        assert (unknown.status, unknown.code) == (503, "database_rolled_back")
        assert plane.call("GET", "/api/v1/tasks/lost", None, a.agent.headers).code == "task_not_found"  # type: ignore[union-attr]
        assert "gpu-late" in plane.call("GET", "/readyz").body["rolled_back"]["text"]
        submit(plane, "new", node_id="gpu-late")
        began = time.monotonic()
        wait_until(lambda: late.beat(plane) and time.monotonic() - began > 2.5, "time enough to place it")
        assert task(plane, "new")["status"] == "pending", "its cards may be taken"
        before = revision(world)
        assert world.accepted()["adopted"] == ["lost"]
        assert revision(world) < before + 100, "numbers went far above once"
        is_status(plane, "lost", "running")
        late.beat(plane)
        assert is_status(plane, "new", "scheduled")["node_id"] == "gpu-late"
        assert "lost" not in late.beat(plane)


def test_a_late_node_stays_known_over_a_restart_of_the_server(world: World) -> None:
    late = Speaker("gpu-late")
    with put_back(world, late, Speaker("gpu-a")) as plane:
        Speaker("gpu-a", seen=late.seen).beat(plane)
        world.accepted("--force")
    with world.serving() as plane:
        late.beat(plane)
    with world.serving() as plane:
        late.holds("lost", UID)
        assert late.beat(plane)["lost"] is not None
        late.beat(plane)
        assert world.accepted()["adopted"] == ["lost"]


def test_what_is_to_be_stopped_is_stopped_and_tells_its_end(world: World) -> None:
    a = Speaker("gpu-a")
    other = UID.replace("1", "2")
    with put_back(world, a) as plane:
        a.beat(plane)
        a.holds("keep", UID)
        a.holds("drop", other)
        a.beat(plane)
        assert world.accept("--yes", "--stop", "nothing-like-it").exit_code == 2
        assert world.accept("--yes", "--stop", "drop", "--adopt", "drop").exit_code == 2
        done = world.accepted("--stop", "drop")
        assert (done["adopted"], done["stopped"]) == (["keep"], ["drop"])
        wait_until(lambda: a.beat(plane)["intents"], "the node hears of them")
        wishes = {intent["task_id"]: intent["desired"] for intent in a.beat(plane)["intents"]}
        assert wishes == {"keep": "run", "drop": "stop"}
        assert a.put(plane, "drop", 1, "running", "stopped").status == 200


def test_an_id_that_another_task_has_by_now_is_not_taken_from_it(world: World) -> None:
    a = Speaker("gpu-a")
    with put_back(world, a) as plane:
        a.beat(plane)
        a.holds("twice", UID, assigned=[a.card()])
        a.beat(plane)
        submit(plane, "twice", node_id="nowhere")
        refused = world.accept("--yes")
        assert refused.exit_code == 6 and "twice" in refused.output
        done = world.accepted("--force")
        assert done["adopted"] == []
        assert world.rows("SELECT gpu_uuid, uid, releasing FROM gpu_allocations") == [("GPU-a-gpu-a", UID, 1)]
        assert task(plane, "twice")["uid"] != UID


@pytest.mark.parametrize("told", [True, False])
def test_a_card_whose_holder_ended_in_the_lost_time_is_its_heirs(world: World, told: bool) -> None:
    """``told`` False: the node knows nothing of the first holder any more."""
    a = Speaker("gpu-a")
    with world.serving() as plane:
        a.beat(plane)
        submit(plane, "first", gpus={"count": 1, "uuids": ["GPU-a-gpu-a"]})
        first = is_status(plane, "first", "scheduled")
        assert a.put(plane, "first", 1, "scheduled", "running").status == 200
        wait_until(lambda: len(world.rows("SELECT 1 FROM nodes WHERE facts IS NOT NULL")) == 1, "facts")
        world.copy()
    world.put_back()
    with world.serving() as plane:
        a.seen += 100
        a.beat(plane)
        if told:
            a.holds("first", first["uid"], state="concluded", status="completed", exit_code=0, from_status="running")
        a.holds("heir", UID, assigned=[a.card()])
        a.beat(plane)
        assert sorted(world.accepted()["adopted"]) == (["first", "heir"] if told else ["heir"])
        assert world.rows("SELECT gpu_uuid, uid FROM gpu_allocations") == [("GPU-a-gpu-a", UID)]
        assert a.put(plane, "first", 1, "running", "completed", exit_code=0).status == 200
        assert world.rows("SELECT gpu_uuid, uid FROM gpu_allocations") == [("GPU-a-gpu-a", UID)]


def test_who_fell_asleep_or_woke_in_the_lost_time_stays_so(world: World) -> None:
    """The node tells it again before anybody accepts; the operator's wish is lost, and must not undo it afterwards."""
    a = Speaker("gpu-a")
    with world.serving() as plane:
        a.beat(plane)
        for name in ("sleeper", "woken"):
            submit(plane, name)
            is_status(plane, name, "scheduled")
            assert a.put(plane, name, 1, "scheduled", "running").status == 200
        assert plane.operator("POST", "/api/v1/tasks/woken/sleep").status == 202
        assert a.put(plane, "woken", 1, "running", "sleeping").status == 200
        world.copy()
    world.put_back()
    with world.serving() as plane:
        a.seen += 100
        a.beat(plane)
        assert a.put(plane, "sleeper", 1, "running", "sleeping").status == 200
        assert a.put(plane, "woken", 1, "sleeping", "running").status == 200
        a.beat(plane)
        world.accepted()
        assert (task(plane, "sleeper")["desired"], task(plane, "woken")["desired"]) == ("sleep", "run")


def test_killed_half_way_it_can_be_run_again(world: World) -> None:
    a = Speaker("gpu-a")
    with put_back(world, a) as plane:
        a.beat(plane)
        a.holds("lost", UID)
        a.beat(plane)
        with contextlib.closing(sqlite3.connect(world.database, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")  # so that it is under way, and cannot finish
            child = subprocess.Popen(
                [HETEROFLEET, "server", "accept-restore", "--config", str(world.config), "--yes"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            wait_until(lambda: _has_open(child.pid, world.database), "it is at work")
            child.send_signal(signal.SIGKILL)
            child.communicate()
            holder.execute("ROLLBACK")
        assert plane.call("GET", "/readyz").body["rolled_back"]["on"]
        assert world.accepted()["adopted"] == ["lost"]
        is_status(plane, "lost", "running")


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(entry.readlink() == path for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_a_locked_database_is_said_and_nothing_is_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.server.store.engines.BUSY_TIMEOUT_MS", 200)
    a = Speaker("gpu-a")
    with put_back(world, a) as plane:
        a.beat(plane)
        a.beat(plane)
        with contextlib.closing(sqlite3.connect(world.database, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            refused = world.accept("--yes")
            holder.execute("ROLLBACK")
        assert refused.exit_code in (69, 73) and "heterofleet server:" in refused.stderr
        assert plane.call("GET", "/readyz").body["rolled_back"]["on"]


def test_events_after_the_restore_are_read_by_who_followed_them_before(world: World) -> None:
    a = Speaker("gpu-a")
    with world.serving() as plane:
        a.beat(plane)
        world.copy()
        for number in range(5):
            submit(plane, f"t-{number}", node_id="nowhere")
        newest = plane.operator("GET", "/api/v1/events?limit=1000").body["events"][-1]["id"]
    world.put_back()
    with world.serving() as plane:
        a.seen += 100
        a.beat(plane)
        following = plane.operator("GET", f"/api/v1/events?after={newest}").body["events"]
        assert following[0]["code"] == "entered"
        submit(plane, "later", node_id="nowhere")
        following = plane.operator("GET", f"/api/v1/events?after={following[-1]['id']}").body["events"]
        assert [event["detail"] for event in following] == ["created"]


def test_an_orphan_that_tells_no_token_is_adopted_by_its_claim(world: World) -> None:
    """An agent of another release names the container and no more; the claim's report brings the token."""
    a = Speaker("gpu-a")
    with put_back(world, a) as plane:
        a.beat(plane)
        a.health = [{"task_id": "lost", "uid": UID, "attempt": 2, "phase": "running", "container_id": "c"}]
        a.orphans = [{"container_id": "c", "task_id": "lost", "gpus": []}]
        a.lost = None  # it does not know that it is asked
        a.beat(plane)
        a.lost = None
        assert world.accepted()["adopted"] == ["lost"]
        assert is_status(plane, "lost", "running")["attempt"] == 2
        other = Speaker("gpu-b", seen=a.seen)
        other.beat(plane)
        assert other.put(plane, "lost", 2, "running", "completed", exit_code=0).status in (403, 409)
        assert a.put(plane, "lost", 2, "running", "failed", exit_code=4, reason="exited").status == 200
        assert task(plane, "lost")["exit_code"] == 4


def test_what_lost_its_secrets_is_never_run_a_second_time(world: World) -> None:
    a = Speaker("gpu-a")
    with put_back(world, a) as plane:
        a.beat(plane)
        a.holds("lost", UID, spec={"name": "lost", "image": "i:1", "kind": "training", "max_attempts": 3})
        a.holds("unstarted", UID.replace("1", "2"), state="claimed")
        a.beat(plane)
        done = world.accepted()
        assert (done["adopted"], done["stopped"]) == (["lost"], ["unstarted"])
        is_status(plane, "lost", "running")
        refused = plane.operator("POST", "/api/v1/tasks/lost/reschedule")
        assert (refused.status, refused.code) == (409, "illegal_transition")
        assert a.put(plane, "lost", 1, "running", "failed", reason="host_restarted").status == 200
        assert task(plane, "lost")["status"] == "failed", "though three starts were allowed"


def test_a_claim_that_had_not_started_goes_on_where_its_secrets_are_known(world: World) -> None:
    a = Speaker("gpu-a")
    with put_back(world, a) as plane:
        a.beat(plane)
        old = task(plane, "old")
        a.holds("old", old["uid"], state="claimed")
        a.beat(plane)
        assert world.accepted()["adopted"] == ["old"]
        now = is_status(plane, "old", "running")
        assert (now["desired"], now["attempt"], now["warnings"]) == ("run", 1, [])


def test_a_person_may_say_yes_to_what_is_not_known(world: World) -> None:
    a, late = Speaker("gpu-a"), Speaker("gpu-late")
    with put_back(world, a, late) as plane:
        a.beat(plane)
        a.beat(plane)
        asked = world.accept(answer="y\n")
        assert asked.exit_code == 0 and "unknown is not none" in asked.stderr
        wait_until(lambda: not plane.call("GET", "/readyz").body["rolled_back"]["on"], "accepted")
