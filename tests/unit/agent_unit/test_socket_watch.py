"""What the watcher of the agents' sockets makes of the kernel's tables: which lines it takes for a way in."""

from __future__ import annotations

import pytest

from tests.e2e.socket_watch import TABLES, verdicts


@pytest.mark.parametrize(
    ("table", "line", "legal"),
    [
        ("tcp", "0: 0100007F:0D05 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1 0 100", False),
        ("tcp", "1: 0E0012C6:9C40 010012C6:0D05 01 00000000:00000000 00:00000000 00000000 0 0 77 1 0 20", True),
        ("tcp6", "0: 00000000000000000000000000000000:0016 0:0000 0A 0:0 00:0 0 0 0 77 1 0 100", False),
        ("udp", "9: 0E0012C6:D431 010012C6:0035 01 00000000:00000000 00:00000000 00000000 0 0 77 2 0 0", True),
        ("udp", "9: 00000000:D431 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 77 2 0 0", False),
        ("unix", "0000: 00000002 00000000 00010000 0001 01 77 /run/agent.sock", False),
        ("unix", "0000: 00000002 00000000 00010000 0001 01 77", False),
        ("unix", "0000: 00000002 00000000 00000000 0002 01 77 @agent", False),
        ("unix", "0000: 00000003 00000000 00000000 0001 03 77", True),
        ("netlink", "00 0 4711 00000000 0 0 0 2 0 77", True),
        ("netlink", "00 15 4711 00000001 0 0 0 2 0 77", False),
        ("netlink", "00 0 4711 00000011 0 0 0 2 0 77", False),
        ("packet", "00 3 3 0003 2 1 0 0 77", False),
        ("raw", "1: 00000000:0001 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 77 2 0 0", False),
        ("sctp/eps", "00 00 2 10 9 8080 0 77 0.0.0.0", False),
    ],
)
def test_what_the_watcher_makes_of_a_line(table: str, line: str, legal: bool) -> None:
    ((inode, (kind, may)),) = verdicts(table, f"a heading\n{line}\n")
    assert (inode, may) == ("77", legal), kind
    assert table in TABLES
