# One look at a node, on the node: it prints facts as JSON and changes nothing, not even by a passing file.
# On its way there templates/_unix_http.py and _helper.py follow this text: the installation scripts and the roles ask
# an engine and a control plane in the same way, and the last line calls look(). What is asked comes as JSON on
# standard input, the system key too, so that no argument, environment variable or file has it.
# ruff: noqa: F821 (get is of the first; fetch, refusal, why, scalar, FAILURES and LIMIT are the helper's)
import contextlib
import datetime
import getpass
import hashlib
import http.client
import importlib
import json
import os
import platform
import re
import shutil
import socket
import stat
import sys
import time
import urllib.error
from pathlib import Path

OPT = Path("/opt/heterofleet")
SETTINGS = "/etc/heterofleet/agent.yaml"
STATE = "/var/lib/heterofleet/agent"
UNIT = "/etc/systemd/system/heterofleet-agent.service"
DOCKER = "/var/run/docker.sock"
DOCKER_S = 10
PROGRAM = "heterofleet-agent"
PLACES = ("/opt", "/etc", "/etc/systemd/system", "/var/lib")
# Parts of Python that distributions leave out of their small packages, and that the agent needs.
MODULES = ("ctypes", "sqlite3", "ssl", "zipfile")
NO_MACHINE = ("", "uninitialized")
NO_PRODUCT = (
    "",
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
    "not settable",
    "not specified",
    "not present",
)


def look():
    asked = json.load(sys.stdin)
    os.environ["BASE"] = SETTINGS
    if asked.get("proxy"):
        present = scalar
        globals()["scalar"] = lambda name: asked["proxy"] if name == "proxy" else present(name)
    found = {
        "python": platform.python_version(),
        "lacks": [name for name in MODULES if not can_import(name)],
        "user": user(),
        "uid": os.geteuid(),
        "machine": platform.machine(),
        "systemd": Path("/run/systemd/system").is_dir(),
        "identity": identity(),
        "engine": engine(asked.get("docker_host") or scalar("docker_host")),
        "installed": installed(),
        "copies": copies(asked.get("path") or ""),
        "control_plane": ask(asked),
    }
    found["places"] = {path: place(path) for path in (*PLACES, found["engine"].get("root"), str(OPT)) if path}
    json.dump(found, sys.stdout)


def can_import(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def user():
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def line(path):
    try:
        return Path(path).read_text("utf-8", "replace").strip().lower()
    except OSError:
        return ""


def identity():
    """Who this machine and its agent are. The machine is told as a hash: nobody needs the numbers."""
    machine, product = line("/etc/machine-id"), line("/sys/class/dmi/id/product_uuid")
    parts = ("" if machine in NO_MACHINE else machine, "" if product in NO_PRODUCT else product)
    stored = {}
    with contextlib.suppress(OSError, ValueError):
        stored = json.loads(Path(scalar("state_dir") or STATE, "identity.json").read_text("utf-8"))
    stored = stored if isinstance(stored, dict) else {}
    return {
        "machine": hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts[0] else None,
        "hostname": socket.gethostname(),
        "configured": scalar("node_id") or None,
        "stored": stored.get("node_id"),
        "instance_id": stored.get("instance_id"),
    }


def ask(asked):
    """Does the control plane take the key, from this node's network? Whose it is, and how far its clock is away."""
    if not asked.get("key"):
        return {"state": "not asked"}
    url = asked["url"].rstrip("/") + "/api/v1/agent/preflight"
    ca_file = given = ""
    try:
        ca_file = given = in_memory(asked["ca"]) if asked.get("ca") else ""
        ca_file = ca_file or scalar("ca_file")
        began, steady = time.time(), time.monotonic()
        with fetch(url, ca_file, {"X-API-Key": asked["key"]}) as answer:
            took = time.monotonic() - steady
            body = json.loads(answer.read(LIMIT))
        return {"state": "well", "id": str(body["control_plane_id"]), "skew_s": skew(body, began, took)}
    except urllib.error.HTTPError as error:
        seen = error.headers.get("X-Control-Plane-Id")
        if error.code == 401 and seen:
            return {"state": "key refused", "id": seen}
        return {"state": "unreachable", "why": refusal(error, url)}
    except (ValueError, KeyError, TypeError):
        words = url + " answered with HTTP status 200, and not as a HeteroFleet control plane answers"
        return {"state": "unreachable", "why": words}
    except FAILURES as error:
        words = why(error, ca_file)
        return {"state": "unreachable", "why": words.replace(given, "the file of fleet_ca_file") if given else words}


def in_memory(text):
    """A file that is on no disk, for what takes only files."""
    number = os.memfd_create("ca")
    os.write(number, text.encode())
    return f"/proc/self/fd/{number}"


def skew(body, began, took):
    """Seconds that this node's clock is ahead of the control plane's; none where it does not say its time."""
    try:
        theirs = datetime.datetime.fromisoformat(re.sub(r"(\.\d+)?Z$", "+00:00", body["time"]))
    except (KeyError, TypeError, ValueError):
        return None
    return round(began + took / 2 - theirs.timestamp(), 1)


def engine(host):
    """answers, silent (it is there, and not at work), missing, or elsewhere (where the settings say)."""
    if host and not host.startswith("unix://"):
        return {"state": "elsewhere", "at": host}
    path = host[len("unix://") :] if host else DOCKER
    try:
        said, info = get(path, "/version", DOCKER_S), get(path, "/info", DOCKER_S)
        return {"state": "answers", "at": path, "version": said["Version"], "root": info["DockerRootDir"]}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        # Where nobody listens, the socket is what another engine left.
        listens = Path(path).exists() and not isinstance(error, ConnectionRefusedError)
        is_there = host or listens or shutil.which("dockerd")
        return {"state": "silent" if is_there else "missing", "at": path, "why": str(error) or type(error).__name__}


def place(path):
    """The file system that a path is on, or will be on: the nearest folder that is there says it."""
    folder = next(folder for folder in (Path(path), *Path(path).parents) if folder.is_dir())
    info = os.statvfs(folder)
    return {
        "free_mib": info.f_bavail * info.f_frsize >> 20,
        "files_left": info.f_favail if info.f_files else None,
        "read_only": bool(info.f_flag & os.ST_RDONLY),
        "noexec": bool(info.f_flag & os.ST_NOEXEC),
    }


def kind(path):
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "none"
    return "link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "file"


def installed():
    """What an earlier installation left."""
    current = OPT / "current"
    return {
        "opt": kind(OPT),
        "opt_target": str(OPT.readlink()) if kind(OPT) == "link" else None,
        "current": str(current.readlink()) if kind(current) == "link" else None,
        "whole": os.access(current / PROGRAM, os.X_OK),
        "cut": kind(OPT / ".undo") != "none",
        "unit": kind(UNIT) != "none",
        "settings": kind(SETTINGS) != "none",
    }


def copies(path):
    """Programs of our name that a person would start instead of the one that the service runs."""
    ours = os.path.realpath(OPT / "current" / PROGRAM)
    found = {}
    for folder in path.split(":"):
        copy = Path(folder, PROGRAM)
        if folder and os.access(copy, os.X_OK) and os.path.realpath(copy) != ours:
            found.setdefault(os.path.realpath(copy), str(copy))
    return sorted(found.values())


# Here follows templates/_helper.py.
