"""What a task may say of its program (words, variables, user, folder): the server's answer and the node's check
are one. Values of variables are never in a fault's text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Optional

from runtime.protocol.paths import path_fault
from runtime.protocol.problems import Fault
from runtime.protocol.tasks import TaskSpec

WORD_BYTES = 128 * 1024 - 1
"""One argument, or one variable with its name: what Linux takes (MAX_ARG_STRLEN, without the NUL at its end)."""

PROGRAM_BYTES = 1024 * 1024
"""Entrypoint, command and environment together: half of what Linux takes where nobody has changed a limit, since
image and init process bring their own."""

_COST = 9
"""Of every word beside its bytes: a NUL and a pointer."""

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)
_LARGEST_ID = 2**31 - 1


def program_faults(spec: TaskSpec, env: Mapping[str, str]) -> Iterator[Fault]:
    """Every fault of the program with ``env`` as its variables."""
    total = 0
    for member, words in (("entrypoint", spec.entrypoint), ("command", spec.command)):
        for number, word in enumerate(words or ()):
            size = _size(word)
            total += (size or 0) + _COST
            yield from _word_faults(f"{member}.{number}", word, size)
    for name, value in env.items():
        size = _size(value)
        total += (size or 0) + len(name) + 1 + _COST
        yield from _word_faults(f"env.{name}", value, None if size is None else size + len(name) + 1)
    resume = spec.resume_from_checkpoint
    if resume is not None:
        yield from _word_faults("resume_from_checkpoint", resume, _size(resume))
    if total > PROGRAM_BYTES:
        member = "env" if spec.env else "command"
        yield Fault(member, f"{total} bytes of entrypoint, command and env", f"at most {PROGRAM_BYTES} in all")
    if spec.user is not None and not is_user(spec.user):
        yield Fault("user", ascii(spec.user[:80]), "a name or number, or two as user:group, of a-z, 0-9, '_', '.', '-'")
    if spec.workdir is not None:
        fault = workdir_fault(spec.workdir)
        if fault is not None:
            yield Fault("workdir", f"a path that {fault}", "an absolute path without '..' and control characters")


def is_user(text: str) -> bool:
    """Whether an engine can read ``text`` as a user with or without a group."""
    if _USER.fullmatch(text) is None:
        return False
    return all(not part.isdigit() or int(part) <= _LARGEST_ID for part in text.split(":"))


def workdir_fault(path: str) -> Optional[str]:
    """What is wrong with a working folder, in words that follow "it"; None: nothing."""
    return path_fault(path) or ("has '..' in it" if ".." in path.split("/") else None)


def _size(text: str) -> Optional[int]:
    """In bytes as they reach the program; None when no bytes can be made of it."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _word_faults(path: str, text: str, size: Optional[int]) -> Iterator[Fault]:
    if size is None:
        yield Fault(path, "characters that are no text", "text in UTF-8")
    elif "\0" in text:
        yield Fault(path, "a NUL character", "text without it")
    elif size > WORD_BYTES:
        yield Fault(path, f"{size} bytes", f"at most {WORD_BYTES}")
