"""What a process becomes, who it is, how it ended: as tables."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Optional

import pytest

from runtime.agent.doctor.processes import ProcessFacts, judge_processes
from runtime.agent.drivers.process.devices import DevicesUnknown, device_files
from runtime.agent.drivers.process.ends import read_end
from runtime.agent.drivers.process.records import End, Record
from runtime.agent.drivers.process.sandbox import TargetRefused, check_target, hidden_paths, program, properties
from runtime.agent.drivers.process.script import go_script
from runtime.agent.drivers.process.users import OWN_FIRST, UserRefused, run_as
from runtime.agent.hardware.giving.description import Card
from runtime.agent.hardware.visibility import OWNED_VARIABLES, process_options
from runtime.protocol.hardware import Gpu

AT = "2026-01-02T03:04:05Z"
HIDDEN = hidden_paths(["/srv/state"])


@pytest.mark.parametrize(
    ("line", "started", "wanted"),
    [
        ("exited 0 success 0", True, End(AT, 0)),
        ("exited 3 exit-code 0", True, End(AT, 3)),
        ("exited 0 success 2", True, End(AT, 0, oom_killed=True)),
        ("killed KILL oom-kill 0", True, End(AT, 137, oom_killed=True)),
        ("killed KILL signal 1", True, End(AT, 137, oom_killed=True)),
        ("killed TERM success 0", True, End(AT, 143)),
        ("dumped SEGV core-dump 0", True, End(AT, 139)),
        ("killed RTMIN+1 signal 0", True, End(AT, 128 + 35)),
        ("exited 217 exit-code 0", True, End(AT, 217)),  # the program's own
        ("killed NOTASIGNAL signal 0", True, End(AT, None)),
        ("- - timeout 0", True, End(AT, None)),
        ("", True, End(AT, None)),
        ("exited 0 success 0 more", True, End(AT, None)),
    ],
)
def test_ends(line: str, started: bool, wanted: End) -> None:
    assert read_end(AT, line, started) == wanted


def test_an_end_before_the_beginning_is_no_end_of_the_program() -> None:
    end = read_end(AT, "exited 226 exit-code 0", started=False)
    assert end.exit_code is None
    assert "mount namespace" in (end.failed or "")
    end = read_end(AT, "unmade 32 - 0", started=False)
    assert (end.exit_code, end.failed is not None) == (None, True)


@pytest.mark.parametrize(
    ("user", "allow_root", "refused"),
    [
        ("root", False, "process_allow_root"),
        ("0", False, "process_allow_root"),
        ("0:1234", False, "process_allow_root"),
        ("nobody:root", False, "not one of user nobody"),
        ("nobody:0", False, "not one of user nobody"),
        ("nobody:shadow", False, "not one of user nobody"),
        ("12345:0", False, "not one of user 12345"),
        ("99", False, "one of the machine's own"),
        ("hf-no-such-user", False, "no user hf-no-such-user"),
        ("nobody:hf-no-such-group", False, "no group hf-no-such-group"),
        ("nobody", False, None),
        ("12345", False, None),
        ("12345:54321", False, None),
        ("root", True, None),
        (None, False, None),
    ],
)
def test_users(user: Optional[str], allow_root: bool, refused: Optional[str]) -> None:
    if refused is None:
        assert run_as(user, "task", allow_root).uid != 0 or allow_root
        return
    with pytest.raises(UserRefused, match=refused):
        run_as(user, "task", allow_root)


def test_who_names_no_user_gets_one_of_its_own() -> None:
    first, second = run_as(None, "task-1", False), run_as(None, "task-2", False)
    assert (first.name, first.uid == first.gid) == (None, True)
    assert OWN_FIRST <= first.uid != second.uid
    assert first == run_as(None, "task-1", False)
    assert run_as("nobody", "t", False).uid == pwd.getpwnam("nobody").pw_uid


@pytest.mark.parametrize(
    "value",
    ["plain", "", "a b", "it's", 'say "x"', "$HOME `id` $(id)", "two\nlines", "\x1b[1m\ttab", "ü", "a\\", "!#&;|<>*?~"],
)
def test_words_and_variables_arrive_as_they_are(tmp_path: Path, value: str) -> None:
    script = go_script(["/usr/bin/env", "-0", f"WORD={value}"], {"VALUE": value}, str(tmp_path), "/nowhere")
    done = subprocess.run(["/bin/sh"], input=script.encode(), capture_output=True, env={}, check=True)
    seen = dict(item.split("=", 1) for item in done.stdout.decode().split("\0") if item)
    assert (seen.get("VALUE"), seen["WORD"], seen["HOME"], seen["PWD"]) == (value, value, "/nowhere", str(tmp_path))
    assert set(seen) == {"VALUE", "WORD", "HOME", "PWD", "PATH"}


@pytest.mark.parametrize(("words", "code"), [(["hf-no-such-program"], 127), (["/etc/passwd"], 126), (["-x"], 127)])
def test_a_program_that_cannot_be_run(words: list[str], code: int) -> None:
    done = subprocess.run(["/bin/sh"], input=go_script(words, {}, None, "/").encode(), capture_output=True)
    assert done.returncode == code


def test_a_folder_that_is_not_there() -> None:
    done = subprocess.run(["/bin/sh"], input=go_script(["true"], {}, "/hf/no", "/").encode(), capture_output=True)
    assert done.returncode == 126


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("/data/x", True), ("/job", True), ("/srv/other", True), ("/mnt", True),
        ("/", False), ("/etc/heterofleet", False), ("/etc", False), ("/etc/heterofleet/x", False), ("/proc", False),
        ("/proc/sys", False), ("/run/x", False), ("/var/run", False), ("/var/lib", False), ("/srv/state", False),
        ("/srv/state/x", False), ("/srv", False), ("/opt/heterofleet/x", False), ("/opt", False), ("/dev/shm", False),
        ("/a:b", False), ('/a"b', False), ("/a%b", False), ("/a\nb", False),
    ],
)  # fmt: skip
def test_where_volumes_may_lie(target: str, allowed: bool) -> None:
    if allowed:
        check_target(target, HIDDEN)
        return
    with pytest.raises(TargetRefused):
        check_target(target, HIDDEN)


def record(**members: object) -> Record:
    base = {"id": "a" * 64, "unit": "heterofleet-task-t", "labels": {}, "created_at": 0.0, "output": "/o", "uid": 7,
            "gid": 8}  # fmt: skip
    return Record(**{**base, **members})  # type: ignore[arg-type]


FILES = {"go": Path("/r/a.go"), "out": Path("/r/a.out"), "started": Path("/r/a.started"), "folder": Path("/r"),
         "end_script": Path("/r/.end")}  # fmt: skip


def said(made: Record, version: int = 252) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for setting in properties(made, HIDDEN, FILES, "log.service", version):
        name, _, value = setting.partition("=")
        found.setdefault(name, []).append(value)
    return found


def test_the_unit_of_a_process() -> None:
    unit = said(record(user="alice", mounts=(("/p/0", "/job", True), ("/p/1", "/x y", False)), cpus=1.5, memory_mib=64,
                       devices=("/dev/nvidia0",)))  # fmt: skip
    for name in ("NoNewPrivileges", "PrivateTmp", "RestrictSUIDSGID", "RestrictNamespaces"):
        assert unit[name] == ["yes"]
    assert (unit["ProtectSystem"], unit["User"], unit["Group"]) == (["strict"], ["alice"], ["8"])
    assert unit["CapabilityBoundingSet"] == [""]
    assert (unit["DevicePolicy"], unit["DeviceAllow"]) == (["closed"], ["/dev/nvidia0 rw"])
    assert (unit["BindReadOnlyPaths"], unit["BindPaths"]) == (['"-/p/0":"/job":rbind'], ['"-/p/1":"/x y":rbind'])
    assert (unit["CPUQuota"], unit["MemoryMax"], unit["MemorySwapMax"]) == (["150%"], ["64M"], ["0"])
    for path in ("/etc/heterofleet", "/srv/state", "/run/docker.sock", "/run/containerd", "/run/systemd/private"):
        assert f'"-{path}"' in unit["InaccessiblePaths"][0].split()
    assert program(record(user="alice")) == ["/bin/sh"]


def test_a_number_without_a_name_is_taken_on_by_setpriv() -> None:
    unit, words = said(record()), program(record())
    assert "User" not in unit
    assert words[0] == "setpriv"
    assert {"--reuid=7", "--regid=8", "--clear-groups", "--bounding-set=-all", "--no-new-privs"} <= set(words)


def test_an_old_systemd_is_told_only_what_it_knows() -> None:
    assert "ProtectProc" in said(record()), said(record())
    assert not {"ProtectProc", "OOMPolicy", "RestrictSUIDSGID"} & set(said(record(), 241))


def driver_files(root: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev" / name).touch()
    for place, text in (
        ("gpus/0000:3b:00.0/information", "Model: \t\t NVIDIA H100\nDevice Minor: \t 1\n"),
        ("capabilities/gpu1/mig/gi3/access", "DeviceFileMinor: 30\nDeviceFileMode: 292\n"),
        ("capabilities/gpu1/mig/gi3/ci0/access", "DeviceFileMinor: 31\n"),
    ):
        path = root / "proc/driver/nvidia" / place
        path.parent.mkdir(parents=True)
        path.write_text(text)


def test_only_its_cards(tmp_path: Path) -> None:
    driver_files(tmp_path)
    card = Gpu("GPU-1", "nvidia", pci_bus_id="00000000:3B:00.0")
    assert device_files([card], tmp_path) == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1")
    slice_of_it = Gpu("MIG-1", "nvidia", pci_bus_id="00000000:3B:00.0", parent_uuid="GPU-1", gi_id=3, ci_id=0)
    assert device_files([slice_of_it], tmp_path)[2:] == (
        "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"
    )  # fmt: skip
    assert device_files([Gpu("virtual-n-0", "virtual")], tmp_path) == ()
    assert device_files([card], tmp_path / "none") == (), "no kernel driver here has files"
    for unknown in (Gpu("GPU-2", "nvidia", pci_bus_id="00000000:AF:00.0"), Gpu("x", "somebody")):
        with pytest.raises(DevicesUnknown, match="no such device"):
            device_files([unknown], tmp_path)


def test_what_a_process_sees_of_cards() -> None:
    none, two = (
        process_options([]).environment,
        process_options([Card(Gpu("GPU-1", "nvidia")), Card(Gpu("GPU-2", "nvidia"))]).environment,
    )
    assert (none["CUDA_VISIBLE_DEVICES"], none["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")
    assert (two["CUDA_VISIBLE_DEVICES"], two["CUDA_DEVICE_ORDER"]) == ("GPU-1,GPU-2", "PCI_BUS_ID")
    assert set(two) <= set(OWNED_VARIABLES)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None, "the machine's own is not what was seen"


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (ProcessFacts(True, False, False), "ok", "transient units"),
        (ProcessFacts(True, True, False), "ok", "transient units"),
        (ProcessFacts(False, True, False), "warning", "nothing keeps them"),
        (ProcessFacts(False, False, False), "failure", "no systemd here"),
        (ProcessFacts(True, False, True), "warning", "as root"),
        (ProcessFacts(True, False, False, ("setpriv",)), "failure", "setpriv is not here"),
    ],
)
def test_what_the_doctor_says_of_it(facts: ProcessFacts, state: str, words: str) -> None:
    finding = judge_processes(facts)
    assert (finding.state.value, words in finding.text) == (state, True)
