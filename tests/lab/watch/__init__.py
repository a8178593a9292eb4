"""A watch over all processes of this machine, nodes included: which of them shows a given text to others."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Optional

from tests.lab.cards.build import compiled

INTERVAL_MS = 20


@dataclass(frozen=True)
class Seen:
    """One process with one of the texts in its arguments or its environment (``kind``: args, environment)."""

    name: str
    kind: str
    pid: int
    command: str
    cgroups: str


@dataclass(frozen=True)
class Thoroughness:
    """What the watch did: rounds over all processes, execs that the kernel told of, those gone before a look."""

    rounds: int
    slowest_round_ms: float
    execs: int
    gone: int
    looks: int
    lost: int


class Watch:
    """Every process each 20 ms, and each exec as the kernel tells of it, from ``with`` to its end."""

    def __init__(self, texts: list[tuple[str, str]]) -> None:
        self._texts = "".join(f"{name}\t{text}\n" for name, text in texts)
        self.seen: list[Seen] = []
        self.thoroughness: Optional[Thoroughness] = None

    def __enter__(self) -> Watch:
        program = compiled("watch", [Path(__file__).with_name("watch.c")], [])
        self._process = subprocess.Popen(
            [program, str(INTERVAL_MS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(self._texts)
        self._process.stdin.close()
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        for line in self._process.stdout.read().splitlines():
            word, *rest = line.split("\t")
            if word == "HIT":
                name, where, pid, command, cgroups = rest
                self.seen.append(Seen(name, where, int(pid), command, cgroups))
            elif word == "END":
                rounds, slowest, execs, gone, looks, lost = rest
                self.thoroughness = Thoroughness(
                    int(rounds), float(slowest), int(execs), int(gone), int(looks), int(lost)
                )
        self._process.stdout.close()
        self._process.wait(10)
