"""What the role finds and lays down on the control plane's host: releases, settings, links, the unit.

change.py switches to another release and goes back in one process, so that a controller that is cut off does not leave
the service stopped half-way.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

OPT = Path("/opt/heterofleet-server")
RELEASES, STAGED, BEFORE = OPT / "releases", OPT / "staged", OPT / "before"
JOURNAL = OPT / "switching.json"
ETC = Path("/etc/heterofleet")
COMMAND, PROGRAM = Path("/usr/local/bin/heterofleet"), OPT / "current" / "venv" / "pex"
UNIT = "heterofleet-server.service"
STARTED_WITH = Path("/run/heterofleet-server/started-with")
PLACES = {
    "server.yaml": Path("/etc/heterofleet/server.yaml"),
    "server.key": Path("/etc/heterofleet/server.key"),
    UNIT: Path("/etc/systemd/system") / UNIT,
}
ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}
PYTHONS = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
POLL_S = 0.25


class Refusal(Exception):
    """What was asked for is not done, and nothing was changed."""


def run(*words, check=False):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:6])}: {(done.stderr or done.stdout).strip()[-600:] or done.returncode}")
    return done


def systemctl(*words):
    return run("systemctl", *words, check=True)


def link(name):
    """The release that ``current`` or ``previous`` names; None: there is none."""
    path = OPT / name
    return path.readlink().name if path.is_symlink() and path.exists() else None


def put_link(name, release):
    if release is None:
        (OPT / name).unlink(missing_ok=True)
    elif link(name) != release:
        beside = OPT / f".{name}.new"
        beside.unlink(missing_ok=True)
        beside.symlink_to(f"releases/{release}")
        beside.replace(OPT / name)


def whole(release, sha256=None):
    """The release was unpacked to its end, and starts."""
    folder = RELEASES / release
    with contextlib.suppress(OSError):
        said = (folder / "whole").read_text().strip()
        return sha256 in (None, said) and run(str(folder / "venv" / "pex"), "--version").returncode == 0
    return False


def python():
    """An interpreter that a release runs on."""
    for name in PYTHONS:
        path = shutil.which(name)
        if path and run(path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))").returncode == 0:
            return path
    return None


def contents(folder=None):
    """Name -> bytes of the settings, the key and the unit, of a folder or where they are in force."""
    found = {}
    for name, place in PLACES.items():
        with contextlib.suppress(OSError):
            found[name] = (place if folder is None else folder / name).read_bytes()
    return found


def started_with(files, release):
    digest = hashlib.sha256(b"".join(files.get(name, b"") for name in PLACES)).hexdigest()
    with contextlib.suppress(OSError):
        return STARTED_WITH.read_text().split()[:2] == [str(RELEASES / str(release)), digest]
    return False


def active():
    return run("systemctl", "is-active", "--quiet", UNIT).returncode == 0


@contextlib.contextmanager
def alone():
    """One run at a time on this host."""
    with Path("/run/heterofleet-server.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lacks_command():
    """The command for people on this host; what somebody else has put there stays."""
    return not os.path.lexists(COMMAND)


def look(words):
    prepared = False
    arch = os.uname().machine
    arch = ARCHES.get(arch, arch)
    build = words["builds"].get(arch, {})
    release = f"{words['stem']}-{build.get('sha256', '')[:8]}"
    with contextlib.suppress(KeyError):
        pwd.getpwnam(words["user"])
        prepared = all(path.is_dir() for path in (RELEASES, STAGED, Path(words["backups"]), ETC))
    return {
        "arch": arch,
        "family": "debian" if Path("/etc/debian_version").exists() else "redhat",
        "release": release,
        "file": build.get("file"),
        "python": python(),
        "systemd": Path("/run/systemd/system").is_dir(),
        "whole": bool(build) and whole(release, build["sha256"]),
        "prepared": prepared,
        "current": link("current"),
        "previous": link("previous"),
        "installed": PLACES["server.yaml"].exists(),
        "active": active(),
        "nginx": Path("/usr/sbin/nginx").exists(),
        "psql": shutil.which("psql") is not None,
        "postgresql": any(shutil.which(name) for name in ("pg_lsclusters", "postgresql-setup")),
        "ipv6": Path("/proc/net/if_inet6").exists(),
    }


def prepare(words):
    """The folders that everything lies in. What is there keeps its mode."""
    os.umask(0o022)
    for path in (OPT, RELEASES, STAGED, ETC, RELEASES / words["release"]):
        path.mkdir(exist_ok=True)
    state = Path(words["backups"]).parent
    state.parent.mkdir(parents=True, exist_ok=True)
    for path in (state, Path(words["backups"])):
        if not path.exists():
            path.mkdir(mode=0o700)
            os.chown(path, *owner(words))
    return said("changed", None, words["release"], "")


def unpack(words):
    """The release's file as a virtual environment, which only root writes. Begun again when it was cut off."""
    os.umask(0o022)
    folder = RELEASES / words["release"]
    file, scratch = folder / "bundle", folder / "unpacking"
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        for piece in iter(lambda: opened.read(1 << 20), b""):
            digest.update(piece)
    if digest.hexdigest() != words["sha256"]:
        raise Refusal(f"{words['file']} is not what its manifest says: sha256 {digest.hexdigest()}")
    environ = {"PATH": os.environ["PATH"], "PEX_TOOLS": "1", "PEX_ROOT": str(scratch), "LC_ALL": "C.UTF-8"}
    command = [words["python"], str(file), "venv", "--force", "--compile", str(folder / "venv")]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Refusal(f"{words['file']} cannot be unpacked: {done.stderr.strip()[-600:]}")
    shutil.rmtree(scratch, ignore_errors=True)
    write(folder / "whole", f"{words['sha256']}\n".encode(), 0o644, (0, 0))
    file.unlink()
    return said("changed", None, words["release"], "")


def owner(words):
    found = pwd.getpwnam(words["user"])
    return found.pw_uid, found.pw_gid


def install(words, files, folder=None):
    if folder is not None:
        folder.mkdir(mode=0o700, exist_ok=True)
    for name, data in files.items():
        unit = name == UNIT
        write(
            (PLACES[name] if folder is None else folder / name),
            data,
            0o644 if unit else 0o600,
            (0, 0) if unit or folder is not None else owner(words),
        )


def write(path, data, mode, who):
    with contextlib.suppress(OSError):
        if path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
            return
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)
        os.fchown(handle, *who)
        file.write(data)
        file.flush()
        os.fsync(handle)
    beside.replace(path)


def said(result, old, to, reason, backup=None):
    return {"result": result, "from": old, "to": to, "reason": reason, "backup": backup}


def save(journal):
    write(JOURNAL, json.dumps(journal).encode(), 0o600, (0, 0))


def journalled():
    """The change that was cut off; empty: none was."""
    return json.loads(JOURNAL.read_text()) if JOURNAL.exists() else {}


def backups(words):
    """What is known of each backup, the newest first. Where its file lies, what is beside it says, and not its content:
    the server's user can write there, and root removes what is old."""
    found = [
        {**json.loads(path.read_text()), "file": str(path.with_suffix(""))}
        for path in sorted(Path(words["backups"]).glob("*.json"), reverse=True)
    ]
    return [meta for meta in found if Path(meta["file"]).exists()]


def prune(words):
    """Old backups and releases go; those that a rollback would need stay."""
    for meta in backups(words)[words["keep_backups"] :]:
        Path(meta["file"]).unlink(missing_ok=True)
        Path(f"{meta['file']}.json").unlink(missing_ok=True)
    kept = {link("current"), link("previous")}
    others = sorted(
        (path for path in RELEASES.iterdir() if path.name not in kept), key=lambda path: path.stat().st_mtime
    )
    for path in others[: max(0, len(others) + len(kept) - words["keep_releases"])]:
        shutil.rmtree(path)
