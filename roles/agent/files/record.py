"""What is written down in /opt/heterofleet/.undo before the first change, and plain work with files.

The form is that of the installation scripts: what a cut run of this role left, a script takes back, and the other way
round.
"""

import glob
import os
import shutil

import node

FILES = node.UNDO + "/files"


def mark(name, text=""):
    with open(node.UNDO + "/" + name, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def marked(name):
    return os.path.isfile(node.UNDO + "/" + name)


def lines(name):
    """The lines of a list in the record."""
    return (node.read(node.UNDO + "/" + name) or b"").decode(errors="surrogateescape").splitlines()


def add(name, text):
    with open(node.UNDO + "/" + name, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text + "\n")


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def copy(source, place):
    """As cp -dp does it: links as links, with owner, mode and times."""
    shutil.copy2(source, place, follow_symlinks=False)
    info = os.lstat(source)
    os.chown(place, info.st_uid, info.st_gid, follow_symlinks=False)
    if not os.path.islink(source):
        os.chmod(place, info.st_mode & 0o7777)  # chown takes away more than it says


def settle(*places):
    """On disk before what depends on it: a power cut must not leave a new link to an empty file."""
    for place in places:
        found = [place] if os.path.isfile(place) else glob.glob(place + "/**", recursive=True)
        for path in found:
            if os.path.isfile(path) and not os.path.islink(path):
                handle = os.open(path, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)


def keep_warnings():
    """For the last step, which says all of them."""
    for text in node.WARNINGS:
        add("warnings", text.replace("\n", " "))


def forget():
    """In one step: of half of it, a later run would take for new what was there before."""
    remove(node.UNDO + ".done")
    if os.path.isdir(node.UNDO):
        os.rename(node.UNDO, node.UNDO + ".done")
        remove(node.UNDO + ".done")
