"""The ELF reader: which machine a native file is for, and which archives are refused."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest

from runtime.artifacts import build as building
from runtime.artifacts.elf import ElfError, NativePart, machine, native_parts
from runtime.artifacts.errors import BuildError


def header(number: int, bits: int = 2, order: int = 1) -> bytes:
    """The first 20 bytes of a shared object for ``number``."""
    kind = "<HH" if order == 1 else ">HH"
    return b"\x7fELF" + bytes([bits, order, 1, 0]) + bytes(8) + struct.pack(kind, 3, number)


def archive(entries: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as opened:
        for name, content in entries.items():
            opened.writestr(name, content)
    return made.getvalue()


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (header(62), "amd64"),
        (header(183), "arm64"),
        (header(62, bits=1), "class 1 order 1 machine 62"),  # x32: not what an amd64 Python loads
        (header(3, bits=1), "i386"),
        (header(40, bits=1), "arm"),
        (header(22, order=2), "s390x"),
        (header(183, order=2), "class 2 order 2 machine 183"),  # big-endian ARM
        (header(9999), "class 2 order 1 machine 9999"),
        (b"#!/bin/sh\n", None),
        (b"", None),
        (b"\x7fEL", None),
        (b"PK\x03\x04", None),
    ],
)
def test_machine_of_a_header(first: bytes, found: str | None) -> None:
    assert machine(first) == found


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (header(62)[:19], "ends inside its ELF header, after 19 bytes"),
        (b"\x7fELF", "after 4 bytes"),
        (header(62, bits=3), "ELF class 3"),
        (header(62, order=0), "byte order 0"),
    ],
)
def test_a_broken_header_is_an_error_not_a_guess(first: bytes, words: str) -> None:
    with pytest.raises(ElfError, match=words):
        machine(first)


def test_native_parts_are_found_by_content_also_in_wheels() -> None:
    wheel = archive({"psutil/_psutil.abi3.so": header(183), "psutil/__init__.py": b"x = 1\n"})
    outer = archive({"a/tool": header(62), "b/text.py": b"\x7fnot", "c/": b"", ".deps/psutil.whl": wheel})
    assert list(native_parts(io.BytesIO(outer))) == [
        NativePart("a/tool", "amd64"),
        NativePart(".deps/psutil.whl!psutil/_psutil.abi3.so", "arm64"),
    ]


@pytest.mark.parametrize("name", ["lib/x.so", "lib/libyaml.so.0.2"])
def test_a_library_that_is_no_elf_file_is_named(name: str) -> None:
    with pytest.raises(ElfError, match=f"{name}: named like a native library"):
        list(native_parts(io.BytesIO(archive({name: b"<html>not found</html>"}))))


def test_a_planted_part_of_another_machine_fails_the_build(tmp_path) -> None:
    planted = tmp_path / "agent"
    planted.write_bytes(b"#!/bin/sh\nexit\n" + archive({"ok.so": header(183), "yaml/_yaml.so": header(62)}))
    with pytest.raises(BuildError, match=r"yaml/_yaml\.so is for amd64"):
        building.check_machines("arm64", planted)
    assert building.check_machines("arm64", _only(tmp_path, "ok.so")) == [NativePart("ok.so", "arm64")]


def _only(folder, name: str):
    path = folder / "good"
    path.write_bytes(archive({name: header(183)}))
    return path
