"""The journal is on disk before the claim, before the stop signal and before the first report (strace)."""

from __future__ import annotations

import re

from tests.lab.process import wait_for

TRACE = "/tmp/agent.trace"


def sync_between(lines: list[str], first: int, last: int) -> bool:
    """Whether a sync of the journal began after line ``first`` and ended before line ``last``."""
    began: dict[str, int] = {}
    for number, line in enumerate(lines):
        thread = line.split(" ", 1)[0]
        if re.search(r"f(data)?sync\(", line) and "journal.db" in line:
            if "unfinished" not in line:
                if first < number < last:
                    return True
            else:
                began[thread] = number
        elif re.search(r"\.\.\. f(data)?sync resumed", line) and thread in began:
            start = began.pop(thread)
            if first < start and number < last:
                return True
    return False


def find(lines: list[str], pattern: str, after: int = -1) -> int:
    for number in range(after + 1, len(lines)):
        if re.search(pattern, lines[number]):
            return number
    raise AssertionError(f"nothing matches {pattern} after line {after}")


def test_the_journal_is_synced_before_claim_stop_and_first_report(fleet) -> None:
    node = fleet.lab.nodes[0]
    pid = node.run(["systemctl", "show", "-p", "MainPID", "--value", "heterofleet-agent"]).stdout.strip()
    node.run(["sh", "-c", f"rm -f {TRACE}; systemd-run -q --unit=agent-trace strace -f -q -y -s 8192 "
              f"-e trace=recvfrom,read,sendto,write,fdatasync,fsync -o {TRACE} -p {pid}"])  # fmt: skip
    try:
        wait_for(
            "strace is attached",
            lambda: node.run(["grep", "TracerPid:", f"/proc/{pid}/status"]).stdout.split()[1] != "0" or "not yet",
            20,
        )
        fleet.submit("e2e-durable", "on-term", "0", "forever", node_id=node.name)
        fleet.wait("e2e-durable", "running")
        fleet.plane.cli("tasks", "stop", "e2e-durable")
        fleet.wait("e2e-durable", "ended")
    finally:
        node.run(["systemctl", "stop", "agent-trace"], check=False)
    lines = node.get(TRACE).decode(errors="replace").splitlines()
    offered = find(lines, r"e2e-durable")
    claim = find(lines, r'sendto\(.*from_status\\": ?\\"scheduled\\"', offered)
    assert sync_between(lines, offered, claim), "no sync of the journal between the offer and the claim"
    told = find(lines, r'desired\\": ?\\"stop\\"', claim)
    signal = find(lines, r"sendto\(.*POST /v[0-9.]+/containers/[0-9a-f]+/(stop|kill)", told)
    assert sync_between(lines, told, signal), "no sync of the journal between the order and the stop signal"
    report = find(lines, r'sendto\(.*from_status\\": ?\\"running\\"', signal)
    ended = find(lines, r"(die|exited)", signal)
    assert sync_between(lines, ended, report), "no sync of the journal between the end and the first report"


def test_the_trace_check_can_fail() -> None:
    lines = ["1 recvfrom(offer)", "2 fdatasync(9</x/journal.db-wal> <unfinished ...>", "1 sendto(claim)",
             "2 <... fdatasync resumed>) = 0"]  # fmt: skip
    assert not sync_between(lines, 0, 2)
    assert sync_between([*lines, "1 sendto(next)"], 0, 4)
