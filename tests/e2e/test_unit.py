"""The agent as systemd's service: engine restarts, agent restarts, a hung agent, one that cannot start."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterator

import pytest

from runtime.agent.doctor.unit import UNIT
from tests.e2e.socket_watch import put_into
from tests.integration.agent_tasks.stub_registry import StubRegistry
from tests.lab import Node, places, task_image
from tests.lab.process import wait_for

DROP_IN = f"/run/systemd/system/{UNIT}.d/test.conf"
STOP_LIMIT_S = 30
CAP_SYS_RESOURCE = 1 << 24


def shown(node: Node, name: str) -> str:
    return node.run(["systemctl", "show", "-p", name, "--value", UNIT]).stdout.strip()


def status(node: Node) -> dict:
    said = node.run(["heterofleet-agent", "status", "--json"], check=False).stdout
    return json.loads(said) or {}


def started(node: Node, container: str) -> str:
    return node.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}} {{.State.Running}}", container).stdout.strip()


def journal_since(node: Node, cursor: str) -> list[str]:
    words = ["journalctl", "-u", UNIT, "--no-pager", "-o", "cat", "--after-cursor", cursor]
    return node.run(words).stdout.splitlines()


def cursor(node: Node) -> str:
    """The place in the journal that has been reached now."""
    said = node.run(["journalctl", "--no-pager", "-n", "0", "--show-cursor"]).stdout
    return said.rpartition("-- cursor: ")[2].strip()


def of_unit(node: Node) -> dict[str, str]:
    """pid -> command line of every process in the unit's control group."""
    text = node.sh(
        f"group=$(systemctl show -p ControlGroup --value {UNIT}); "
        'for mount in /sys/fs/cgroup /sys/fs/cgroup/systemd; do cat "$mount$group/cgroup.procs" 2>/dev/null || true; '
        "done | sort -u | while read -r pid; do "
        'printf "%s " "$pid"; tr "\\0" " " <"/proc/$pid/cmdline" 2>/dev/null || true; echo; done'
    )
    return dict(line.partition(" ")[::2] for line in text.splitlines())


def zombies(node: Node) -> list[str]:
    return node.sh("ps -eo stat=,pid=,comm= | grep '^Z' || true").splitlines()


@contextlib.contextmanager
def changed_unit(node: Node, *lines: str) -> Iterator[None]:
    """The unit with other limits, so that a test need not wait for the real ones."""
    try:
        node.put(DROP_IN, "\n".join(["[Service]", *lines, ""]))
        node.run(["systemctl", "daemon-reload"])
        node.run(["systemctl", "restart", UNIT])
        yield
    finally:
        node.sh(f"rm -rf {DROP_IN.rpartition('/')[0]}; systemctl daemon-reload; systemctl restart {UNIT}")


def wait_registered(node: Node, seconds: float = 40) -> None:
    wait_for(f"the agent on {node.name} is registered", lambda: status(node).get("registered") or status(node), seconds)


@pytest.fixture
def node(fleet) -> Iterator[Node]:
    one = fleet.lab.nodes[0]
    one.run(["systemctl", "start", UNIT])  # whatever a test before has left
    wait_registered(one)
    yield one


@pytest.mark.case("FC-018")
def test_stopping_docker_does_not_stop_the_agent(fleet, node: Node) -> None:
    """Requires=docker.service: an upgrade of Docker stopped the agents, and nothing started them again. Here the
    agent stays up, says that Docker is away, and resumes by itself."""

    def docker() -> dict:
        return fleet.plane.get(f"/api/v1/nodes/{node.name}")["docker"] or {}

    pid = shown(node, "MainPID")
    try:
        node.stop_engine()
        wait_for("the node says that Docker is away", lambda: docker().get("available") is False or docker(), 30)
        assert docker()["error"]
        assert (shown(node, "ActiveState"), shown(node, "MainPID")) == ("active", pid)
    finally:
        node.start_engine()
    wait_for("the node says that Docker is back", lambda: docker().get("available") is True or docker(), 30)
    fleet.submit("unit-docker-back", "exit", "0", node_id=node.name)
    assert fleet.wait("unit-docker-back", "ended")["status"] == "completed"
    assert shown(node, "MainPID") == pid
    assert shown(node, "NRestarts") == "0"


@pytest.mark.case("FC-066")
def test_a_restart_leaves_the_task_and_ends_the_pull_on_purpose(fleet, node: Node) -> None:
    """The whole control group was killed with the agent: jobs died of an upgrade. Here the container has the same id
    and start time, a pull in progress leaves neither zombie nor stuck request and is asked for again by the next run,
    the stop ends well within the unit's limit, and the server hears that the agent leaves. The task's folder, which
    the agent mounted from within its unit, is in the container before and after."""
    image = task_image.image().plus({"big": secrets.token_bytes(1 << 20)})  # never seen by this engine
    with (
        StubRegistry(image, stall=True, at=(places.HOST_ADDRESS, places.port(8))) as registry,
        trusting(node, registry),
    ):
        slow = f"{registry.address}/unit/slow-{secrets.token_hex(4)}:1"
        node.sh("mkdir -p /srv/unit-stays; echo before >/srv/unit-stays/file")
        volume = {"host": "/srv/unit-stays", "container": "/given"}
        fleet.submit("unit-stays", "forever", node_id=node.name, volumes=[volume])
        fleet.submit("unit-pulls", "exit", "0", node_id=node.name, image=slow)
        fleet.wait("unit-stays", "running")
        wait_for("its container runs", lambda: started(node, "task-unit-stays").endswith("true") or "not yet", 30)
        fleet.wait("unit-pulls", "pulling")
        wait_for("a layer is asked for", lambda: registry.stalled > 0 or "not yet", 30)
        straggler = node.sh("(trap '' TERM; while :; do sleep 1; done) >/dev/null 2>&1 & echo $!")
        put_into(node, UNIT, straggler)
        before, pid, here = started(node, "task-unit-stays"), shown(node, "MainPID"), cursor(node)
        old = of_unit(node)
        assert {pid, straggler} <= set(old)
        assert given(node) == "before"

        began = time.monotonic()
        node.run(["systemctl", "restart", UNIT])
        assert time.monotonic() - began < STOP_LIMIT_S
        said = journal_since(node, here)
        assert not [line for line in said if "timed out" in line], said
        assert any(line.startswith(f"{UNIT}: Deactivated successfully") for line in said), said
        assert shown(node, "MainPID") != pid
        assert not set(old) & set(of_unit(node))
        assert zombies(node) == []
        assert started(node, "task-unit-stays") == before

        wait_registered(node)
        registry.release.set()
        assert fleet.wait("unit-pulls", "ended")["status"] == "completed"

        node.run(["systemctl", "stop", UNIT])
        state = fleet.plane.get(f"/api/v1/nodes/{node.name}")["state"]
        assert state == "offline"  # only a last heartbeat with `leaving` makes it so, and at once
        assert of_unit(node) == {}
        assert started(node, "task-unit-stays") == before
        node.run(["systemctl", "start", UNIT])
        wait_registered(node)
        assert started(node, "task-unit-stays") == before
        node.sh("echo after >/srv/unit-stays/file")
        assert given(node) == "after"
        fleet.plane.cli("tasks", "stop", "unit-stays")
        assert fleet.wait("unit-stays", "ended")["reason"] == "stopped_by_operator"
        node.docker("rmi", "-f", slow)
        node.run(["rm", "-r", "/srv/unit-stays"])


def given(node: Node) -> str:
    """What the running task sees in its folder."""
    return node.docker("exec", "task-unit-stays", "cat", "/given/file").stdout.strip()


@contextlib.contextmanager
def trusting(node: Node, registry: StubRegistry) -> Iterator[None]:
    """The node's engine takes this registry without TLS; told without a restart."""
    path = "/etc/docker/daemon.json"
    former = node.get(path)
    settings = json.loads(former)
    settings["insecure-registries"].append(registry.address)
    try:
        node.put(path, json.dumps(settings))
        node.run(["systemctl", "reload", "docker"])
        trusted = ["info", "-f", "{{json .RegistryConfig.InsecureRegistryCIDRs}}{{json .RegistryConfig.IndexConfigs}}"]
        wait_for("it is trusted", lambda: registry.address in node.docker(*trusted).stdout or "not yet", 20)
        yield
    finally:
        node.put(path, former)
        node.run(["systemctl", "reload", "docker"])


def test_a_hung_agent_is_ended_and_started_again_and_its_task_goes_on(fleet, node: Node) -> None:
    """The watchdog's way, with shorter limits: no word from the agent, so systemd ends it and starts another. No core
    file is left: it would hold the system key."""
    fleet.submit("unit-watched", "forever", node_id=node.name)
    fleet.wait("unit-watched", "running")
    wait_for("its container runs", lambda: started(node, "task-unit-watched").endswith("true") or "not yet", 30)
    before = started(node, "task-unit-watched")
    with changed_unit(node, "WatchdogSec=2", "TimeoutStopSec=2", "RestartSec=1"):
        wait_registered(node)
        pid, here, old = shown(node, "MainPID"), cursor(node), of_unit(node)
        node.sh("ls /core* 2>/dev/null && exit 1 || true")
        node.run(["systemctl", "kill", "--kill-who=main", "--signal=SIGSTOP", UNIT])
        wait_for("another agent runs", lambda: shown(node, "MainPID") not in (pid, "0") or "not yet", 30)
        wait_registered(node)
        assert any("Watchdog timeout" in line for line in journal_since(node, here))
        assert not set(old) & set(of_unit(node))
        assert zombies(node) == []
        assert node.sh("ls /core* 2>/dev/null || true") == ""
        assert started(node, "task-unit-watched") == before
        settled = shown(node, "MainPID")
        # A signal that dumps core is what the watchdog sends to an agent that can still be ended by it.
        node.run(["systemctl", "kill", "--kill-who=main", "--signal=SIGABRT", UNIT])
        wait_for("another agent runs", lambda: shown(node, "MainPID") not in (settled, "0") or "not yet", 30)
        assert node.sh("ls /core* 2>/dev/null || true") == ""
    wait_registered(node)
    fleet.plane.cli("tasks", "stop", "unit-watched")
    fleet.wait("unit-watched", "ended")


def test_an_agent_that_cannot_start_is_tried_for_ever_and_says_why(fleet, node: Node) -> None:
    """systemd gives up on a service after five starts in ten seconds, and a node whose key file came a minute late
    stayed without an agent. Here it is tried again and again, each time with the reason and few words."""
    settings = node.get("/etc/heterofleet/agent.yaml")
    with changed_unit(node, "RestartSec=100ms"):
        here = cursor(node)
        try:
            node.put("/etc/heterofleet/agent.yaml", settings + b"\nnode_idd: typo\n", 0o600)
            node.run(["systemctl", "restart", UNIT], check=False)
            wait_for("seven starts", lambda: int(shown(node, "NRestarts")) >= 7 or shown(node, "NRestarts"), 60)
        finally:
            node.put("/etc/heterofleet/agent.yaml", settings, 0o600)
        said = journal_since(node, here)
        tries = sum("Scheduled restart job" in line for line in said)
        assert tries >= 7
        assert sum("node_idd" in line and "node_id" in line for line in said) >= tries - 1, said
        assert len(said) <= 12 * (tries + 2), said
        wait_registered(node)  # nobody had to start it


def test_what_systemd_shows_of_the_unit(fleet, node: Node) -> None:
    """The unit's text is the template's, systemd has nothing to say against it, and it is in force."""
    words = node.run(["systemd-analyze", "verify", "--man=no", UNIT], check=False)
    assert [line for line in (words.stdout + words.stderr).splitlines() if UNIT in line] == []
    planted = "/run/systemd/system/hf-planted.service"
    node.sh(f"sed 's/^WatchdogSec=/WatchdogSeconds=/' /etc/systemd/system/{UNIT} >{planted}")
    said = node.run(["systemd-analyze", "verify", "--man=no", planted], check=False)
    node.run(["rm", planted])
    assert "WatchdogSeconds" in said.stdout + said.stderr
    wanted = {
        "Restart": "always",
        "KillMode": "mixed",
        "RestartUSec": "5s",
        "TimeoutStopUSec": "30s",
        "WatchdogUSec": "1min",
        "OOMScoreAdjust": "-900",
        "StartLimitIntervalUSec": "0",
        "LimitCORE": "0",
        "Requires": "system.slice sysinit.target",
        "BindsTo": "",
        "NRestarts": "0",
    }
    found = {name: shown(node, name) for name in wanted}
    found["Requires"] = " ".join(sorted(found["Requires"].split(), reverse=True))
    assert {**found, "Requires": set(found["Requires"].split())} == {
        **wanted,
        "Requires": set(wanted["Requires"].split()),
    }
    assert set(shown(node, "SystemCallFilter").removeprefix("~").split()) == {"io_uring_setup", "listen"}
    assert shown(node, "SystemCallFilter").startswith("~")
    pid = shown(node, "MainPID")
    assert node.sh(f"sed -n 's/^Seccomp:\\t//p' /proc/{pid}/status") == "2"
    # Lowering the score needs CAP_SYS_RESOURCE, which a node in a container may lack; systemd then leaves it.
    bound = int(node.sh("sed -n 's/^CapBnd:\\t//p' /proc/1/status"), 16)
    score = "-900" if bound & CAP_SYS_RESOURCE else node.sh("cat /proc/1/oom_score_adj")
    assert node.sh(f"cat /proc/{pid}/oom_score_adj") == score


@pytest.mark.case("FC-063")
def test_systemd_shows_no_secret(fleet, node: Node) -> None:
    """A key in the unit or its environment file was cut at '$', expanded at '%', and shown to every user of the
    machine. Here it is in a file that the agent reads itself, and in no text, argument or variable."""
    key = fleet.plane.key
    pid = shown(node, "MainPID")
    texts = {
        "show": node.run(["systemctl", "show", UNIT]).stdout,
        "cat": node.run(["systemctl", "cat", UNIT]).stdout,
        "status": node.run(["systemctl", "status", "--no-pager", "-l", "-n", "500", UNIT]).stdout,
        "environ": node.sh(f"tr '\\0' '\\n' </proc/{pid}/environ"),
        "processes": json.dumps(of_unit(node)),
        "journal": node.run(["journalctl", "-u", UNIT, "--no-pager"]).stdout,
    }
    assert "heterofleet-agent" in texts["show"] and pid in texts["processes"]
    assert [name for name, text in texts.items() if key in text] == []
    assert not [line for line in texts["environ"].splitlines() if line.startswith("HETEROFLEET_")]
    assert key in node.get("/etc/heterofleet/agent.key").decode()  # the search would find it
    assert node.run(["stat", "-c", "%a %U", "/etc/heterofleet/agent.key"]).stdout.split() == ["600", "root"]


@pytest.mark.case("FC-065")
def test_a_running_agent_does_not_mind_what_happens_to_its_file(fleet, node: Node) -> None:
    """Copying over a running program failed with "text file busy", and stopping it first meant downtime. Here the
    release is overwritten in place, taken away and replaced by another while its agent runs and has to start a child
    anew; the switch is one rename of a link, and the next start takes the new file."""
    release = node.sh("readlink -f /opt/heterofleet/current")
    pid = shown(node, "MainPID")
    try:
        node.sh(
            f"cp -a {release} {release}.kept; cat /bin/true >{release}/heterofleet-agent; rm -r {release}; "
            f"cp -a {release}.kept {release}.next; ln -sfn {release}.next /opt/heterofleet/.next; "
            "mv -fT /opt/heterofleet/.next /opt/heterofleet/current"
        )
        children = [one for one in of_unit(node) if one != pid]
        assert children, "no child that asks NVML"
        node.sh(f"kill -9 {' '.join(children)}")
        wait_for("NVML is asked by a new child", lambda: len(of_unit(node)) > 1 or "not yet", 30)
        beat = status(node)["last_beat_at"]
        wait_for("beats go on", lambda: status(node)["last_beat_at"] != beat or "not yet", 20)
        own = {card["uuid"] for card in node.cards.read()["cards"]}
        seen = fleet.plane.get(f"/api/v1/nodes/{node.name}")["gpus"]
        assert {card["uuid"] for card in seen if card["health"] == "ok"} == own
        assert shown(node, "MainPID") == pid
        node.run(["systemctl", "restart", UNIT])
        wait_registered(node)
        assert shown(node, "MainPID") != pid
    finally:
        node.sh(
            f"rm -rf {release} {release}.next; mv {release}.kept {release}; ln -sfn {release} /opt/heterofleet/.next; "
            f"mv -fT /opt/heterofleet/.next /opt/heterofleet/current; systemctl restart {UNIT}"
        )
