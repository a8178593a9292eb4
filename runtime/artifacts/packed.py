"""What pex packed, held against what it was given: its own cache must not bring anything else into a build."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

DEPS = ".deps/"
"""Where a pex keeps its wheels, each unpacked in a folder of the wheel's name."""
OF_PEX = re.compile(
    r"\.layout\.json|\.prefix/bin/[\w.-]+|[^/]+\.pex-info/original-whl-info\.json|[^/]+\.dist-info/RECORD"
)
"""What pex itself writes into such a folder."""


def unpinned(packed: Path, wheels: Sequence[Path], sources: Mapping[str, bytes], *, whole: bool = False) -> str | None:
    """The first file in ``packed`` that is neither of ``wheels`` nor of ``sources``, or that is missing; None: none.

    ``sources``: path in the archive -> content. ``whole``: wheels lie in it as they are. pex's own start code is not
    looked at.
    """
    with zipfile.ZipFile(packed) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        tops = tuple({f"{name.partition('/')[0]}/" for name in (*sources, "runtime/")})
        ours = {name for name in names if name.startswith(tops)}
        for name in sorted(ours | set(sources)):
            if name not in sources or name not in ours or archive.read(name) != sources[name]:
                return name
        if whole:
            return _other_wheel(archive, names, wheels)
        known: set[str] = set()
        for wheel in wheels:
            prefix = f"{DEPS}{wheel.name}/"
            with zipfile.ZipFile(wheel) as original:
                for name in original.namelist():
                    known.add(prefix + name)
                    if name.endswith("/") or OF_PEX.fullmatch(name):
                        continue
                    if prefix + name not in names or archive.read(prefix + name) != original.read(name):
                        return prefix + name
        for name in sorted(name for name in names - known if name.startswith(DEPS)):
            _, folder, inside = name.split("/", 2)
            if folder not in {wheel.name for wheel in wheels} or not OF_PEX.fullmatch(inside):
                return name
    return None


def _other_wheel(archive: zipfile.ZipFile, names: set[str], wheels: Sequence[Path]) -> str | None:
    """The first wheel that is missing, changed or not ours."""
    ours = {f"{DEPS}{wheel.name}": wheel for wheel in wheels}
    for name in sorted(set(ours) | {name for name in names if name.startswith(DEPS)}):
        if name not in ours or name not in names or archive.read(name) != ours[name].read_bytes():
            return name
    return None
