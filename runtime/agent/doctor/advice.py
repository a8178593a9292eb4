"""What a driver's or a tool's words mean for the one who has to act. Pure."""

from __future__ import annotations

import re
from typing import Optional

_RELOAD = "the driver was upgraded under the running kernel module: drain the node and reboot it"
_LOAD = "the kernel module is not loaded: modprobe {module}, and look at dmesg (another kernel, Secure Boot, no module)"
_RESET = "drain the node and reset the card (nvidia-smi --gpu-reset, or the vendor's own), or reboot"
_LOST = "the card fell off the bus: drain the node and power it off and on"
_FIRMWARE = (
    "driver or firmware is not up: run this as root, look at dmesg, and reboot after an upgrade of the firmware; in a "
    "container the card's device files are missing"
)

_BY_WORDS: tuple[tuple[str, str], ...] = (
    (r"version mismatch|\(code 18\)", _RELOAD),
    (
        r"error while loading shared libraries",
        "the loader does not find the tool's libraries: install the driver's user-space part, or add {folders} to "
        "/etc/ld.so.conf.d and run ldconfig",
    ),
    (r"driver not loaded|communicate with the nvidia driver|\(code 9\)", _LOAD),
    (
        r"couldn't find .*libnvidia-ml|library not found|\(code 12\)|neither nvml nor",
        "the vendor's library is not here: install the driver's user-space part",
    ),
    (
        r"\bused\. ret is -8020|device is used",
        "a container or a virtual machine has the card, or the driver's folders are not mounted into this one",
    ),
    (r"dcmi module initialize failed|ret is -8005|DrvMngGetConsoleLogLevel", _FIRMWARE),
    (r"insufficient permissions|permission denied|\(code 4\)", "the files are closed to this user: run this as root"),
    (r"blocked by the operating system|\(code 17\)", "on WSL2 update Windows' driver, then: wsl --shutdown"),
    (r"did not answer|stuck", "the driver hangs: look at dmesg for its lines (Xid, NVRM); a reboot is the usual cure"),
    (r"is lost|fallen off", _LOST),
    (r"requires reset", _RESET),
    (
        r"no devices were found|knows no card",
        "the driver runs and has no card: lspci, dmesg, power and seat of the card",
    ),
)
"""The first that fits."""

_BY_KIND: dict[str, str] = {
    "driver_not_loaded": _LOAD,
    "version_mismatch": _RELOAD,
    "gpu_lost": _LOST,
    "reset_required": _RESET,
    "not_initialized": _FIRMWARE,
    "tool_missing": "the tool is a script that does not find its program: repair the driver's installation",
}
"""What the tool's parser made of it."""

_OTHER = "look at dmesg and at the vendor's tool"
_MODULES = {"nvidia": "nvidia"}


def module_of(vendor: str) -> str:
    """What modprobe is to be given."""
    return _MODULES.get(vendor, f"that of {vendor}'s driver")


def advice_for(words: str, *, kind: Optional[str] = None, vendor: str = "nvidia", folders: str = "") -> str:
    """``folders``: where the tool's libraries are looked for."""
    text = next((advice for pattern, advice in _BY_WORDS if re.search(pattern, words, re.IGNORECASE)), None)
    text = text or _BY_KIND.get(kind or "") or _OTHER
    return text.format(module=module_of(vendor), folders=folders or "their folder")
