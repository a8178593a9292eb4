"""From facts to verdicts, as tables: what the doctor says of an engine, cards, tools, disks, a unit, an identity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from runtime.agent.doctor.cards import CardFacts
from runtime.agent.doctor.configuration import Configuration, KeyFile, judge_key_file, judge_settings, judge_volumes
from runtime.agent.doctor.disk import Place, judge_disk
from runtime.agent.doctor.engine import EngineLook, judge_engine, judge_runtime
from runtime.agent.doctor.findings import Finding
from runtime.agent.doctor.identity import IdentityFacts, judge_identity
from runtime.agent.doctor.unit import UnitFacts, judge_unit, release_of
from runtime.agent.link.identity import Machine
from runtime.agent.settings import AgentSettings
from runtime.protocol.problems import Fault
from runtime.protocol.settings import Loaded

ENGINE = EngineLook(
    "unix:///var/run/docker.sock",
    info={
        "Driver": "overlay2",
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "LiveRestoreEnabled": True,
        "MemoryLimit": True,
        "DockerRootDir": "/var/lib/docker",
        "Runtimes": {"runc": {}, "nvidia": {}},
        "SecurityOptions": ["name=seccomp,profile=default"],
    },
    version={"Version": "27.3.1", "ApiVersion": "1.47"},
)


def with_info(**changed: Any) -> EngineLook:
    return replace(ENGINE, info={**ENGINE.info, **changed})


def says(found: Finding, state: str, *words: str) -> None:
    """The state, and that text and advice hold these words; what is not good comes with advice."""
    whole = f"{found.text} -> {found.advice}"
    assert found.state.value == state, whole
    assert [word for word in words if word not in whole] == [], whole
    assert found.advice or state == "ok", whole


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (ENGINE, "ok", ["27.3.1", "API 1.47", "overlay2", "cgroup v2", "live-restore on"]),
        (with_info(LiveRestoreEnabled=False), "ok", ["live-restore off", "ends the running tasks", "daemon.json"]),
        (with_info(LiveRestoreEnabled=None), "ok", ["live-restore unknown"]),
        (replace(ENGINE, info={}, version={}), "ok", ["unknown version", "storage unknown", "live-restore unknown"]),
        (with_info(Driver="vfs"), "warning", ["storage driver vfs", "wanted overlay2"]),
        (with_info(MemoryLimit=False), "warning", ["memory limits", "cgroup_enable=memory"]),
        (with_info(SecurityOptions=["name=rootless"]), "warning", ["rootless"]),
        (EngineLook("unix:///x", socket="No such file or directory"), "failure", ["unix:///x", "systemctl start"]),
        (EngineLook("unix:///x", socket="is not a socket"), "failure", ["not a socket"]),
        (EngineLook("unix:///x", error="Docker does not answer: timed out"), "failure", ["timed out", "journalctl"]),
        (EngineLook("unix:///x", error="Docker does not answer: Connection refused"), "failure", ["systemctl start"]),
        (
            EngineLook("unix:///x", error="client version 1.24 is too old. Minimum supported API version is 1.44"),
            "failure",
            ["too old", "upgrade the older"],
        ),
        (EngineLook("unix:///x", denied=True), "unknown", ["as root"]),
    ],
)
def test_engine(facts: EngineLook, state: str, words: list[str]) -> None:
    says(judge_engine(facts), state, *words)


def gpu(uuid: str, vendor: str = "nvidia", problems: tuple[str, ...] = (), parent: Optional[str] = None) -> dict:
    health = {"ok": not problems, "problems": list(problems)}
    return {"uuid": uuid, "vendor": vendor, "index": 0, "parent_uuid": parent, "health": health}


def cards(*gpus: dict, error: Optional[str] = None, gone: tuple = (), failures: tuple = ()) -> CardFacts:
    classes = [{"class": "nvidia-h100-80gb-hbm3-80g", "count": len(gpus)}] if gpus else []
    detection = [{"vendor": "nvidia", "found": bool(gpus), "why": "no NVML, no nvidia-smi"}]
    report = {"source": "nvml", "error": error, "gpus": list(gpus), "classes": classes, "detection": detection,
              "gpu_collect_failures": list(failures)}  # fmt: skip
    return CardFacts(report, gone)


@pytest.mark.parametrize(
    ("engine", "seen", "state", "words"),
    [
        (ENGINE, cards(gpu("a")), "ok", ["nvidia"]),
        (with_info(CgroupDriver="systemd"), cards(gpu("a")), "ok", ["daemon-reload", "create-dev-char-symlinks"]),
        (with_info(Runtimes={"runc": {}}), cards(gpu("a")), "failure", ["runc", "nvidia-ctk"]),
        (replace(with_info(Runtimes={"runc": {}}), hook=True), cards(gpu("a")), "warning", ["own hook", "nvidia-ctk"]),
        (with_info(Runtimes={"runc": {}}), cards(), "ok", ["no NVIDIA card needs one"]),
        (with_info(Runtimes={"runc": {}}), cards(error="NVML did not answer in 10 s"), "unknown", ["not known"]),
        (EngineLook("unix:///x", error="timed out"), cards(gpu("a")), "unknown", ["no engine answers"]),
        (EngineLook("unix:///x", denied=True), cards(gpu("a")), "unknown", ["no engine answers"]),
    ],
)
def test_runtime(engine: EngineLook, seen: CardFacts, state: str, words: list[str]) -> None:
    found = judge_runtime(engine, seen)
    whole = f"{found.text} {found.advice}"
    assert found.state.value == state
    assert [word for word in words if word not in whole] == []


ROOMY = Place("images", "/var/lib/docker", 2048, free_mib=50_000, free_inodes=9_000_000)


@pytest.mark.parametrize(
    ("place", "state", "words"),
    [
        (ROOMY, "ok", ["/var/lib/docker", "50000 MiB"]),
        (replace(ROOMY, free_inodes=None), "ok", []),
        (replace(ROOMY, free_mib=4095), "warning", ["4095 MiB", "wanted 4096 MiB", "docker system df"]),
        (replace(ROOMY, free_mib=2048), "warning", ["2048 MiB"]),
        (replace(ROOMY, free_mib=2047), "failure", ["2047 MiB", "wanted 2048 MiB", "disk_min_free_mib"]),
        (replace(ROOMY, free_mib=0), "failure", ["0 MiB free"]),
        (replace(ROOMY, free_mib=None), "unknown", ["not known"]),
        (replace(ROOMY, free_inodes=9_999), "failure", ["9999 inodes"]),  # no pull begins any more
        (replace(ROOMY, what="state folder", free_inodes=9_999), "warning", ["9999 inodes"]),
        (replace(ROOMY, free_inodes=0), "failure", ["0 inodes"]),
        (replace(ROOMY, read_only=True), "failure", ["read-only"]),
        (replace(ROOMY, no_exec=True), "ok", []),
        (replace(ROOMY, no_exec=True, runs=True), "failure", ["noexec"]),
        (replace(ROOMY, error="did not answer in 4 s"), "failure", ["did not answer in 4 s", "file server"]),
    ],
)
def test_disk(place: Place, state: str, words: list[str]) -> None:
    says(judge_disk([place], engine_answers=True), state, *words)


def test_a_disk_that_was_not_asked_for_is_unknown() -> None:
    says(judge_disk([ROOMY], engine_answers=False), "unknown", "no engine answers", "50000 MiB")


RUNNING = UnitFacts(
    True,
    {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active", "SubState": "running",
     "Result": "success", "MainPID": "9", "NRestarts": "0", "NeedDaemonReload": "no", "DropInPaths": "",
     "SystemCallFilter": "~io_uring_setup listen"},
    current="1.2.0-abc123-0f0f0f0f",
    running="1.2.0/abc123",
    seccomp=2,
    registered=True,
)  # fmt: skip


def unit(**changed: str) -> UnitFacts:
    return replace(RUNNING, properties={**RUNNING.properties, **changed})


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (RUNNING, "ok", ["1.2.0/abc123", "1.2.0-abc123-0f0f0f0f", "refuses it ports"]),
        (unit(DropInPaths="/etc/systemd/system/heterofleet-agent.service.d/x.conf"), "ok", ["x.conf"]),
        (UnitFacts(False), "unknown", ["not started by systemd"]),
        (UnitFacts(True, error="systemctl did not answer in 6 s"), "unknown", ["did not answer in 6 s"]),
        (unit(LoadState="not-found"), "warning", ["not installed", "install-agent.sh"]),
        (unit(LoadState="masked"), "failure", ["masked"]),
        (unit(LoadState="bad-setting"), "failure", ["bad-setting", "systemd-analyze verify"]),
        (unit(UnitFileState="disabled"), "warning", ["does not start with the machine", "systemctl enable"]),
        (unit(ActiveState="inactive", SubState="dead"), "warning", ["inactive", "systemctl start"]),
        (unit(ActiveState="activating", SubState="start"), "warning", ["activating (start)"]),
        (replace(unit(ActiveState="activating", SubState="start"), since_s=2.4), "ok", ["is starting, for 2 s"]),
        (replace(unit(ActiveState="activating", SubState="start"), since_s=31.0), "warning", ["activating (start)"]),
        (replace(unit(ActiveState="activating", SubState="start", NRestarts="1"), since_s=2.4), "warning",
         ["activating (start)"]),
        (unit(ActiveState="activating", SubState="auto-restart", Result="exit-code", NRestarts="41"), "failure",
         ["auto-restart", "exit-code", "41 times", "journalctl"]),
        (unit(ActiveState="failed", SubState="failed"), "failure", ["failed", "journalctl"]),
        (unit(NeedDaemonReload="yes"), "warning", ["older text", "daemon-reload"]),
        (replace(RUNNING, running="1.1.0/abc122"), "warning", ["runs 1.1.0/abc122", "systemctl restart"]),
        (replace(RUNNING, running="1.2.0/abc123-dirty"), "warning", ["systemctl restart"]),
        (replace(RUNNING, running=None), "ok", ["not known"]),
        (replace(RUNNING, seccomp=0), "warning", ["does not keep this agent from opening a port"]),
        (replace(RUNNING, seccomp=None), "ok", []),
        (unit(SystemCallFilter=""), "warning", ["does not keep this agent from opening a port"]),
        (unit(SystemCallFilter="~io_uring_setup"), "warning", ["does not keep this agent from opening a port"]),
        (replace(RUNNING, registered=False, last_error={"code": "bad_api_key", "text": "refused"}), "warning",
         ["not registered", "bad_api_key"]),
        (replace(RUNNING, others=("/usr/bin/heterofleet-agent",)), "warning", ["another copy", "remove"]),
    ],
)  # fmt: skip
def test_unit(facts: UnitFacts, state: str, words: list[str]) -> None:
    found = judge_unit(facts)
    assert found.state.value == state, found.text
    assert [word for word in words if word not in f"{found.text} {found.advice}"] == [], found.text


def test_the_release_of_a_version() -> None:
    assert release_of("0.1.0/5aedefbfc19b-dirty") == "0.1.0-5aedefbfc19b-dirty-"


STORED = {"node_id": "gpu-a", "instance_id": "i-1", "run": 4, "fingerprint": "f1"}
HERE = Machine("gpu-a", "f1", "boot", ("m1", "d1"))
SAME = IdentityFacts("/s/identity.json", STORED, HERE, None)


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (SAME, "ok", ["node gpu-a, instance i-1, run 4"]),
        (replace(SAME, stored=None, machine=replace(HERE, hostname="GPU_B.lan")), "ok", ["none yet", "gpu-b-lan"]),
        (replace(SAME, stored=None, configured="chosen"), "ok", ["chosen"]),
        (replace(SAME, machine=replace(HERE, fingerprint="f2")), "warning", ["another machine", "new instance"]),
        (replace(SAME, stored={**STORED, "parts": ["m2", None]}), "warning", ["another machine"]),
        (replace(SAME, stored={**STORED, "parts": ["m1", None], "fingerprint": "f2"}), "ok", ["gpu-a"]),
        (replace(SAME, machine=Machine("gpu-a", None, None)), "unknown", ["machine-id"]),
        (replace(SAME, stored={**STORED, "fingerprint": None}), "ok", ["gpu-a"]),
        (replace(SAME, configured="gpu-z"), "warning", ["gpu-z", "belongs to gpu-a"]),
        (replace(SAME, stored=None, error="it is no JSON"), "warning", ["it is no JSON", "sets it aside"]),
        (replace(SAME, stored=None, denied=True), "unknown", ["as root"]),
    ],
)
def test_identity(facts: IdentityFacts, state: str, words: list[str]) -> None:
    says(judge_identity(facts), state, *words)


def configuration(*faults: Fault, warnings: tuple[str, ...] = (), **facts: bool) -> Configuration:
    from pathlib import Path

    loaded = Loaded(AgentSettings(server_url="http://10.0.0.1:3333"), {"volumes_allow": "default"}, list(warnings))
    return Configuration(Path("/etc/heterofleet/agent.yaml"), loaded, faults, **facts)


TYPO = Fault("node_idd", "an unknown setting", "node_id")


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (configuration(), "ok", ["/etc/heterofleet/agent.yaml is good"]),
        (configuration(TYPO), "failure", ["node_idd", "wanted node_id", "config check"]),
        (configuration(TYPO, Fault("workers", "0", "at least 1")), "failure", ["node_idd", "workers"]),
        (configuration(Fault("api_key_file", "no file", "a file")), "ok", []),  # that is the line of the key
        (configuration(warnings=("model_scan_dirs: does nothing",)), "warning", ["model_scan_dirs"]),
        (replace(configuration(TYPO, missing=True), loaded=None), "unknown", ["there is no", "--config"]),
        (replace(configuration(TYPO, denied=True), loaded=None), "unknown", ["cannot be read by this user"]),
        (configuration(missing=True), "ok", ["without a file"]),
    ],
)
def test_settings(found: Configuration, state: str, words: list[str]) -> None:
    verdict = judge_settings(found)
    assert verdict.state.value == state, verdict.text
    assert [word for word in words if word not in f"{verdict.text} {verdict.advice}"] == [], verdict.text


@pytest.mark.parametrize(
    ("found", "file", "states"),
    [
        (configuration(), KeyFile("/k", 0o600, 0), []),
        (configuration(), None, []),
        (configuration(), KeyFile("/k", 0o640, 0), ["warning"]),
        (configuration(), KeyFile("/k", 0o604, 0), ["warning"]),
        (configuration(), KeyFile("/k", 0o600, 1234), ["warning"]),
        (configuration(), KeyFile("/k", error="gone"), []),
        (configuration(Fault("api_key_file", "an empty key", "the system key")), None, ["failure"]),
        (configuration(Fault("api_key_file", "Permission denied", "a file"), denied=True), None, ["unknown"]),
        (configuration(Fault("server_url", "nothing", "a URL"), missing=True), None, ["unknown"]),
    ],
)
def test_key_file(found: Configuration, file: Optional[KeyFile], states: list[str]) -> None:
    assert [point.state.value for point in judge_key_file(found, file)] == states


@pytest.mark.parametrize(
    ("folders", "configured", "state", "words"),
    [
        ({"/data": "", "/mnt": ""}, False, "ok", ["/data, /mnt"]),
        ({"/data": "No such file or directory", "/mnt": ""}, False, "ok", ["/mnt", "/data is not here"]),
        ({"/data": "No such file or directory"}, False, "ok", ["no folder"]),
        ({"/data": "No such file or directory"}, True, "warning", ["/data", "volumes_allow"]),
        ({"/data": "is not a folder"}, True, "warning", ["is not a folder"]),
        ({"/data": "did not answer in 4 s", "/mnt": ""}, False, "failure", ["did not answer", "file server"]),
        ({}, True, "ok", ["may bind no folder"]),
    ],
)
def test_volumes(folders: dict[str, str], configured: bool, state: str, words: list[str]) -> None:
    says(judge_volumes(folders, configured), state, *words)
