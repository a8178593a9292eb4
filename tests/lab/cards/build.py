"""Compiling the C parts and packing the tool, once for each version of their sources (kept in the cache)."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from pathlib import Path

from tests.lab import places
from tests.lab.process import run

_HERE = Path(__file__).parent
_COMPILING = threading.Lock()  # nodes are made side by side, and each asks for the same files
_FLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]


def library() -> Path:
    """The compiled ``libnvidia-ml.so.1``."""
    sources = sorted((_HERE / "nvml").glob("*.c"))
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]
    return compiled("libnvidia-ml.so.1", sources, flags)


def runtime() -> Path:
    """The compiled Docker runtime ``nvidia``."""
    return compiled("nvidia-container-runtime", [_HERE / "runtime" / "runtime.c", _HERE / "nvml" / "json.c"], [])


def tool() -> bytes:
    """``nvidia-smi`` as one executable file: a zip of its modules behind a first line for the kernel."""
    output = io.BytesIO(b"")
    with zipfile.ZipFile(output, "w") as archive:
        for source in sorted((_HERE / "smi").glob("*.py")):
            archive.writestr(zipfile.ZipInfo(source.name), source.read_bytes())
    return b"#!/usr/bin/python3\n" + output.getvalue()


def compiled(name: str, sources: list[Path], flags: list[str]) -> Path:
    """A program or library of these sources, compiled when they changed."""
    headers = sorted((_HERE / "nvml").glob("*.h"))
    digest = hashlib.sha256(repr([_FLAGS, flags]).encode())
    for source in [*sources, *headers]:
        digest.update(source.read_bytes())
    target = places.cache() / "cards" / digest.hexdigest()[:12] / name
    with _COMPILING:
        if not target.exists():
            places.make_folder(target.parent)
            beside = target.with_name(f".{name}.{os.getpid()}.new")
            run(["gcc", *_FLAGS, *flags, "-o", beside, *sources])
            beside.replace(target)
    return target
