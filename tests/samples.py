"""Recorded outputs of vendors' tools, with what is right, in the folder beside this checkout: nothing of them is
copied into it. One helper for all tests that read them."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from runtime.agent.hardware.reading import Reading

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT.parent / "shared" / "vendor-tools"


@dataclass(frozen=True)
class Sample:
    """``tool`` and ``arguments`` as somebody would give them to ``parse``; ``expect`` is what is right."""

    group: str
    name: str
    tool: str
    arguments: tuple[str, ...]
    text: str
    expect: dict[str, Any]

    @property
    def plain(self) -> bool:
        """Whether it is what the tool prints by default: what a detector must be able to work from alone."""
        return self.name.split("__")[1] in ("noargs", "info")


def groups() -> list[str]:
    """The folders there are: one for each vendor or kind of text."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def samples(*only: str) -> list[Sample]:
    """All samples of all groups, or of those named; an error when the folder is not there."""
    return [_sample(group, side) for group in groups() if not only or group in only for side in _sides(FOLDER / group)]


def _sides(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _sample(group: str, side: Path) -> Sample:
    about = json.loads(side.read_text("utf-8"))
    tool = side.stem.split("__")[0].replace(".exe", "")
    (output,) = (path for path in side.parent.glob(f"{side.stem}.*") if path != side)
    text = output.read_bytes().decode("utf-8", "replace")
    return Sample(group, side.stem, *_command(tool, about["command"]), text, about["expect"])


def _command(tool: str, command: str) -> tuple[str, tuple[str, ...]]:
    """The tool's name and its words in a command line that may hold a remark, a wrapper or a second command."""
    if tool.startswith("docker-"):
        return "docker", tuple(tool.split("-")[1:])
    command = command.split(" (")[0].split(";")[0]
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    names = [PurePosixPath(word).name for word in words]
    for name in (tool, tool.replace("_", "-"), "nvidia-smi" if tool.startswith("nvidia-smi-") else tool):
        if name in names:
            return name, tuple(words[names.index(name) + 1 :])
    return tool, ()


def told(reading: Reading) -> dict[str, Any]:
    """A reading in the keys of ``expect``, every card with what only its tool tells beside the rest."""
    found: dict[str, Any] = {
        "devices": reading.devices,
        "driver_version": reading.driver_version,
        # The samples call a process's card "gpu".
        "processes": reading.processes and [{"gpu": one.get("index"), **one} for one in reading.processes],
        **reading.more,
        "cards": [{**_facts(card), "name_truncated": card.name_cut, **card.more} for card in reading.cards],
    }
    if reading.errors:
        error = reading.errors[0]
        blamed = _facts(error.blamed[0]) if error.blamed else {}
        named = {key: value for key, value in blamed.items() if value is not None}
        found.update(error=error.text, error_kind=error.kind, blamed=named or None)
    return found


def _facts(entry: Any) -> dict[str, Any]:
    return {part.name: getattr(entry, part.name) for part in fields(entry) if part.name != "more"}


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """What of ``expected`` is not so, each with its place; more than was expected is no difference, but a list has
    as many entries. How the tool ended (``exit_code``) is not in its text."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return [f"{where}: {found!r} is not {expected!r}"]
        return [
            difference
            for key, value in expected.items()
            if key != "exit_code"
            for difference in differences(value, found.get(key), f"{where}.{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = zip(expected, found)
        return [each for at, (one, two) in enumerate(pairs) for each in differences(one, two, f"{where}[{at}]")]
    return (
        []
        if expected == found and isinstance(expected, bool) == isinstance(found, bool)
        else [f"{where}: {found!r} is not {expected!r}"]
    )
