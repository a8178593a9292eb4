"""Putting back what the record has; and what that needs of systemd and of the cache."""

import glob
import os
import sys
import time

import node
import prune
import record
from record import FILES, lines, marked, remove


def take_back():
    """{"whole": all is as before, "agent": heard, started or none, "words"}."""
    could_not, agent = [], "none"
    if marked("complete"):
        could_not = _files_back()
    made = lines("made")
    for path in reversed(made):
        if path == node.STATE:
            _drop_state()
        elif path.startswith(node.OPT + "/"):
            remove(path)
        elif path != node.OPT and os.path.isdir(path) and not os.listdir(path):
            os.rmdir(path)
    prune_cache()
    if marked("was-active"):
        agent = _bring_back()
    if could_not:
        words = "could not put back {}; free them and run this again".format(", ".join(could_not))
        return {"whole": False, "agent": agent, "words": words}
    record.forget()
    if node.OPT in made:
        remove(node.OPT)
    words = {
        "none": "no agent ran before, and none runs now",
        "untouched": "the agent from before was not touched",
        "heard": "the agent from before runs again and is registered",
        "started": "the agent from before was started again; it has not reported yet",
    }
    return {"whole": True, "agent": agent, "words": words[agent]}


def _files_back():
    could_not = []
    if not marked("was-active") or marked("touched"):
        stop_firmly(5)
    if not marked("was-enabled"):
        node.service("disable", "--quiet", "--no-reload", node.UNIT)
    for path in lines("changeable"):
        try:
            _put_back(path, FILES + path)
        except OSError:
            could_not.append(path)
    aside = lines("aside")
    for path, beside in zip(aside[::2], aside[1::2]):
        if os.path.lexists(beside):
            try:
                remove(path)
                os.rename(beside, path)
            except OSError:
                could_not.append(path)
    for line in lines("modes"):
        mode, owner, path = line.split(" ", 2)
        if os.path.lexists(path):
            os.chown(path, *map(int, owner.split(":")))
            os.chmod(path, int(mode, 8))
    reload_if_needed()
    if not marked("was-active"):
        node.service("reset-failed", node.UNIT)
    return could_not


def _put_back(path, kept):
    """As it was before, or gone where nothing was."""
    remove(path + ".new")
    remove(path + ".back")
    if os.path.lexists(kept):
        if os.path.isdir(os.path.dirname(path)):
            record.copy(kept, path + ".back")
            os.replace(path + ".back", path)
    elif os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)


def _drop_state():
    """Only what nothing depends on: no container, asleep or ended ones included, and no claim or result."""
    tasks, said = node.task_containers(), node.said_status()
    if tasks["unanswered"]:
        node.warn(
            "kept {}: nobody can tell whether there are task containers ({})".format(node.STATE, tasks["unanswered"])
        )
    elif tasks["present"]:
        node.warn(f"kept {node.STATE}: there are task containers")
    elif said.get("tasks") or said.get("undelivered"):
        node.warn(f"kept {node.STATE}: there are tasks or results in it")
    else:
        node.run(["rm", "-rf", "--one-file-system", node.STATE])


def _bring_back():
    """The agent that ran before must run again, and say so."""
    node.service("start", "--no-block", node.UNIT)
    if not marked("touched"):
        return "untouched"
    heard, said = node.status(wait_s=20)
    same = str(said.get("pid")) == node.properties("MainPID")["MainPID"]
    return "heard" if heard and same else "started"


def stop_firmly(seconds):
    """Stop the agent, whatever state it is in; it has that long to end by itself. False when it does not end."""
    if node.service("stop", "--no-block", node.UNIT)[0]:
        return True
    began, killed = time.monotonic(), False
    while node.properties("ActiveState")["ActiveState"] not in ("inactive", "failed", ""):
        if time.monotonic() > began + seconds + 5:
            return False
        if time.monotonic() > began + seconds and not killed:
            killed = True
            node.service("kill", "--signal=KILL", node.UNIT)
        time.sleep(0.2)
    return True


def reload_if_needed():
    """A reload of systemd can take the cards away from running containers, so there is one only when systemd itself
    says that it holds another text of this unit."""
    if node.properties("NeedDaemonReload")["NeedDaemonReload"] == "yes":
        node.service("daemon-reload")


def prune_cache():
    """Of the unpacked builds, keep those whose release is there."""
    if os.path.isdir(node.CACHE):
        builds = glob.glob(node.RELEASES + "/*/" + node.PROGRAM)
        node.run([sys.executable, "-Ic", prune.TEXT, node.CACHE, *builds])
