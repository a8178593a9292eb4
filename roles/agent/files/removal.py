"""Removing the agent. Task containers are not touched unless their removal was asked for by name."""

import glob
import os
import re

import node
import record

PINS = "/run/heterofleet/volumes"
PROCESSES = "/run/heterofleet/processes"
TASK_UNITS = "/run/systemd/system/heterofleet-task-.service.d"


def remove(purge, force, remove_tasks=None, dry=False):
    """``remove_tasks``: the containers and units that were named before; no other one is touched.

    ``dry``: say what would be removed. Refuses what would lose work, unless ``force``.
    """
    try:
        if os.geteuid() != 0 or not os.path.isdir("/run/systemd/system"):
            raise node.Refusal(node.HOST, "wanted root on a host that was started by systemd")
        tasks = node.task_containers()
        gone = [] if remove_tasks is None else [name for name in remove_tasks if name in tasks["present"]]
        left = {**tasks, **{kind: [n for n in tasks[kind] if n not in gone] for kind in ("present", "running")}}
        units = [name for name in left["present"] if name.startswith("heterofleet-task-")]
        _look_for_mounts(node.OPT, node.STATE)
        if purge and not force:
            _look_before_purge(left)
    except node.Refusal as error:
        error.restored = "untouched"
        raise
    paths = [path for path in _paths(purge, units) if os.path.lexists(path)]
    removed = [*gone, *paths]
    if dry:
        return {"removed": removed, "tasks": left, "kept": []}
    with node.locked():
        _stop()
        if purge and not force:
            _look_again(gone)
        _disable()
        for name in gone:
            _remove_task(name)
        # In one step: of half of it a later run would take for new what was there before.
        if os.path.isdir(node.UNDO):
            record.remove(node.UNDO + ".done")
            os.rename(node.UNDO, node.UNDO + ".done")
        had_unit = os.path.lexists(node.UNIT_FILE)
        for path in paths:
            code, _, said = node.run(["rm", "-rf", "--one-file-system", path])
            if code:
                raise node.Refusal(node.STEP, f"cannot remove {path}: {said.strip()}")
        if purge:
            removed += _release_volumes(left)
            _rmdir(os.path.dirname(PROCESSES))
        if had_unit:
            node.service("daemon-reload")
        # Else systemd remembers how it ended, although there is nothing that could have.
        node.service("reset-failed", node.UNIT)
        # Empty only when this machine is no control plane, too.
        for path in (node.ETC, "/var/lib/heterofleet"):
            _rmdir(path)
    places = (node.UNIT_FILE + ".d", node.ETC, node.STATE)
    return {"removed": removed, "tasks": left, "kept": [path for path in places if os.path.lexists(path)]}


def _paths(purge, units):
    program = node.CURRENT + "/" + node.PROGRAM
    paths = [node.COMMAND] if node.link(node.COMMAND) == program else []
    paths += [node.WANTED_BY, node.UNIT_FILE, node.OPT]
    if purge:
        for path in (node.SETTINGS, node.KEY_FILE, node.CA_FILE):
            paths += [path, path + ".new", path + ".back"]
        paths.append(node.STATE)
        if not units:
            # What an agent wrote down of plain processes; while any still runs, another agent needs it.
            paths += [PROCESSES, TASK_UNITS]
    return paths


def _look_for_mounts(*places):
    """What is mounted below a folder is somebody's data, or another machine's: removing must not reach it."""
    for line in (node.read("/proc/self/mountinfo") or b"").decode(errors="surrogateescape").splitlines():
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), line.split()[4])
        if place.startswith(tuple(path + "/" for path in places)):
            text = "a file system is mounted at %s: unmount it first; nothing was removed"
            raise node.Refusal(node.STEP, text % place.encode("utf-8", "replace").decode())


def _look_before_purge(tasks):
    """With the state folder goes what is needed to supervise containers and to deliver results."""
    told, refusal = "set agent_force", node.Refusal
    if tasks["unanswered"]:
        text = "nobody can tell whether task containers run here (%s): start the engine, or %s"
        raise refusal(node.STEP, text % (tasks["unanswered"], told))
    if tasks["running"]:
        text = "task containers run here and nobody would supervise them (%s): stop them, set agent_remove_tasks, or %s"
        raise refusal(node.STEP, text % (", ".join(tasks["running"]), told))
    if tasks["present"]:
        # Asleep, or ended a moment ago and not reported yet: nobody would wake it, or tell how it ended.
        text = "containers of tasks that do not run are still here (%s): wait until their tasks are over, or %s"
        raise refusal(node.STEP, text % (", ".join(tasks["present"]), told))
    if not os.path.exists(node.STATE + "/journal.db"):
        return
    undelivered = node.status()[1].get("undelivered")
    if undelivered is None:
        text = "nobody can tell whether all results were delivered; %s to drop what %s has"
        raise refusal(node.STEP, text % (told, node.STATE))
    if undelivered:
        text = "%s results were not delivered and would be lost; %s to drop them"
        raise refusal(node.STEP, text % (undelivered, told))


def _stop():
    active = node.properties("ActiveState")["ActiveState"] in ("active", "activating", "deactivating", "reloading")
    if os.path.isfile(node.UNIT_FILE) or active:
        code, _, said = node.service("stop", node.UNIT)
        if code:
            raise node.Refusal(node.STEP, f"cannot stop {node.UNIT}: {said.strip()}")


def _look_again(gone):
    """Until it was stopped the agent could begin a task, which nobody would supervise then."""
    tasks = node.task_containers()
    begun = [name for name in tasks["present"] if name not in gone]
    if begun or tasks["unanswered"]:
        node.service("start", "--no-block", node.UNIT)
        text = "meanwhile a task has begun here (%s); the agent runs again, and nothing was removed"
        error = node.Refusal(node.STEP, text % (tasks["unanswered"] or ", ".join(begun)))
        error.restored = "untouched"
        raise error


def _disable():
    if os.path.isfile(node.UNIT_FILE) and node.service("disable", "--quiet", "--no-reload", node.UNIT)[0]:
        raise node.Refusal(node.STEP, "cannot disable " + node.UNIT)


def _remove_task(name):
    """A container with its anonymous volumes, or the unit of a plain process."""
    if name.startswith("heterofleet-task-"):
        node.service("stop", name + ".service")
        return
    node.engine("stop", name)
    code, _, said = node.engine("rm", "--force", "--volumes", name)
    if code:
        raise node.Refusal(node.STEP, f"cannot remove the task container {name}: {said.strip()}")


def _release_volumes(tasks):
    """Volumes that the agent held for containers that are gone. Those that any container names stay as they are, and
    all of them when the engine cannot be asked."""
    if not os.path.isdir(PINS):
        return []
    named = None if tasks["unanswered"] else _volumes_in_use()
    if named is None:
        node.warn(f"kept the mounts in {PINS}: the engine could not be asked which of them are in use")
        return []
    released = []
    for pin in sorted(glob.glob(PINS + "/*/*")):
        if pin in named:
            continue
        # The one mount, then its empty place: whatever it shows is not ours.
        node.run(["umount", "-l", pin])
        if os.path.isfile(pin) and os.path.getsize(pin) == 0:
            os.unlink(pin)
        elif not _rmdir(pin):
            continue
        released.append(pin)
        _rmdir(os.path.dirname(pin))
    if not os.listdir(PINS):
        # A private mount of its own, and the lock beside it: they go when they hold nothing.
        node.run(["umount", PINS])
        if _rmdir(PINS):
            record.remove(os.path.dirname(PINS) + "/.volumes.lock")
        _rmdir(os.path.dirname(PINS))
    return released


def _volumes_in_use():
    code, ids, _ = node.engine("ps", "-aq", "--filter", "label=heterofleet.task")
    if code == 127:
        return set()
    named = set()
    for one in ids.split() if code == 0 else []:
        code, said, _ = node.engine("inspect", "--format", "{{range .Mounts}}{{println .Source}}{{end}}", one)
        named.update(said.splitlines())
    return named if code == 0 else None


def _rmdir(path):
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True
