"""The script that becomes the program: its variables, its folder, then the program in the shell's place. Pure.

A file, not arguments: what is on a command line or in a unit's settings can be read by every user of the machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Optional

from runtime.agent.drivers.driver import DEFAULT_PATH

SHELLS_OWN = ("BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID")
"""Variables that a shell keeps for itself: where /bin/sh is bash, it ends when they are set."""

NOT_ENTERED = 126


def go_script(argv: Sequence[str], env: Mapping[str, str], workdir: Optional[str], home: str) -> str:
    """``argv`` is run as it is: no word of it is seen by the shell. Standard input is empty."""
    variables = {"PATH": DEFAULT_PATH, "HOME": home, **env}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines.append(f"cd {shlex.quote(workdir or '/')} || exit {NOT_ENTERED}")
    lines.append("unset OLDPWD")
    program, *rest = argv
    if program.startswith("-"):
        program = f"./{program}"  # exec would take it for an option
    words = " ".join(shlex.quote(word) for word in (program, *rest))
    return "\n".join([*lines, f"exec {words} </dev/null", ""])
