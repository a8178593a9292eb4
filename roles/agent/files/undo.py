"""The begin of a change, and the two ways back from it: of this run, and of an earlier one that was cut short.

Each step is one process on the host, so a controller that dies leaves no half step; between two steps the record is
what the next run goes by.
"""

import glob
import os
import zipfile

import level as levelling
import node
from record import FILES, add, copy, forget, keep_warnings, lines, mark, marked, remove, settle
from restore import take_back


def begin(run, release, level=False):
    """Take back what an earlier run left, and write down what is there now; make the folders that are missing.

    ``run`` names this run: a later step of another one does not go on with what this one has begun.
    """
    with node.locked():
        said = recover()
        try:
            _record(run, release)
            if level:
                levelling.level(node.RELEASES + "/" + release)
            for path in (node.RELEASES, node.CACHE, node.RELEASES + "/" + release, node.ETC):
                _make_folder(path)
        except OSError as error:
            raise failed(node.STEP, f"{error.filename}: {error.strerror}{obstacle(error.filename)}") from None
        except node.Refusal as error:
            raise failed(error.code, str(error)) from None
        keep_warnings()
        return {"said": said}


def _record(run, release):
    made_opt = not os.path.isdir(node.OPT)
    if os.path.lexists(node.UNDO) and not os.path.isdir(node.UNDO):
        os.unlink(node.UNDO)
    os.makedirs(node.OPT, 0o755, exist_ok=True)
    os.mkdir(node.UNDO, 0o700)
    os.mkdir(FILES, 0o700)
    mark("run", run + "\n")
    if made_opt:
        add("made", node.OPT)
    shown = node.properties("ActiveState")
    if shown["ActiveState"] in ("active", "activating", "reloading"):
        mark("was-active")
    if node.is_enabled():
        mark("was-enabled")
    folder = node.RELEASES + "/" + release
    kept = [node.SETTINGS, node.KEY_FILE, node.CA_FILE, node.UNIT_FILE, node.COMMAND, node.CURRENT, node.PREVIOUS]
    kept += [folder + "/agent.yaml", folder + "/" + node.UNIT]
    mark("changeable", "".join(path + "\n" for path in kept))
    for path in kept:
        if os.path.islink(path) or os.path.isfile(path):
            os.makedirs(os.path.dirname(FILES + path), exist_ok=True)
            copy(path, FILES + path)
    for path in ("/var/lib/heterofleet", node.STATE):
        if not os.path.isdir(path):
            add("made", path)
    settle(node.UNDO)
    mark("complete")
    # What a run of Ansible that was cut left of a file that it was about to rename.
    for place in (folder, node.ETC, node.SYSTEMD):
        for path in glob.glob(place + "/.ansible_tmp*"):
            if place != node.SYSTEMD or "heterofleet" in path:
                remove(path)


def _make_folder(path):
    if not os.path.isdir(path):
        add("made", path)
        os.mkdir(path)
        os.chmod(path, 0o755)


def obstacle(path):
    """Why a file or folder that is ours cannot be changed, where that can be told."""
    for place in (path, os.path.dirname(path or "/")):
        code, said, _ = node.run(["lsattr", "-d", place or "/"])
        if code == 0 and set(said.split(" ")[0]) & {"i", "a"}:
            return f"; it may not change: chattr -ia {place}"
    code, said, _ = node.run(["findmnt", "-n", "-o", "OPTIONS", "-T", path or "/"])
    if code == 0 and "ro" in said.strip().split(","):
        return "; it lies on a file system that is mounted read-only"
    return ""


def need_own(run):
    """A step goes on only with the record of its own run."""
    found = "".join(lines("run")[:1])
    if found != run or not marked("complete"):
        text = "another run has changed this host in the meantime (%s)" % (found or "its record is gone")
        raise node.Refusal(node.STEP, text)


# Is the build what was wanted?

MACHINES = {"amd64": 62, "arm64": 183}  # of ELF files


def need_whole(folder, sha256):
    """What was copied must be what is started: a disk can be broken, and others can write, too."""
    program = folder + "/" + node.PROGRAM
    found = node.digest(program)
    if not found.startswith(sha256):
        text = "%s is not the build that was wanted: found sha256 %s, wanted %s"
        raise node.Refusal(node.DOWNLOAD, text % (program, found or "nothing", sha256))
    if not os.access(program, os.X_OK):
        raise node.Refusal(node.STEP, f"{node.OPT} is mounted noexec, and the agent could not be started from it")


def need_arch(folder, arch):
    """The native parts in the build are for this machine: its name or its manifest may be wrong about that."""
    try:
        with zipfile.ZipFile(folder + "/" + node.PROGRAM) as archive:
            names = [name for name in archive.namelist() if name.endswith(".so")]
            heads = [archive.open(name).read(20) for name in names]
    except (OSError, zipfile.BadZipFile) as error:
        raise node.Refusal(node.DOWNLOAD, f"{folder}/{node.PROGRAM} is no build: {error}") from None
    wanted = MACHINES.get({"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, arch))
    found = {int.from_bytes(head[18:20], "little") for head in heads if head[:4] == b"\x7fELF"}
    if found - {wanted}:
        names = {number: name for name, number in MACHINES.items()}
        other = ", ".join(sorted(names.get(number, str(number)) for number in found - {wanted}))
        text = "%s/%s is a build for %s, and this host is %s"
        raise node.Refusal(node.HOST, text % (folder, node.PROGRAM, other, os.uname().machine))


# Taking back


def recover_now():
    """What an earlier run left is tidied up first, by itself."""
    with node.locked():
        return {"said": recover()}


def recover():
    """What an earlier run left that was cut short. Where the agent that it started has been heard since, all that
    counts was done, and what that agent has taken on is not taken back."""
    remove(node.UNDO + ".done")
    if not os.path.isdir(node.UNDO):
        return ""
    if is_heard():
        forget()
        return "an earlier run was cut short: its agent is at work and stays"
    told = take_back()
    if not told["whole"]:
        raise node.Refusal(node.STEP, "an earlier run was cut short: " + told["words"])
    return "an earlier run was cut short, and what it had done is taken back: " + told["words"]


def is_heard():
    """Whether the agent that runs was started by the run of the record, and a control plane has answered it."""
    pid = node.properties("MainPID")["MainPID"]
    if not lines("touched") or pid in ("0", lines("touched")[0]):
        return False
    if node.running_release(pid) != node.target(node.CURRENT):
        return False
    said = node.said_status()
    return str(said.get("pid")) == pid and bool(said.get("last_beat_at"))


def take_back_now(run):
    """The rescue of a run: looks at the host as it is now, and takes back what this very run has begun."""
    with node.locked():
        if "".join(lines("run")[:1]) != run:
            return {"restored": None}
        return {"restored": take_back()}


def failed(code, text):
    """A refusal after everything was taken back."""
    error = node.Refusal(code, text)
    error.restored = take_back()
    return error
