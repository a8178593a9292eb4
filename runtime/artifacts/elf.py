"""Which machine a native file is for, read from its ELF header, and the native files inside an archive."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

MAGIC = b"\x7fELF"
HEADER_SIZE = 20
"""Bytes of the header that :func:`machine` reads."""

_MACHINES = {
    (2, 1, 62): "amd64",
    (2, 1, 183): "arm64",
    (1, 1, 3): "i386",
    (1, 1, 40): "arm",
    (2, 1, 243): "riscv64",
    (2, 1, 21): "ppc64le",
    (2, 2, 22): "s390x",
}
"""(class, byte order, e_machine) -> name; class 1 has 32 bits and 2 has 64, order 1 is little-endian."""


class ElfError(ValueError):
    """The bytes begin like an ELF file and are not one."""


@dataclass(frozen=True)
class NativePart:
    """A native file: its path inside the archive (``outer.whl!inner.so``), and its machine."""

    path: str
    machine: str

    def __str__(self) -> str:
        return f"{self.path} is for {self.machine}"


def machine(header: bytes) -> str | None:
    """The machine that ``header`` (the first 20 bytes of a file) names; None when it is no ELF file.

    ``amd64``, ``arm64``..., else ``class C order O machine M`` in numbers. Raises ElfError on a cut or wrong header.
    """
    if not header.startswith(MAGIC):
        return None
    if len(header) < HEADER_SIZE:
        raise ElfError(f"the file ends inside its ELF header, after {len(header)} bytes")
    bits, order = header[4], header[5]
    if bits not in (1, 2) or order not in (1, 2):
        raise ElfError(f"ELF class {bits} and byte order {order} do not exist")
    number: int = struct.unpack_from("<H" if order == 1 else ">H", header, 18)[0]
    return _MACHINES.get((bits, order, number), f"class {bits} order {order} machine {number}")


def native_parts(archive: IO[bytes], prefix: str = "") -> Iterator[NativePart]:
    """Every native file in a zip archive and in the wheels inside it, in the archive's order.

    Raises ElfError with the file's path: also for a ``.so`` that is no ELF file, and when there is no archive.
    """
    try:
        yield from _parts(archive, prefix)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ElfError(f"{prefix.rstrip('!') or 'the file'}: no whole archive ({error})") from error


def _parts(archive: IO[bytes], prefix: str) -> Iterator[NativePart]:
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            path = prefix + entry.filename
            if entry.is_dir():
                continue
            if entry.filename.endswith(".whl"):
                yield from native_parts(io.BytesIO(opened.read(entry)), f"{path}!")
                continue
            with opened.open(entry) as stream:
                header = stream.read(HEADER_SIZE)
            try:
                found = machine(header)
            except ElfError as error:
                raise ElfError(f"{path}: {error}") from error
            if found is not None:
                yield NativePart(path, found)
            elif _is_library(entry.filename):
                raise ElfError(f"{path}: named like a native library and no ELF file")


def parts_if_archive(opened: IO[bytes]) -> list[NativePart]:
    """As native_parts, and none where the file is no archive: it has no parts that could be for another machine."""
    return list(native_parts(opened)) if zipfile.is_zipfile(opened) else []


def _is_library(name: str) -> bool:
    base = name.rsplit("/", 1)[-1]
    return base.endswith(".so") or ".so." in base
