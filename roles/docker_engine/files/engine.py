"""What there is of a container engine on this host; changes nothing."""

import http.client
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import unix_http

SOCKET = "/var/run/docker.sock"
FILE = Path("/etc/docker/daemon.json")
DEADLINE_S = 20


class Refusal(Exception):
    """What a person can do something about."""


def ask(path, what):
    return unix_http.get(path, what, DEADLINE_S)


def run(*words):
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def text(output):
    return output.decode("utf-8", "replace").strip()


def look(asked):
    """``engine``: answers, silent (it is there and not at work), missing, or elsewhere (docker_engine_host says)."""
    found = {"engine": "elsewhere", "os": systems(), "pending": []}
    host, path = asked["host"], where(asked)
    if path is None:
        return found
    try:
        version, info = ask(path, "/version"), ask(path, "/info")
    except (OSError, http.client.HTTPException, ValueError) as error:
        # An engine that was taken off leaves its socket, where nobody listens.
        heard = Path(path).is_socket() and not isinstance(error, ConnectionRefusedError)
        there = host or heard or shutil.which("dockerd") or loaded()
        found.update(engine="silent" if there else "missing", why=str(error), socket=path)
        return found
    task = json.dumps({"label": ["heterofleet.task"], "status": ["running"]})
    running = ask(path, "/containers/json?filters=" + task.replace('"', "%22").replace(" ", ""))
    parts = [part.get("Name") for part in version.get("Components") or []]
    found.update(
        engine="answers",
        version=version.get("Version"),
        docker="Engine" in parts or not parts,
        running=info["ContainersRunning"],
        tasks=len(running),
        containers=info["Containers"],
        runtimes=sorted(info.get("Runtimes") or {}),
        nvidia_cards=Path("/proc/driver/nvidia/version").exists() or nvidia_on_the_bus(),
    )
    if asked["daemon"]:
        found["pending"] = pending(asked["daemon"], info)
    return found


def where(asked):
    """The engine's socket; None: it is on another machine."""
    host = asked["host"]
    if host.startswith("unix://"):
        return host[len("unix://") :]
    return None if host else SOCKET


def loaded():
    done = run("systemctl", "show", "--property=LoadState", "docker.service")
    return text(done.stdout) == "LoadState=loaded"


def nvidia_on_the_bus():
    """By the listing of the bus: true also before any driver is there."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            kind, vendor = (device / "class").read_text(), (device / "vendor").read_text()
        except OSError:
            continue
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def systems():
    """Names of this operating system, the narrowest first: with its version, alone, and what it is like."""
    said = {}
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        said[name] = value.strip().strip("\"'")
    own = said.get("ID", "linux")
    names = [own + "-" + said["VERSION_ID"]] if said.get("VERSION_ID") else []
    return [*names, own, *said.get("ID_LIKE", "").split()]


def process():
    """The engine's process: its id and the words that it was started with; None where that is not to be seen."""
    try:
        number = int(Path("/var/run/docker.pid").read_text())
        words = (Path("/proc") / str(number) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except (OSError, ValueError):
        return None
    return (number, words) if words[0].endswith("dockerd") else None


def started(number):
    """When a process began, in seconds as a file's time."""
    fields = (Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def file_of_the_engine():
    found = process()
    for word, after in zip(found[1], found[1][1:] + [""]) if found else ():
        if word == "--config-file":
            return Path(after)
        if word.startswith("--config-file="):
            return Path(word.partition("=")[2])
    return FILE


def at_work(info):
    """The lines that the engine itself tells of."""
    registries = info.get("RegistryConfig") or {}
    insecure = [name for name, one in (registries.get("IndexConfigs") or {}).items() if not one.get("Secure", True)]
    return {
        "data-root": info.get("DockerRootDir"),
        "debug": info.get("Debug"),
        "default-runtime": info.get("DefaultRuntime"),
        "insecure-registries": insecure + (registries.get("InsecureRegistryCIDRs") or []),
        "labels": info.get("Labels") or [],
        "live-restore": info.get("LiveRestoreEnabled"),
        "log-driver": info.get("LoggingDriver"),
        "registry-mirrors": [url.rstrip("/") for url in registries.get("Mirrors") or []],
        "runtimes": {name: one.get("path") for name, one in (info.get("Runtimes") or {}).items()},
        "storage-driver": info.get("Driver"),
    }


def pending(wanted, info, written=False):
    """The wanted lines that the engine has not taken yet. Of lines it does not tell of, the file's time says it, or
    that it was ``written`` now."""
    here, found, file = at_work(info), process(), file_of_the_engine()
    try:
        newer = written or (found is not None and file.stat().st_mtime > started(found[0]))
    except OSError:
        newer = False  # there is no such file, so nothing of it waits
    return sorted(name for name, value in wanted.items() if waits(name, value, here, newer))


def waits(name, value, here, newer):
    if name not in here:
        return newer
    if name == "runtimes":
        return any(here[name].get(one) != about.get("path") for one, about in value.items())
    if isinstance(value, list):
        return bool({str(one).rstrip("/") for one in value} - set(here[name]))
    return value != here[name]
