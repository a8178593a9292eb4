"""What settings and state tell that may be absent, closed to this user or faulty: for commands that have to answer all
the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from runtime.agent.hardware_settings import HardwareSettings
from runtime.agent.settings import DEFAULT_PATH, AgentSettings, load_with_faults, read_document
from runtime.protocol.settings import PREFIX, SettingsError

if TYPE_CHECKING:
    from runtime.agent.hardware.remembered import Remembered


@dataclass(frozen=True)
class FoundHardware:
    """What decides which cards and ports the scheduler sees. ``unread``: why that is not what the file says."""

    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    fabrics: list[dict[str, Any]] = field(default_factory=list)
    unread: Optional[str] = None


def hardware_of(path: Optional[Path], environ: Mapping[str, str]) -> FoundHardware:
    """Of the file ``path``; None: the default one, which may be absent or closed to this user without a word."""
    file = path or DEFAULT_PATH
    try:
        read_document(path)
    except SettingsError as error:
        if file.exists() and _readable(file):
            return FoundHardware(unread=f"{error.faults[0]}: its settings are not used")
        return FoundHardware(unread=None if path is None else f"{error.faults[0]}: no settings are used")
    loaded, faults = load_with_faults(path, environ)
    bad = [fault for fault in faults if fault.path.partition(".")[0] in ("hardware", "fabrics")]
    if loaded is not None and not bad:
        return FoundHardware(loaded.settings.hardware, loaded.settings.fabrics)
    return FoundHardware(unread=f"{(bad or faults)[0]}: the settings of {file} are not used, nor by an agent")


def _readable(file: Path) -> bool:
    try:
        file.open("rb").close()
    except OSError:
        return False
    return True


def state_dir_of(path: Optional[Path], environ: Mapping[str, str]) -> Path:
    """Where the agent keeps its state, as far as that can be told from settings that may have other faults."""
    variable = environ.get(f"{PREFIX}STATE_DIR")
    if variable:
        return Path(variable)
    try:
        document, _ = read_document(path)
    except SettingsError:
        document = None
    value = document.get("state_dir") if isinstance(document, dict) else None
    return Path(value if isinstance(value, str) else AgentSettings.state_dir)


def remembered_of(path: Optional[Path], environ: Mapping[str, str]) -> Optional[Remembered]:
    """The cards that the agent has known here; None: that cannot be read."""
    from runtime.agent.hardware.remembered import CannotRead, read_remembered  # ``status`` needs none of it

    try:
        return read_remembered(state_dir_of(path, environ))
    except CannotRead:
        return None
