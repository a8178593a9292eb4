"""The checks before anything is made, and the container's body."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.agent.drivers.containers import create_body
from runtime.agent.drivers.driver import ContainerPlan, Mount
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.hardware.visibility import OWNED_VARIABLES, container_options
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.checks import (
    CheckFailed,
    check,
    check_host_shm,
    check_program,
    checked_env,
    checked_giving,
    checked_gpus,
    shared_memory,
)
from runtime.agent.tasks.plan import container_plan, engine_options, spare_name
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.protocol.hardware import Gpu, GpuCollectFailure
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Driver, Kind
from runtime.protocol.tasks import AssignedGpu, PortMapping, TaskSpec

NO_CARDS = GpuSnapshot(gpus=[])


@pytest.mark.case("FC-029")
def test_a_bare_name_is_dropped_and_said() -> None:
    """A bare name copied the agent's own secret into the container."""
    assert checked_env(["A=1", "AGENT_API_KEY", "PATH", "B=x=y"]) == ({"A": "1", "B": "x=y"}, ("AGENT_API_KEY", "PATH"))


@pytest.mark.parametrize("env", [{"1A": "hush"}, {"A B": "hush"}, ["=hush"], {"A": "hush\0"}])
def test_a_wrong_variable_is_refused_without_its_value(env: dict[str, str] | list[str]) -> None:
    with pytest.raises(CheckFailed) as caught:
        check_program(TaskSpec("t", env=env), checked_env(env)[0])
    assert caught.value.reason is Reason.ENV_INVALID
    assert "hush" not in caught.value.text


def test_cards() -> None:
    card = Gpu("GPU-1", "nvidia")
    part = Gpu("MIG-1", "nvidia", parent_uuid="GPU-1")
    here = GpuSnapshot(gpus=[card, part])
    assert checked_gpus((AssignedGpu("GPU-1"),), here) == (card,)
    with pytest.raises(CheckFailed, match="GPU-2 is not on this node"):
        checked_gpus((AssignedGpu("GPU-2"),), here)
    other = Gpu("0000/1", "somebody")
    with pytest.raises(CheckFailed, match="cannot give a card of somebody") as refused:
        checked_giving((other,), GpuSnapshot(gpus=[other]), (), container_options)
    assert refused.value.reason is Reason.GPU_UNAVAILABLE
    failing = GpuSnapshot(gpus=[card, part], failures=[GpuCollectFailure("GPU-1", 0, "GPU is lost")])
    for uuid in ("GPU-1", "MIG-1"):
        with pytest.raises(CheckFailed, match="GPU is lost") as caught:
            checked_gpus((AssignedGpu(uuid),), failing)
        assert caught.value.reason is Reason.GPU_UNAVAILABLE


@pytest.mark.parametrize(
    ("spec", "cards", "allowed", "result"),
    [
        (TaskSpec("t"), 4, True, (False, None)),
        (TaskSpec("t", kind=Kind.TRAINING), 1, True, (False, None)),
        (TaskSpec("t", kind=Kind.TRAINING), 2, True, (True, None)),
        (TaskSpec("t", kind=Kind.INFERENCE), 2, False, (False, 8192)),
        (TaskSpec("t", kind=Kind.INFERENCE), 16, False, (False, 16384)),
        (TaskSpec("t", kind=Kind.INFERENCE, ipc_host=False), 2, True, (False, 8192)),
        (TaskSpec("t", kind=Kind.TRAINING, shm_mib=64), 8, True, (False, 64)),
        (TaskSpec("t", ipc_host=True), 0, True, (True, None)),
    ],
)
def test_shared_memory(spec: TaskSpec, cards: int, allowed: bool, result: tuple[bool, int | None]) -> None:
    assert shared_memory(spec, cards, allowed) == result


def test_shared_memory_refusals(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="allow_ipc_host"):
        shared_memory(TaskSpec("t", ipc_host=True), 0, False)
    with pytest.raises(CheckFailed, match="MiB are wanted for 100000 cards") as caught:
        check_host_shm(TaskSpec("t"), 100000, tmp_path)
    assert caught.value.reason is Reason.SHM_TOO_SMALL


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (TaskSpec("t", driver=Driver.PROCESS), Reason.ENGINE_UNAVAILABLE),
        (TaskSpec("t"), Reason.PROFILE_REJECTED),
        (TaskSpec("t", image="A:b"), Reason.IMAGE_INVALID),
        (TaskSpec("t", image="a", network="host"), Reason.PROFILE_REJECTED),
        (TaskSpec("t", image="a", env={"1": ""}), Reason.ENV_INVALID),
    ],
)
def test_refused(spec: TaskSpec, reason: Reason) -> None:
    with pytest.raises(CheckFailed) as caught:
        check(spec, (), NO_CARDS, AgentSettings(allow_host_network=False))
    assert caught.value.reason is reason


RECORD = ClaimRecord(Key("1234-5678-9", 2), "a", "cp", "token", Stage.CLAIMED, TaskSpec("t"))


def test_the_agents_variables_replace_the_tasks() -> None:
    spec = TaskSpec("t", image="a", env={"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0", "X": "1"})
    plan = container_plan(RECORD, spec, check(spec, (), NO_CARDS, AgentSettings()), "n", "i", 50)
    assert plan.env == {"X": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert {"CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"} < set(plan.unset), "an image may set them, too"
    assert set(plan.unset) == set(OWNED_VARIABLES) - set(plan.env)
    assert create_body(plan)["Env"][-len(plan.unset) :] == list(plan.unset)
    assert plan.name == "task-a"
    assert spare_name(RECORD) == "task-a-12345678"
    assert plan.labels["heterofleet.claim"] == "token"
    assert plan.labels["heterofleet.attempt"] == "2"


def test_cards_go_to_the_engine() -> None:
    card = Gpu("GPU-1", "nvidia")
    here = GpuSnapshot(gpus=[card])
    by_hook, by_runtime = (checked_giving((card,), here, each, container_options) for each in ((), ("nvidia", "runc")))
    assert engine_options(by_hook)["DeviceRequests"][0]["DeviceIDs"] == ["GPU-1"]
    assert engine_options(by_runtime) == {"Runtime": "nvidia"}
    assert by_hook.environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


def test_the_containers_body() -> None:
    plan = ContainerPlan(
        name="task-a",
        image="a:1",
        labels={"l": "1"},
        env={"A": "1"},
        entrypoint=[],
        command=["x"],
        workdir="/w",
        user="7",
        mounts=(Mount("/data/x", "/x", True),),
        ports=((80, 8080), (81, None)),
        cpus=1.5,
        memory_mib=16,
        shm_mib=64,
        log_max_mib=50,
        host_config={"Runtime": "nvidia"},
    )
    body = create_body(plan)
    host = body.pop("HostConfig")
    assert body == {
        "Image": "a:1",
        "Env": ["A=1"],
        "Labels": {"l": "1"},
        "ExposedPorts": {"80/tcp": {}, "81/tcp": {}},
        "Healthcheck": {"Test": ["NONE"]},
        "Entrypoint": [""],
        "Cmd": ["x"],
        "WorkingDir": "/w",
        "User": "7",
    }
    assert host == {
        "AutoRemove": False,
        "Privileged": False,
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "NetworkMode": "bridge",
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "25600k", "max-file": "2"}},
        "Mounts": [
            {
                "Type": "bind",
                "Source": "/data/x",
                "Target": "/x",
                "ReadOnly": True,
                "BindOptions": {"Propagation": "rprivate"},
            }
        ],
        "PortBindings": {"80/tcp": [{"HostPort": "8080"}], "81/tcp": [{"HostPort": ""}]},
        "Memory": 16 << 20,
        "MemorySwap": 16 << 20,
        "NanoCpus": 1_500_000_000,
        "ShmSize": 64 << 20,
        "Runtime": "nvidia",
    }


def test_ports_of_the_spec_reach_the_plan() -> None:
    spec = TaskSpec("t", image="a", ports=[PortMapping(80), PortMapping(81, 8081)])
    plan = container_plan(RECORD, spec, check(spec, (), NO_CARDS, AgentSettings()), "n", "i", 50)
    assert plan.ports == ((80, None), (81, 8081))
