"""``python -m tests.faults.model --steps N --seed S``: a long walk; ``--play FILE``: one story again."""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from pathlib import Path

from tests.faults.model.machine import walk
from tests.faults.model.world import Broken, World, play

STEPS_A_WORLD = 150


class Counting(World):
    """Counts the steps of all worlds."""

    steps = 0

    def do(self, name: str, **arguments: object) -> None:
        Counting.steps += 1
        super().do(name, **arguments)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.model")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, help="default: a new one, printed")
    parser.add_argument("--play", type=Path, help="a story, as a failure prints it (JSON)")
    parser.add_argument("--loud", action="store_true", help="with what the product logs")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.loud else logging.CRITICAL, format="%(name)s: %(message)s")
    if options.play is not None:
        story = [(name, arguments) for name, arguments in json.loads(options.play.read_text())]
        play(story).close()
        print(f"{len(story)} steps: all invariants hold")
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    try:
        walk(max(1, options.steps // STEPS_A_WORLD), STEPS_A_WORLD, Counting, seed=seed)
    except Broken as broken:
        what, _, story_text = str(broken).partition("\nstory = ")
        file = Path(f"model-{seed}.json")
        file.write_text(story_text)
        print(f"broken after {Counting.steps} steps (seed {seed}): {what}\nits story is in {file}")
        return 1
    print(f"seed {seed}: {Counting.steps} steps in {time.monotonic() - began:.0f} s, all invariants hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
