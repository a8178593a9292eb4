"""Mutations led by which branches of a parser they reach: atheris, with the same properties, from the committed texts.

python -m tests.fuzz.guided --seconds 120           each parser for two minutes (needs the extra ``fuzz``)
python -m tests.fuzz.guided --tool npu-smi --keep   what reached new branches goes into the corpus, to be looked at

A case is the tool's arguments in a first line, and its text. The recorded texts beside the checkout are not used, so
that all that is found may be committed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shlex
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

PARSERS = ("runtime.agent.parse", "runtime.agent.hardware", "runtime.agent.engines", "runtime.agent.tasks.images")
LONGEST = 6000
KEPT = 12
"""Texts that are kept of one parser, the shortest first."""


Step = tuple[str, int, int]
"""A file, and two of its lines that were run one after the other."""


def case(arguments: list[str], text: str) -> bytes:
    return f"{shlex.join(arguments)}\n{text}".encode("utf-8", "replace")


def parts(data: bytes) -> tuple[list[str], str]:
    """The arguments and the text of a case; a first line that is no command line is none."""
    first, _, text = data.decode("utf-8", "replace").partition("\n")
    try:
        return shlex.split(first), text
    except ValueError:
        return [], text


def drive(tool: str, words: list[str]) -> None:
    """Never returns: the engine ends the process itself, and an untruth is a crash to it."""
    import atheris  # type: ignore[import-not-found]  # only for runs by hand

    with atheris.instrument_imports(include=list(PARSERS)):
        from tests.fuzz import texts
        from tests.fuzz.mutate import mutate
        from tests.fuzz.properties import wrong

    own = texts.texts(tool, recorded=False)

    def one(data: bytes) -> None:
        arguments, text = parts(data)
        found = wrong(tool, text, arguments)
        if found:
            raise AssertionError(found[0])

    def changed(data: bytes, longest: int, seed: int) -> bytes:
        rng = random.Random(seed)
        arguments, text = parts(data)
        if rng.random() < 0.2:
            return bytes(atheris.Mutate(data, longest))
        if rng.random() < 0.1:
            arguments = list(rng.choice(own).arguments)
        return case(arguments, mutate(rng, texts.Text("", tuple(arguments), text or "\n"), own))[:longest]

    atheris.Setup([sys.argv[0], *words], one, custom_mutator=changed)
    atheris.Fuzz()


def run(tool: str, seconds: int, keep: bool) -> bool:
    """Whether nothing was found wrong."""
    from tests.fuzz import texts

    with tempfile.TemporaryDirectory() as folder:
        seeds, found = Path(folder, "seeds"), Path(folder, "found")
        seeds.mkdir()
        found.mkdir()
        for text in texts.texts(tool, recorded=False):
            (seeds / text.name).write_bytes(case(list(text.arguments), text.text))
        child = [sys.executable, "-m", "tests.fuzz.guided", "--drive", tool, "--"]
        limits = [f"-max_len={LONGEST}", "-timeout=20", f"-artifact_prefix={tempfile.gettempdir()}/"]
        outcome = subprocess.run([*child, f"-max_total_time={seconds}", *limits, str(found), str(seeds)], text=True)
        if keep:
            for data in further(tool, seeds, found):
                _keep(texts.FOLDER / tool, data)
        return outcome.returncode == 0


def further(tool: str, seeds: Path, found: Path) -> list[bytes]:
    """Those found that go where neither a seed nor a shorter one goes."""
    known: set[Step] = set()
    for path in seeds.iterdir():
        known |= steps(tool, path.read_bytes())
    kept: list[bytes] = []
    for data in sorted((path.read_bytes() for path in found.iterdir()), key=len):
        new = steps(tool, data) - known
        if new and parts(data)[1].strip() and len(kept) < KEPT:
            kept.append(data)
            known |= new
    return kept


def steps(tool: str, data: bytes) -> set[Step]:
    """From which line to which the parser went."""
    from tests.fuzz import parsers

    gone: set[Step] = set()
    last: dict[types.FrameType, int] = {}

    def within(frame: types.FrameType, event: str, value: Any) -> Any:
        if event == "line":
            gone.add((frame.f_code.co_filename, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        return within

    def called(frame: types.FrameType, event: str, value: Any) -> Any:
        return within if frame.f_globals.get("__name__", "").startswith(PARSERS) else None

    arguments, text = parts(data)
    sys.settrace(called)
    try:
        parsers.told(tool, arguments, text)
    finally:
        sys.settrace(None)
    return gone


def _keep(folder: Path, data: bytes) -> None:
    arguments, text = parts(data)
    path = folder / f"found_{hashlib.sha256(data).hexdigest()[:8]}.txt"
    path.write_bytes(text.encode())
    if arguments:
        path.with_suffix(".args").write_text(shlex.join(arguments) + "\n", "utf-8")
    print(f"kept {path.name}")


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    options.add_argument("--tool", action="append", help="only this parser (again for more)")
    options.add_argument("--seconds", type=int, default=120, help="for each parser")
    options.add_argument("--keep", action="store_true", help="new texts into the corpus")
    options.add_argument("--drive", help=argparse.SUPPRESS)
    options.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.drive is not None:
        drive(chosen.drive, chosen.words)
    from tests.fuzz import parsers

    bad = [tool for tool in chosen.tool or parsers.tools() if not run(tool, chosen.seconds, chosen.keep)]
    print(f"wrong: {', '.join(bad) or 'nothing'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
