"""Who a process runs as."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass
from hashlib import sha256
from typing import Optional

OWN_FIRST, OWN_COUNT = 1879048192, 2**28 - 1
"""Numbers that nobody else hands out: free in systemd's plan of all of them (systemd.io/UIDS-GIDS)."""

SYSTEM_GIDS = 1000
"""Groups below that number are the machine's own."""


class UserRefused(ValueError):
    """The task cannot run as that user; the message says why."""


@dataclass(frozen=True)
class RunAs:
    """``name``: as the host's database has it, None for a number that it does not know."""

    uid: int
    gid: int
    name: Optional[str] = None


def run_as(user: Optional[str], task_uid: str, allow_root: bool) -> RunAs:
    """``user`` as a task says it: a name or number, or two as ``user:group``. Raises UserRefused.

    A group that is neither the user's own nor a number that this machine knows nothing of is refused: it would give
    the task what the user may not read. Without a user the task gets a number of its own.
    """
    if not user:
        number = int(sha256(task_uid.encode("utf-8", "replace")).hexdigest()[:8], 16)
        own = OWN_FIRST + number % OWN_COUNT
        return RunAs(own, own)
    name, _, group = user.partition(":")
    entry = _user(name)
    if entry is None and not name.isdigit():
        raise UserRefused(f"this node has no user {name}")
    uid = int(name) if entry is None else entry.pw_uid
    if uid == 0 and not allow_root:
        raise UserRefused("this node runs no process as root (process_allow_root)")
    gid = uid if entry is None else entry.pw_gid
    if group:
        gid = _gid(group)
        if not allow_root and not _may_have(entry, gid):
            raise UserRefused(f"group {group} is not one of user {name}")
    elif entry is None and not _may_have(None, gid):
        raise UserRefused(f"user {name} is unknown to this node, and group {gid} is one of the machine's own")
    return RunAs(uid, gid, None if entry is None else entry.pw_name)


def _user(name: str) -> Optional[pwd.struct_passwd]:
    try:
        return pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return None


def _gid(group: str) -> int:
    if group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise UserRefused(f"this node has no group {group}") from None


def _may_have(entry: Optional[pwd.struct_passwd], gid: int) -> bool:
    if entry is not None and gid in (entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)):
        return True
    if gid < SYSTEM_GIDS:
        return False
    try:
        grp.getgrgid(gid)
    except KeyError:
        return True
    return False


def home_of(who: RunAs) -> str:
    """Where it is at home; the root folder for a user that the host does not know."""
    return "/" if who.name is None else pwd.getpwnam(who.name).pw_dir or "/"
