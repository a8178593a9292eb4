"""Where things lie on a host, and how to ask it: systemd, the engine, the agent's own status."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import time

OPT = "/opt/heterofleet"
RELEASES, CACHE = OPT + "/releases", OPT + "/cache"
CURRENT, PREVIOUS, UNDO = OPT + "/current", OPT + "/previous", OPT + "/.undo"
UNIT = "heterofleet-agent.service"
SYSTEMD = "/etc/systemd/system"
UNIT_FILE = SYSTEMD + "/" + UNIT
WANTED_BY = SYSTEMD + "/multi-user.target.wants/" + UNIT
ETC = "/etc/heterofleet"
SETTINGS, KEY_FILE, CA_FILE = ETC + "/agent.yaml", ETC + "/agent.key", ETC + "/ca.pem"
STATE = "/var/lib/heterofleet/agent"
COMMAND = "/usr/local/bin/heterofleet-agent"
PROGRAM = "heterofleet-agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib"

STEP, HOST, DOWNLOAD, BEAT = 8, 5, 6, 7  # exit codes of the scripts, for the same reasons
WARNINGS = []


class Refusal(Exception):
    """Why it is not done, or could not be; ``restored``: what was done is taken back."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.restored = code, None


def warn(text):
    WARNINGS.append(text)


# Programs


def run(words, timeout=120, **options):
    """(exit code, standard output, standard error); a program that is missing or hangs is 127 or 124."""
    environ = {"PATH": PATH, "LC_ALL": "C", "HOME": "/root"}
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env={**environ, **options.pop("env", {})},
            **options,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout} s"
    except OSError as error:
        return 127, "", str(error)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def service(*words, **options):
    return run(["systemctl", *words], **options)


def properties(*names):
    """Properties of the service as systemd has it now, by name; empty texts where it does not answer."""
    _, said, _ = service("show", *[word for name in names for word in ("-p", name)], UNIT)
    found = dict(line.partition("=")[::2] for line in said.splitlines())
    return {name: found.get(name, "") for name in names}


def agent(folder, *words, timeout=120, cache=CACHE):
    """The agent's program as the unit runs it: its PATH and cache, and nothing else."""
    return run([folder + "/" + PROGRAM, *words], timeout=timeout, env={"PEX_ROOT": cache})


def is_enabled():
    return service("is-enabled", "--quiet", UNIT)[0] == 0


# Files


def read(path):
    """The bytes of a file; None when there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def link(path):
    """Where a symbolic link leads, letter for letter; nothing when it is none."""
    return os.readlink(path) if os.path.islink(path) else ""


def target(path):
    """The release that one of our links names."""
    return os.path.basename(link(path))


def digest(path, name="sha256"):
    """Of a file's content; nothing where it cannot be read, or where the host does not allow this digest (md5)."""
    try:
        found = hashlib.new(name, usedforsecurity=False)
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                found.update(piece)
    except (OSError, ValueError):
        return ""
    return found.hexdigest()


def is_file(path, mode):
    """Whether this is a plain file of root's with that mode."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return os.path.isfile(path) and (info.st_mode, info.st_uid, info.st_gid) == (0o100000 | mode, 0, 0)


@contextlib.contextmanager
def locked(wait_s=200):
    """Alone on this host: the lock that the scripts take, too. It ends with this process, whatever happens."""
    try:
        lock = os.open(SYSTEMD, os.O_RDONLY)
    except OSError as error:
        raise Refusal(STEP, f"cannot read {SYSTEMD}: {error.strerror}") from None
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    text = "a HeteroFleet script or another run of this role is at work on this host, for %d s now"
                    raise Refusal(STEP, text % wait_s) from None
            time.sleep(0.2)
        yield
    finally:
        os.close(lock)


# The present settings


def scalar(name, text):
    """A setting of an agent.yaml when it is a text in one line, else nothing."""
    found = re.search(r"^" + name + r"[ \t]*:[ \t]+(.*?)[ \t]*$", text, re.MULTILINE)
    word = found.group(1) if found else ""
    quoted = re.match(r"""("(?:[^"\\]|\\.)*")|'((?:[^']|'')*)'""", word)
    try:
        if quoted:
            return json.loads(quoted.group(1)) if quoted.group(1) else quoted.group(2).replace("''", "'")
    except ValueError:
        return ""
    word = re.sub(r"(^|[ \t]+)#.*", "", word)
    return "" if word in ("null", "Null", "NULL", "~") else word


def settings_text(path=SETTINGS):
    return (read(path) or b"").decode(errors="replace")


# The agent


def running_release(pid):
    """The release that a process was started from, by its own environment; nothing when it does not say."""
    environ = (read(f"/proc/{pid}/environ") or b"").split(b"\0") if pid not in ("", "0") else []
    for word in environ:
        found = re.fullmatch(rb"PEX=.*/releases/([^/]*)/heterofleet-agent", word)
        if found:
            return found.group(1).decode(errors="replace")
    return ""


def state_folder():
    return scalar("state_dir", settings_text()) or STATE


def said_status():
    """What the agent wrote of itself last; nothing when none has."""
    try:
        found = json.loads(read(state_folder() + "/status.json") or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def status(folder=CURRENT, wait_s=0):
    """What `heterofleet-agent status` says now, and whether it is registered."""
    code, said, _ = agent(folder, "status", "--json", "--wait", str(wait_s), timeout=wait_s + 60)
    try:
        found = json.loads(said)
    except ValueError:
        found = None
    # An agent of an older release that has not said anything yet says null.
    return code == 0, found if isinstance(found, dict) else {}


# What belongs to tasks


def engine(*words):
    """The docker command, asking the engine that the agent uses; it is not waited for long."""
    host = engine_host()
    return run(["docker", *(["-H", host] if host else []), *words], timeout=20)


def engine_host():
    """Where the agent's settings have the engine; nothing where they leave it to Docker."""
    found = re.match(r"[a-z]*:[^\s\"']*", scalar("docker_host", settings_text()))
    return found.group(0) if found else ""


def task_containers():
    """{"present": names, "running": names, "unanswered": why nobody can tell}. Units of plain processes count, too.

    No engine has none; an engine that gives no answer is not "none".
    """
    _, said, _ = service("list-units", "--all", "--plain", "--no-legend", "--no-pager", "heterofleet-task-*")
    units = [line.split()[0].removesuffix(".service") for line in said.splitlines() if line.strip()]
    found = {"present": list(units), "running": list(units), "unanswered": ""}
    for names, words in ((found["present"], ["--all"]), (found["running"], [])):
        code, said, _ = engine("ps", *words, "--filter", "label=heterofleet.task", "--format", "{{.Names}}")
        if code == 127:
            if engine_host() or os.path.exists("/run/docker.sock"):
                found["unanswered"] = "there is an engine, and no docker command to ask it with"
            break
        if code:
            found["unanswered"] = f"docker ps ended with {code}; 124 is no answer within 20 s"
            break
        names += said.split()
    return found
