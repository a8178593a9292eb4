"""Runs on a node: containers are started with a folder whose name somebody exchanges for a link, all the time.

``python3 swap_program.py STARTS WORKERS`` prints one JSON object: how many starts saw the right folder, how many
were refused, how many saw the trap, who touched the trap (``alarm``), and in ``control`` how many plain starts by
path, with the same exchange under way, it took until one saw the trap.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from runtime.agent.drivers.driver import Mount
from runtime.agent.tasks.checks import CheckFailed
from runtime.protocol.tasks import Volume
from tests.integration.fence.rig import Rig
from tests.integration.fence.yard import GOOD, TRAP, libc, yard_at

ROOT = Path("/srv/hf-swap")
EXCHANGE = 2
CONTROL_LIMIT = 100
PROGRAM = ("/bin/cat", "/job/marker")


def exchange_for_ever(first: str, second: str) -> None:
    """The attacker: what is under these two names changes places as fast as the kernel can do it."""
    os.nice(10)  # still ten thousands of times a second, and the engine gets on with its work
    here = ctypes.c_int(-100)
    names = os.fsencode(first), os.fsencode(second)
    while libc.renameat2(here, names[0], here, names[1], EXCHANGE) == 0:
        pass


def guarded(rig: Rig, folder: str, number: int) -> str:
    """One task's way as the agent goes it; what its program saw, ``refused`` when it was not started."""
    held = rig.claim(f"swap-{number}", Volume(folder, "/job"))
    try:
        container = rig.create(held, rig.mounting.hold(held), *PROGRAM)
        rig.mounting.stands(held)
        rig.driver.start(container)
        facts = rig.driver.inspect(container)
        if facts.running and rig.mounting.swapped(held, facts):
            return "swapped"
        return rig.output(container)
    except CheckFailed:
        return "refused"
    finally:
        rig.remove(held)


def by_path(rig: Rig, folder: str, number: int) -> str:
    """The same without handles: the folder is given to Docker by its name."""
    held = rig.claim(f"swap-control-{number}")
    try:
        container = rig.create(held, [Mount(folder, "/job", True)], *PROGRAM)
        rig.driver.start(container)
        return rig.output(container)
    finally:
        rig.remove(held)


def main(starts: int, workers: int) -> dict[str, Any]:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    with yard_at(ROOT / "yard") as yard:
        yard.good.rename(yard.data / "job")
        (yard.data / "link").symlink_to(yard.out)
        rig, folder = Rig(yard), str(yard.data / "job")
        swapper = multiprocessing.get_context("fork").Process(
            target=exchange_for_ever, args=(folder, str(yard.data / "link")), daemon=True
        )
        counts = {"right": 0, "refused": 0, "trap": 0, "swapped": 0}
        strange: list[str] = []
        numbers, lock = iter(range(10**9)), threading.Lock()
        names = {GOOD: "right", TRAP: "trap"}

        def work() -> None:
            while counts["right"] + counts["trap"] < starts and not strange:
                with lock:
                    number = next(numbers)
                try:
                    seen = guarded(rig, folder, number)
                except Exception as error:
                    seen = f"{type(error).__name__}: {error}"
                with lock:
                    name = names.get(seen, seen)
                    if name in counts:
                        counts[name] += 1
                    else:
                        strange.append(seen)

        swapper.start()
        began = time.monotonic()
        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        alarm, left = yard.alarm.rung(), yard.held()
        control = (
            next((n for n in range(1, CONTROL_LIMIT) if by_path(rig, folder, n) == TRAP), None) if not strange else None
        )
        swapping = swapper.is_alive()
        swapper.terminate()
        swapper.join()
    shutil.rmtree(ROOT)
    return {**counts, "strange": strange, "alarm": alarm, "left": left, "control": control, "swapping": swapping,
            "seconds": round(seconds, 1)}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
