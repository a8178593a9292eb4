"""Mutations for as long as one likes, every one from a seed of its own that shows it again.

python -m tests.fuzz --seconds 120                  each parser for two minutes
python -m tests.fuzz --seconds 20 --again           the first of what the newest good run by hand was put to
python -m tests.fuzz --tool npu-smi --seed 1234     one text: what was made of which, and what was told of it
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz import parsers
from tests.fuzz import texts as corpus
from tests.fuzz.mutate import mutate
from tests.fuzz.properties import wrong

SLOW_S = 2
"""What reads so long does not hang, but will on a text ten times as long."""
SEEDS = Path(__file__).parent / "SEEDS.md"
"""What was run by hand, and from which seed on."""


def made(tool: str, seed: int) -> tuple[corpus.Text, str]:
    """The text that a seed stands for (as long as neither texts nor mutations change)."""
    rng = random.Random(seed)
    texts = corpus.texts(tool)
    base = rng.choice(texts)
    return base, mutate(rng, base, texts)


def untruths(tool: str, seed: int) -> list[str]:
    """What is wrong with a seed's reading; a crash by its last lines."""
    base, text = made(tool, seed)
    began = time.process_time()
    try:
        found = wrong(tool, text, list(base.arguments))
        took = time.process_time() - began
        return found if took < SLOW_S else [*found, f"took {took:.1f} s"]
    except Exception:
        return [traceback.format_exc(limit=-2)]


def run(tool: str, seconds: float, first: int) -> tuple[int, list[int]]:
    """(how many seeds, those that failed) from a first seed on."""
    until = time.monotonic() + seconds
    failed: list[int] = []
    seed = first
    while time.monotonic() < until and len(failed) < 20:
        found = untruths(tool, seed)
        if found:
            failed.append(seed)
            print(f"{tool} --seed {seed}: {found[0]}")
        seed += 1
    return seed - first, failed


def recorded() -> dict[str, int]:
    """Parser -> first seed of its newest run by hand in which nothing failed."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in SEEDS.read_text(encoding="utf-8").splitlines()]
    return {row[1]: int(row[2]) for row in rows if len(row) == 7 and row[5] == "0"}


def commit() -> str:
    """The one whose texts and mutations a seed stands for."""
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "?"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--tool", action="append", choices=parsers.tools(), help="only this parser (again for more)")
    options.add_argument("--seconds", type=float, default=120, help="for each parser")
    options.add_argument("--seed", type=int, help="show this one")
    options.add_argument("--again", action="store_true", help=f"from the seeds of {SEEDS.name} on, not from new ones")
    options.add_argument("--record", action="store_true", help=f"add a line for each parser to {SEEDS.name}")
    chosen = options.parse_args()
    tools = chosen.tool or parsers.tools()
    if chosen.seed is not None:
        for tool in tools:
            base, text = made(tool, chosen.seed)
            print(f"--- {tool} from {base.name}, arguments {list(base.arguments)}\n{text}\n--- {tool} tells")
            print("\n".join(untruths(tool, chosen.seed)) or "only what is there")
        return 0
    bad = 0
    seeds = recorded() if chosen.again else {tool: random.SystemRandom().randrange(2**32) for tool in tools}
    for tool in tools:
        at = commit()
        first = seeds[tool]
        count, failed = run(tool, chosen.seconds, first)
        bad += len(failed)
        row = (time.strftime("%Y-%m-%d"), tool, first, count, f"{chosen.seconds:g}", len(failed), at)
        line = f"| {' | '.join(map(str, row))} |"
        print(line, flush=True)
        if chosen.record:
            with SEEDS.open("a", encoding="utf-8") as record:
                record.write(line + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
