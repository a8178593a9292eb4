"""Every socket of every process in a unit's control group, ten times a second, judged on the spot.

Runs by itself on a node (standard library only): ``python3 socket_watch.py UNIT``. It looks until its standard input
ends and then prints one JSON object. :class:`Watch` starts it there and reads the object.

What an agent may hold, and why:

- TCP that is connected or connecting, IPv4 and IPv6: its calls to the control plane, the doorbell.
- UDP that is *connected*: the resolver asks a name server. The kernel hands it datagrams of that one peer only.
- unix sockets without a name: ends of a connection that the agent made (Docker, systemd, the journal), pairs,
  senders. One with a name, or one that accepts, could be reached by others.
- NETLINK_ROUTE without groups: the C library asks the kernel which addresses the machine has.

Everything else is an offence: listening in any family, UDP that is bound and takes from anybody, raw and packet
sockets, other netlink families, an io_uring (its sockets need no descriptor). Three TCP sockets stand in no table of
the kernel: one that is not connected yet, one whose connection the other side has reset, and one that is bound and
does not listen. A socket that no table explains in two looks in a row is therefore asked itself, through a copy of
its descriptor, and is an offence, of whatever family it may be, unless it is one of the first two.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab import Node

PERIOD_S = 0.1
GAP_S = 0.5
GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")

LISTEN, ESTABLISHED, CLOSED = "0A", "01", "07"
NETLINK_ROUTE = "0"
PIDFD_GETFD = 438  # a number of all architectures, since Linux 5.6
SEGMENTS_OUT = 136  # tcpi_segs_out in struct tcp_info of linux/tcp.h
ACCEPTS = 0x10000  # __SO_ACCEPTCON

Verdict = tuple[str, bool]
"""(what the socket is, whether the agent may have it)"""


def judge_tcp(fields: list[str]) -> Verdict:
    return (f"listens on {fields[1]}", False) if fields[3] == LISTEN else ("tcp", True)


def judge_udp(fields: list[str]) -> Verdict:
    if fields[3] == ESTABLISHED:
        return "udp, connected", True
    return f"udp bound to {fields[1]}, takes from anybody", False


def judge_unix(fields: list[str]) -> Verdict:
    name = fields[7] if len(fields) > 7 else ""
    if int(fields[3], 16) & ACCEPTS:
        return f"unix, accepts on {name or 'no name'}", False
    return ("unix", True) if not name else (f"unix, bound to {name}", False)


def judge_netlink(fields: list[str]) -> Verdict:
    if fields[1] == NETLINK_ROUTE and int(fields[3], 16) == 0:
        return "netlink route", True
    return f"netlink family {fields[1]} groups {fields[3]}", False


def never(kind: str):
    return lambda fields: (kind, False)


# Table below /proc/PID/net -> (column of the inode, verdict on a line's fields).
TABLES = {
    "tcp": (9, judge_tcp),
    "tcp6": (9, judge_tcp),
    "udp": (9, judge_udp),
    "udp6": (9, judge_udp),
    "udplite": (9, judge_udp),
    "udplite6": (9, judge_udp),
    "raw": (9, never("raw")),
    "raw6": (9, never("raw6")),
    "icmp": (9, never("icmp")),
    "icmp6": (9, never("icmp6")),
    "unix": (6, judge_unix),
    "netlink": (9, judge_netlink),
    "packet": (8, never("packet")),
    "sctp/eps": (7, never("sctp endpoint")),
}


def verdicts(table: str, text: str) -> Iterator[tuple[str, Verdict]]:
    """(inode, verdict) of every line of a table."""
    column, judge = TABLES[table]
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > column:
            yield fields[column], judge(fields)


def members(group: str) -> list[int]:
    """Processes of a control group and of those below it; none while the unit is down."""
    found: set[int] = set()
    for mount in GROUPS:
        for folder, _, files in os.walk(mount + group):
            if "cgroup.procs" in files:
                try:
                    text = Path(folder, "cgroup.procs").read_text()
                except OSError:
                    continue
                found.update(int(word) for word in text.split())
        if found:
            break
    return sorted(found)


def descriptors(pid: int) -> Iterator[str]:
    """What the descriptors of a process are links to; none when it is gone."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    yield from filter(None, map(target_of, links))


def program_of(pid: int | str) -> str:
    """The file that a process runs; empty when it is gone or may not be looked at."""
    return target_of(Path(f"/proc/{pid}/exe"))


def explains_itself(pid: int, inode: str) -> bool:
    """Whether a socket of another process is TCP that never had a port, or that has sent: no more than a connection
    to come, or one that was. One that is gone by now explains itself as well."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if target_of(link) != f"socket:[{inode}]":
                continue
            copy = library.syscall(PIDFD_GETFD, process, int(link.name), 0)
            if copy < 0:
                return ctypes.get_errno() in (errno.EBADF, errno.ESRCH)
            with socket.socket(fileno=copy) as held:
                # Another one may have the number by now.
                return os.fstat(copy).st_ino != int(inode) or is_outgoing(held)
    except FileNotFoundError:
        return True
    finally:
        os.close(process)
    return True


def is_outgoing(held: socket.socket) -> bool:
    if held.family not in (socket.AF_INET, socket.AF_INET6) or held.type != socket.SOCK_STREAM:
        return False
    if held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    facts = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SEGMENTS_OUT + 4)
    sent = int.from_bytes(facts[SEGMENTS_OUT:], sys.byteorder)
    return held.getsockname()[1] == 0 or sent > 0


def target_of(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def text_of(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


class Looker:
    """Samples, and what they added up to."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.samples = self.empty = self.gaps = 0
        self.longest_gap_s = 0.0
        self.processes: dict[int, str] = {}
        self.sockets: set[str] = set()
        self.kinds: dict[str, int] = {}
        self.offences: list[str] = []
        self._unexplained: set[str] = set()
        self._last: float | None = None

    def look(self) -> None:
        now = time.monotonic()
        if self._last is not None:
            gap = now - self._last
            self.longest_gap_s = max(self.longest_gap_s, gap)
            self.gaps += gap > GAP_S
        self._last = now
        self.samples += 1
        # Between its fork and the program that it starts, a child of the manager still has the manager's own sockets.
        manager = program_of(1)
        pids = [pid for pid in members(self.group) if not manager or program_of(pid) != manager]
        self.empty += not pids
        owners: dict[str, int] = {}
        spaces: dict[str, int] = {}
        for pid in pids:
            if pid not in self.processes:
                self.processes[pid] = text_of(f"/proc/{pid}/comm").strip()
            for target in descriptors(pid):
                if target.startswith("socket:["):
                    owners[target[8:-1]] = pid
                elif "io_uring" in target:
                    self._offence(pid, target)
            try:
                spaces.setdefault(str(Path(f"/proc/{pid}/ns/net").readlink()), pid)
            except OSError:
                continue
        self._judge(owners, list(spaces.values()))

    def _judge(self, owners: dict[str, int], representatives: list[int]) -> None:
        explained: set[str] = set()
        for pid in representatives:
            for table in TABLES:
                for inode, (kind, legal) in verdicts(table, text_of(f"/proc/{pid}/net/{table}")):
                    if inode not in owners:
                        continue
                    explained.add(inode)
                    if inode not in self.sockets:
                        self.sockets.add(inode)
                        self.kinds[kind] = self.kinds.get(kind, 0) + 1
                    if not legal:
                        self._offence(owners[inode], kind)
        unexplained = set(owners) - explained
        for inode in unexplained & self._unexplained:
            if not explains_itself(owners[inode], inode):
                self._offence(owners[inode], f"socket {inode}, in no table: bound, or of a family that nobody expected")
        self._unexplained = unexplained

    def _offence(self, pid: int, kind: str) -> None:
        words = f"{self.processes.get(pid)} ({pid}): {kind}"
        if words not in self.offences:
            self.offences.append(words)

    def report(self) -> dict[str, object]:
        return {
            "samples": self.samples,
            "empty": self.empty,
            "gaps": self.gaps,
            "longest_gap_s": round(self.longest_gap_s, 3),
            "processes": {str(pid): name for pid, name in self.processes.items()},
            "sockets": len(self.sockets),
            "kinds": self.kinds,
            "offences": self.offences,
        }


def group_of(unit: str) -> str:
    shown = subprocess.run(["systemctl", "show", "-p", "ControlGroup", "--value", unit], capture_output=True, text=True)
    return shown.stdout.strip()


def main() -> None:
    looker = Looker(group_of(sys.argv[1]))
    due = time.monotonic()
    while True:
        looker.look()
        print(looker.samples, flush=True)
        due = max(due + PERIOD_S, time.monotonic())
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            break
    print(json.dumps(looker.report()), flush=True)


def put_into(node: Node, unit: str, pid: str) -> None:
    """Make a process of the node one of a unit's."""
    node.sh(
        f"group=$(systemctl show -p ControlGroup --value {unit}); "
        f"for mount in {' '.join(GROUPS)}; do "
        f'[ ! -e "$mount$group/cgroup.procs" ] || echo {pid} > "$mount$group/cgroup.procs"; done'
    )


class Watch:
    """The watcher on a node, from ``with`` to :attr:`report`.

    It prints the number of each look, so that one can wait for some more.
    """

    def __init__(self, node: Node, unit: str) -> None:
        self._words = ["docker", "exec", "-i", node.name, "python3", "-I", "-c", Path(__file__).read_text(), unit]
        self.report: dict = {}

    def __enter__(self) -> Watch:
        self._process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.look(1)
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def look(self, times: int) -> None:
        """Wait until that many more looks are done."""
        wanted, deadline = len(self._lines) + times, time.monotonic() + 30
        while len(self._lines) < wanted:
            assert self._process.poll() is None and time.monotonic() < deadline, self._lines[-3:]
            time.sleep(PERIOD_S / 4)

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(30)
        self.report = json.loads(self._lines[-1])


if __name__ == "__main__":
    main()
