"""For a host in whatever state: what is in the way of an installation, wrong or left over."""

import glob
import os
import time

import node
import record


def level(folder):
    """After the record is written, so that all of it can be taken back; ``folder``: the release's."""
    for path in (node.ETC, node.RELEASES, node.CACHE, folder):
        if os.path.lexists(path) and not os.path.isdir(path):
            set_aside(path)
    files = [node.SETTINGS, node.KEY_FILE, node.CA_FILE, node.UNIT_FILE, folder + "/" + node.PROGRAM]
    for path in [*files, folder + "/agent.yaml", folder + "/" + node.UNIT]:
        if os.path.isdir(path):
            set_aside(path)
    for path in (node.CURRENT, node.PREVIOUS):
        if os.path.lexists(path) and not os.path.islink(path):
            set_aside(path)
    # A masked unit is a link to nothing; what it was is in the record.
    if os.path.islink(node.UNIT_FILE):
        os.unlink(node.UNIT_FILE)
    left = [node.UNIT_FILE + ".new", node.COMMAND + ".new"]
    for place in (node.OPT, node.RELEASES, node.RELEASES + "/*", node.ETC):
        left += glob.glob(place + "/*.new")
    for path in left:
        record.remove(path)
    for path, mode in ((node.OPT, 0o755), (node.RELEASES, 0o755), (node.CACHE, 0o755), (folder, 0o755)):
        set_mode(path, mode)
    set_mode(node.STATE, 0o700)
    for path in sorted(glob.glob(node.UNIT_FILE + ".d/*.conf")):
        node.warn(f"{path} changes the unit; what it says stays")


def set_aside(path):
    """What is neither ours nor of use here moves out of the way, and is never deleted."""
    aside = path + time.strftime(".set-aside-%Y%m%dT%H%M%SZ", time.gmtime())
    record.add("aside", path + "\n" + aside)
    os.rename(path, aside)
    node.warn(f"{path} was not what belongs there; it is {aside} now")


def set_mode(path, mode):
    """A folder of ours, with that mode."""
    if not os.path.isdir(path):
        return
    info = os.stat(path)
    if (info.st_mode & 0o7777, info.st_uid, info.st_gid) != (mode, 0, 0):
        record.add("modes", f"{info.st_mode & 0o7777:o} {info.st_uid}:{info.st_gid} {path}")
        os.chown(path, 0, 0)
        os.chmod(path, mode)
