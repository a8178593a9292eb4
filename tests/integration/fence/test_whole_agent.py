"""The fence as a customer meets it: a real control plane, a real agent, the machine's own engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.visibility import OWNED_VARIABLES
from runtime.agent.tasks.pins import PLACES
from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.fence.yard import GOOD, Yard, yard_at
from tests.integration.waiting import until
from tests.lab import engine, task_image

AGENTS_OWN = {
    "AGENT_API_KEY": "hunter2-of-the-agent",
    "HETEROFLEET_WORKERS": "3",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "LD_LIBRARY_PATH": "/nowhere",
    "PYTHONPATH": "/nowhere",
}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with yard_at(tmp_path_factory.mktemp("whole") / "yard") as yard:
        yield yard


@pytest.fixture(scope="module")
def agent(plane: Plane, ground: Yard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    before = {name: os.environ.get(name) for name in AGENTS_OWN}
    folder = tmp_path_factory.mktemp("fenced") / "a"
    os.environ.update(AGENTS_OWN)
    try:
        agent = Agent(
            plane,
            folder,
            volumes_allow=[str(ground.data), str(folder)],
            volumes_deny=[str(ground.denied)],
        )
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    yield agent
    agent.close()


def places_of(uid: str) -> list[str]:
    return [folder.name for folder in PLACES.iterdir() if folder.name.startswith(uid)] if PLACES.is_dir() else []


def volume(path: object, target: str = "/x", **more: Any) -> list[dict[str, Any]]:
    return [{"host": str(path), "container": target, **more}]


@pytest.mark.case("FC-030")
def test_every_way_out_that_can_be_sent_ends_before_a_container_is_made(
    plane: Plane, agent: Agent, ground: Yard
) -> None:
    """Each is refused by the server, or fails with the fact that led to it; nobody reads what lies outside."""
    data = ground.data
    links = {"abs": str(ground.out), "rel": "../out", "up": "..", "root": "/", "etc": "/etc", "self": "self",
             "proc": "/proc/1/root/etc", "sock": "/var/run/docker.sock", "over": "/proc/self/root/data",
             "deny": "denied"}  # fmt: skip
    for name, target in links.items():
        (data / name).symlink_to(target)
    os.mkfifo(data / "pipe")
    os.link(ground.out / "marker", data / "hard")
    (data / "bound").mkdir()
    ground.mount("--bind", "/etc", data / "bound")
    ground.alarm.rung()
    hosts = [
         "/", "/etc", "/etc/shadow", "/proc", "/sys", "/dev", "/dev/mem", "/root", "/run/docker.sock",
        "/var/run/docker.sock", "/var/lib/docker", "/usr", "/lib", "/opt/heterofleet", f"{data}-secret",
        f"{data}/../out", f"{data}/good/../../out", f"//{data}//./x/../../out", f"{data}/%2e%2e/out",
        f"{data}/good\n", f"{data}/~root", f"{data}/$HOME", f"{data}/good:/x:rw", f"{data}/good,readonly=false",
        "data", "~", data, data / "denied", data / "denied" / "marker", ground.out, data / "missing", data / "pipe",
        data / "hard", data / "bound", data / "bound" / "ssl", agent.folder, agent.folder / "state",
        agent.folder / "agent.yaml", agent.folder /
        "state" / "journal.db", plane.folder / "key", PLACES, *(data / name for name in links), *(data / name /
        "marker" for name in ("abs", "rel", "deny")),
    ]  # fmt: skip
    bodies: list[dict[str, Any]] = [{"volumes": volume(host)} for host in hosts]
    bodies += [{"volumes": volume(data / name / "made", create=True)} for name in ("abs", "rel", "deny", "missing")]
    bodies += [
        {"volumes": volume(data / "good", target)} for target in ("/", "/proc", "/sys/x", "/dev/null", "/a/../b", "x")
    ]
    assert len(bodies) >= 40
    sent, refused = [], 0
    for number, body in enumerate(bodies):
        task = {"id": f"way-{number}", "name": "way", "image": task_image.NAME, "command": ["cat", "/x/marker"],
                "node_id": agent.node_id}  # fmt: skip
        status, answer = plane.call("POST", "/tasks", {**task, **body})
        if status == 201:
            sent.append((f"way-{number}", body))
        else:
            assert (status, answer["code"], len(answer["errors"])) == (422, "invalid_task", 1), (body, answer)
            refused += 1
    good = agent.submit("cat", "/x/marker", volumes=volume(data / "good"))
    ends = {}
    for task_id, body in sent:
        task = plane.ended(task_id)
        assert (task["status"], task["reason"]) == ("failed", "volume_rejected"), (body, task)
        assert task["error"]
        assert all(attempt["container_id"] is None for attempt in task["attempts"])
        ends[task_id] = task["error"]
    assert refused >= 10 and len(ends) >= 25
    done = plane.ended(good)
    assert (done["status"], done["log_tail"]) == ("completed", GOOD)
    assert ground.alarm.rung() == []
    assert not (ground.out / "made").exists() and not (ground.denied / "made").exists()


def test_what_a_container_may_have_beyond_the_engines_defaults(plane: Plane, agent: Agent, ground: Yard) -> None:
    """Everything that a task can ask for, against a list: a new option does not come in unseen."""
    plain = engine.docker("create", task_image.NAME)
    baseline = json.loads(engine.docker("inspect", plain))[0]["HostConfig"]
    engine.docker("rm", "-v", plain)
    (ground.data / "out").mkdir(exist_ok=True)
    task_id = agent.submit(
        "forever", cpus=0.5, memory_mib=64, shm_mib=32, user="1000:1000", workdir="/tmp", env={"A": "b"},
        ports=[{"container": 8000}], labels={"team": "x"}, stop_grace_s=0,
        volumes=[*volume(ground.good), *volume(ground.data / "out", "/out", read_only=False)],
    )  # fmt: skip
    seen = agent.running(task_id)
    uid = plane.task(task_id)["uid"]
    place = f"{PLACES}/{uid}-1"
    differs = {name: value for name, value in seen["HostConfig"].items() if value and value != baseline.get(name)}
    assert [name for name, value in baseline.items() if value and not seen["HostConfig"].get(name)] == []
    options = {"Type": "bind", "BindOptions": {"Propagation": "rprivate"}}
    assert differs == {
        "Init": True,
        "LogConfig": {"Type": "json-file", "Config": {"max-file": "2", "max-size": "25600k"}},
        "Memory": 64 << 20,
        "MemorySwap": 64 << 20,
        "Mounts": [
            {**options, "Source": f"{place}/0", "Target": "/x", "ReadOnly": True},
            {**options, "Source": f"{place}/1", "Target": "/out"},
        ],
        "NanoCpus": 500_000_000,
        "NetworkMode": "bridge",
        "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": ""}]},
        "ShmSize": 32 << 20,
    }
    host = seen["HostConfig"]
    closed = ("Privileged", "AutoRemove", "CapAdd", "Devices", "DeviceRequests", "SecurityOpt", "PidMode", "UTSMode",
              "UsernsMode", "VolumesFrom", "Binds", "DeviceCgroupRules", "GroupAdd", "ExtraHosts", "Links")  # fmt: skip
    assert {name: host.get(name) for name in closed if host.get(name)} == {}
    assert host["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}
    assert host["IpcMode"] == "private" and host["MaskedPaths"] and host["ReadonlyPaths"]
    assert {mount["Type"] for mount in seen["Mounts"]} == {"bind"}
    assert not any(".sock" in mount["Source"] for mount in seen["Mounts"])
    assert (seen["Config"]["User"], seen["Config"]["WorkingDir"]) == ("1000:1000", "/tmp")
    until("nothing but the container has its volumes any more", lambda: not places_of(uid))
    assert engine.docker("exec", seen["Id"], "cat", "/x/marker") == GOOD.strip()
    plane.stop_task(task_id)
    assert plane.ended(task_id)["status"] == "stopped"
    agent.gone(task_id)
    assert (ground.good / "marker").read_text() == GOOD


def test_the_hosts_ipc_and_network_are_all_that_can_be_opened(plane: Plane, agent: Agent) -> None:
    task_id = agent.submit("forever", network="host", ipc_host=True, stop_grace_s=0)
    host = agent.running(task_id)["HostConfig"]
    assert (host["NetworkMode"], host["IpcMode"], host["PidMode"], host["UTSMode"]) == ("host", "host", "", "")
    assert not host["Privileged"] and not host["CapAdd"]
    plane.stop_task(task_id)
    plane.ended(task_id)


@pytest.mark.case("FC-029")
def test_the_environment_is_the_tasks_and_nothing_of_the_agents(plane: Plane, agent: Agent) -> None:
    """A bare name copied the agent's own secret into the container."""
    said = ["A=1", "AGENT_API_KEY", "HETEROFLEET_WORKERS", "LD_LIBRARY_PATH", "B=x=y", "C="]
    said += [f"{name}=all" for name in OWNED_VARIABLES]
    task_id = agent.submit("/bin/env", env=said, resume_from_checkpoint="/x/step 10")
    dropped = [warning for warning in plane.task(task_id)["warnings"] if warning["code"] == "env_bare_name"]
    assert [warning["detail"].split(":")[1].split()[0] for warning in dropped] == [
        "AGENT_API_KEY", "HETEROFLEET_WORKERS", "LD_LIBRARY_PATH"
    ]  # fmt: skip
    task = plane.ended(task_id)
    found = dict(line.split("=", 1) for line in task["log_tail"].splitlines())
    assert found.pop("HOSTNAME")
    assert found == {
        "PATH": "/bin",
        "HOME": "/root",
        "A": "1",
        "B": "x=y",
        "C": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "HETEROFLOW_RESUME_FROM_CHECKPOINT": "/x/step 10",
    } | {name: found[name] for name in ("PWD", "SHLVL") if name in found}
    assert set(found) & set(OWNED_VARIABLES) == {"CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}


def test_values_come_through_letter_for_letter(plane: Plane, agent: Agent) -> None:
    value = "two\nlines, 'quotes' \"too\", $HOME `id` \u20ac " + "x" * 100_000
    task_id = agent.submit("/bin/sh", "-c", 'printf %s "$V" | /bin/sha256sum', env={"V": value})
    from hashlib import sha256

    assert plane.ended(task_id)["log_tail"].split()[0] == sha256(value.encode()).hexdigest()


@pytest.mark.case("FC-031")
def test_a_missing_source_is_refused_and_one_that_is_asked_for_is_made(
    plane: Plane, agent: Agent, ground: Yard
) -> None:
    """Docker made a missing folder as root, and the job ran on nothing."""
    missing = ground.data / "typo"
    task = plane.ended(agent.submit("exit", "0", volumes=volume(missing)))
    assert (task["reason"], task["error"]) == ("volume_rejected", f"mount source does not exist: {missing}")
    assert not missing.exists()
    made = ground.data / "made"
    sent = [
        agent.submit("write", f"/x/{n}", "ok", user="1234:1235", volumes=volume(made, read_only=False, create=True))
        for n in range(3)
    ]
    assert [plane.ended(task_id)["status"] for task_id in sent] == ["completed"] * 3, "all three may come first"
    assert sorted(path.name for path in made.iterdir()) == ["0", "1", "2"]
    assert (made.stat().st_uid, made.stat().st_gid) == (1234, 1235)


def test_a_killed_agent_leaves_no_place_behind(plane: Plane, agent: Agent, ground: Yard) -> None:
    task_id = agent.submit("sleep", "2", "cat", "/x/marker", volumes=volume(ground.good))
    agent.running(task_id)
    uid = plane.task(task_id)["uid"]
    agent.kill()
    agent.start()
    assert plane.ended(task_id)["log_tail"] == GOOD
    until("its places are gone", lambda: not places_of(uid))
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if uid in line]
