"""Comparing what each place hands out: the build folder, a control plane, a mirror; both architectures.

The first place is a build folder, and its manifest says what is right; the folder itself is held against the stamp
and the native files inside its builds.
"""

from __future__ import annotations

import functools
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from runtime.artifacts.errors import VerifyError
from runtime.artifacts.places import Answer, Folder, Place, Web
from runtime.artifacts.publish import ALL_IN_ONE
from runtime.artifacts.scripts import HOST, script
from runtime.protocol.manifest import ARCHITECTURES, BuildFile, Manifest, checksums

DEADLINE_S = 300.0
"""For all places together."""
SCRIPT_LIMIT = 1 << 20
"""Bytes; the scripts have some ten thousand."""


@dataclass(frozen=True)
class Row:
    """What one place hands out for one architecture, or for the script (``arch`` None).

    ``problem`` None: it is as the first place's manifest says. ``unreachable``: nothing answered there.
    """

    place: str
    arch: str | None
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None
    problem: str | None = None
    unreachable: bool = False


def verify(places: Sequence[Place], *, deadline_s: float = DEADLINE_S) -> list[Row]:
    """Look at every place, all at the same time; the first one's manifest says what is right.

    Raises VerifyError when that one has none.
    """
    wanted = places[0].manifest()
    server = next((place.url for place in places if isinstance(place, Web) and not place.by_name), None)
    results: list[queue.SimpleQueue[Row]] = []
    for place in places:
        rows: queue.SimpleQueue[Row] = queue.SimpleQueue()
        look = functools.partial(_look, place, wanted, place is places[0], server, rows.put)
        # A thread that nobody waits for at the end: a place that never ends its answer must not hold the others.
        threading.Thread(target=look, name=f"verify {place.name}", daemon=True).start()
        results.append(rows)
    deadline = time.monotonic() + deadline_s
    return [
        row
        for place, rows in zip(places, results, strict=True)
        for row in _rows(place, rows, deadline, f"not done after {deadline_s:g} s")
    ]


def _rows(place: Place, rows: queue.SimpleQueue[Row], deadline: float, late: str) -> Iterable[Row]:
    for arch in _what(place):
        try:
            yield rows.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            yield Row(place.name if arch else _script_url(place), arch, problem=late, unreachable=True)


def _what(place: Place) -> list[str | None]:
    """What a place is asked for, in order: architectures, and on a mirror the script."""
    mirror = isinstance(place, Web) and place.by_name
    return [*ARCHITECTURES, None] if mirror else list(ARCHITECTURES)


def _look(place: Place, wanted: Manifest, is_first: bool, server: str | None, put: Callable[[Row], None]) -> None:
    here: Manifest | VerifyError
    try:
        here = place.manifest()
    except VerifyError as error:
        here = error
    for arch in _what(place):
        try:
            if arch is None:
                assert isinstance(place, Web)
                put(_script_row(place, server))
            elif isinstance(here, VerifyError):
                raise here
            else:
                put(_row(place, arch, wanted, here, is_first))
        except VerifyError as error:
            name = place.name if arch else _script_url(place)
            put(Row(name, arch, problem=str(error), unreachable=error.unreachable))


def _row(place: Place, arch: str, wanted: Manifest, here: Manifest, is_first: bool) -> Row:
    right, entry = wanted.builds.get(arch), here.builds.get(arch)
    if right is None or entry is None:
        return Row(place.name, arch, problem="no build for this architecture")
    answer = place.content(arch, entry)
    too_long = f"{answer.name} is longer than the {entry.size} bytes that its manifest says"
    sums = checksums(_at_most(max(entry.size, right.size), answer.pieces, too_long))
    found = BuildFile(entry.file, sums.size, sums.md5, sums.sha256)
    problem = difference(found, answer, entry, here, right, wanted)
    if problem is None and is_first and isinstance(place, Folder):
        problem = place.inside(arch, here)
    return Row(place.name, arch, sums.size, sums.md5, sums.sha256, problem)


def _at_most(limit: int, pieces: Iterable[bytes], words: str) -> Iterator[bytes]:
    """``pieces``, of which nobody knows how many there are; VerifyError once they have more than ``limit`` bytes."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise VerifyError(words)
        yield piece


def difference(
    found: BuildFile, answer: Answer, entry: BuildFile, here: Manifest, right: BuildFile, wanted: Manifest
) -> str | None:
    """What is wrong with a file, worst first; None when nothing is.

    ``found``: its bytes; ``answer``: the headers it came with; ``entry``: the manifest beside it; ``right``: the
    first place's manifest.
    """
    if answer.is_page and found != entry:
        return f"a page (text/html) in place of the file: {answer.name}"
    if found.size < entry.size and (found.md5, found.sha256) != (entry.md5, entry.sha256):
        return f"cut off: {found.size} of {entry.size} bytes"
    if found != entry:
        return "the file is not what the manifest beside it says"
    if found.sums != right.sums:
        return f"another build: {here.version}/{here.commit}{'-dirty' if here.dirty else ''}"
    for name, said, real in (
        ("X-Checksum-Md5", answer.md5, found.md5),
        ("X-Checksum-Sha256", answer.sha256, found.sha256),
    ):
        if said is None and answer.must_have_sums:
            return f"the answer has no header {name}"
        if said is not None and said != real:
            return f"the header {name} says {said[:64]!r}, and the file has {real}"
    for member in ("version", "commit", "built_at", "dirty", "protocol"):
        if getattr(here, member) != getattr(wanted, member):
            return f"the manifest says {member} {getattr(here, member)!r}, wanted {getattr(wanted, member)!r}"
    return None


def _script_url(place: Place) -> str:
    assert isinstance(place, Web)
    return f"{place.url}/{ALL_IN_ONE}"


def _script_row(place: Web, server: str | None) -> Row:
    url = _script_url(place)
    answer = place.get(url)
    content = b"".join(_at_most(SCRIPT_LIMIT, answer.pieces, f"{url} is longer than {SCRIPT_LIMIT} bytes"))
    sums = checksums([content])
    row = Row(url, None, sums.size, sums.md5, sums.sha256)
    text = content.decode("utf-8", "replace")
    baked = addresses(text)
    if baked is None:
        words = "a page (text/html)" if answer.is_page else "not what this release's template gives"
        return replace(row, problem=f"the script is {words}")
    for name, value, good in (("control plane", baked[0], server), ("mirror", baked[1], place.url)):
        if value and good and value != good:
            return replace(row, problem=f"the script uses the {name} {value}, and {good} was compared")
    return row


_SERVER, _MIRROR = "http://the-server.invalid", "http://the-mirror.invalid"
_ADDRESS = f"https?://{HOST}"


def addresses(text: str) -> tuple[str, str] | None:
    """The addresses (control plane, mirror) that the all-in-one script in ``text`` was rendered with; "" for none.

    None when it is not what the template gives: with any address, every other byte is the template's.
    """
    for server in (_SERVER, ""):
        for mirror in (_MIRROR, ""):
            pattern, seen = "", set()
            for piece in re.split(f"({re.escape(_SERVER)}|{re.escape(_MIRROR)})", script(ALL_IN_ONE, server, mirror)):
                group = {_SERVER: "server", _MIRROR: "mirror"}.get(piece)
                if group is None:
                    pattern += re.escape(piece)
                else:
                    pattern += f"(?P={group})" if group in seen else f"(?P<{group}>{_ADDRESS})"
                    seen.add(group)
            match = re.fullmatch(pattern, text)
            if match is not None:
                groups = match.groupdict()
                return groups.get("server", server), groups.get("mirror", mirror)
    return None
