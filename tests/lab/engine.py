"""The machine's Docker Engine: the one that answers is used, else the lab starts its own and owns it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Optional

from tests.lab import places
from tests.lab.daemon import Daemon
from tests.lab.process import Progress, run

_LEFT_BY_DOCKER = ("DOCKER", "docker0", places.BRIDGE)
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def docker(*args: str, timeout: float = 120, input: Optional[bytes] = None) -> str:
    """Run the docker client against the machine's engine; returns its standard output, stripped."""
    return run(["docker", *args], timeout=timeout, input=input).stdout.strip()


def version() -> Optional[str]:
    """The running engine's version, None when none answers."""
    done = run(["docker", "version", "--format", "{{.Server.Version}}"], check=False, timeout=20)
    return done.stdout.strip() if done.returncode == 0 else None


def ensure(progress: Progress) -> None:
    """An engine answers when this returns; what the machine's network looked like before is written down."""
    if version():
        return
    pid_file = places.state() / "dockerd.pid"
    pid_file.unlink(missing_ok=True)  # a stale one whose number is in use again would stop dockerd
    with progress.step("starting dockerd"):
        Daemon("dockerd").start(
            ["dockerd", "--pidfile", str(pid_file), "--insecure-registry", places.REGISTRY],
            lambda: version() is not None or "no answer to `docker version`",
            forward_policy="DROP" if "-P FORWARD DROP" in _rules("filter") else "ACCEPT",
            ip_forward=_IP_FORWARD.read_text().strip(),
        )


def started_by_lab() -> bool:
    """True while a dockerd that ``ensure`` started is alive."""
    return Daemon("dockerd").pid is not None


def stop_if_ours(progress: Progress) -> None:
    """Stop the engine that the lab started, unless something that is not the lab's runs in it."""
    daemon = Daemon("dockerd")
    before = daemon.record
    if not before:
        return
    if daemon.pid is not None:
        others = docker("ps", "-q").split()
        if others:
            progress.say(f"the engine stays: {len(others)} container(s) that are not the lab's run in it")
            return
        with progress.step("stopping dockerd"):
            daemon.stop()
    _remove_network_leftovers(before)
    daemon.forget()


def _rules(table: str) -> str:
    return run(["iptables", "-w", "-t", table, "-S"], check=False).stdout


def _remove_network_leftovers(before: dict[str, str]) -> None:
    """dockerd leaves chains, rules, a bridge and two kernel settings behind; only those are undone."""
    for table in ("filter", "nat"):
        rules = _rules(table).splitlines()
        for rule in rules:
            words = rule.split()
            if words[0] == "-A" and any(mark in word for word in words for mark in _LEFT_BY_DOCKER):
                run(["iptables", "-w", "-t", table, "-D", *words[1:]], check=False)
        chains = [rule.split()[1] for rule in rules if rule.startswith("-N DOCKER")]
        for flag in ("-F", "-X"):
            for chain in chains:
                run(["iptables", "-w", "-t", table, flag, chain], check=False)
    if before.get("forward_policy") == "ACCEPT":
        run(["iptables", "-w", "-P", "FORWARD", "ACCEPT"], check=False)
    if before.get("ip_forward") == "0":
        _IP_FORWARD.write_text("0")
    for link in ("docker0", places.BRIDGE):
        if Path(f"/sys/class/net/{link}").exists():
            run(["ip", "link", "delete", link], check=False)
    for group in Path("/sys/fs/cgroup").glob("*/docker"):
        with contextlib.suppress(OSError):  # not empty: somebody else's containers
            group.rmdir()
