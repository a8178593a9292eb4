"""What NVML's codes mean for the machine as a whole, and what is to be done: a sentence for people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.nvml_child import LIBRARY

KERNEL_MODULE = Path("/proc/driver/nvidia/version")
LIBRARY_MISSING = 12
MISMATCH = 18

_ADVICE = {
    4: "the agent may not use the card's device files",
    9: "the driver is not loaded: load the module nvidia, or install the driver for this kernel",
    17: "the operating system blocks it: on WSL2 update Windows' driver, then wsl --shutdown",
    999: "in a container the device rules were lost (systemctl daemon-reload); on a host look at dmesg for NVRM",
}
_VERSION = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)")


def sentence(error: dict[str, Any], kernel: Optional[str] = None, library: Optional[str] = None) -> str:
    """``error`` is the child's ``{"error": code, "text": ...}``; ``kernel`` and ``library``: the two versions of the
    driver, which differ after an upgrade without a reboot."""
    code = error["error"]
    text = f"NVML: {error.get('text')} (code {code})"
    if code == MISMATCH:
        loaded = f"module {kernel}" if kernel else "the module"
        installed = f"library {library}" if library else "the library"
        return f"{text}: {loaded} is loaded and {installed} is installed; reboot, or reload the module nvidia"
    return f"{text}: {_ADVICE[code]}" if code in _ADVICE else text


def module_version(path: Path = KERNEL_MODULE) -> Optional[str]:
    """Version of the driver that the kernel has loaded."""
    try:
        match = _VERSION.search(path.read_text("utf-8", "replace"))
    except OSError:
        return None
    return match.group(1) if match else None


def library_version(folders: list[str]) -> Optional[str]:
    """Version in the name of the file that the library's link points at."""
    for folder in folders:
        name = (Path(folder) / LIBRARY).resolve().name
        match = re.fullmatch(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)", name)
        if match is not None:
            return match.group(1)
    return None
