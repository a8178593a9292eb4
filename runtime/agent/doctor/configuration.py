"""Settings: their faults, the key's file, and the folders that tasks may use."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from runtime.agent.deadline import Late, within
from runtime.agent.doctor.findings import Finding, Point, failure, finding, ok, unknown, warning
from runtime.agent.settings import CONFIG, DEFAULT_PATH, AgentSettings, load_with_faults
from runtime.protocol.causes import root_cause
from runtime.protocol.problems import Fault
from runtime.protocol.settings import Loaded

AS_ROOT = "run the doctor as root, as the agent runs"
FOLDER_S = 4.0
KEY_SETTINGS = ("api_key", "api_key_file")


@dataclass(frozen=True)
class Configuration:
    """What could be read. ``loaded`` None: nothing usable, ``faults`` or ``missing`` say why.

    ``denied``: a file could not be read by this user, which says nothing about the agent.
    """

    file: Path
    loaded: Optional[Loaded[AgentSettings]] = None
    faults: tuple[Fault, ...] = ()
    missing: bool = False
    denied: bool = False

    @property
    def settings(self) -> Optional[AgentSettings]:
        return None if self.loaded is None else self.loaded.settings

    @property
    def usable(self) -> AgentSettings:
        """The settings as far as they are known, else the defaults: for checks that need no server."""
        return self.settings or AgentSettings()


def read_configuration(config: Optional[Path], environ: Mapping[str, str]) -> Configuration:
    """The settings as the agent would take them, with every fault; nothing is raised."""
    file = config or DEFAULT_PATH
    loaded, faults = load_with_faults(config, environ)
    # As an ordinary user a file in a closed folder cannot even be seen to be there.
    hidden = os.geteuid() != 0 and not os.access(file, os.R_OK) and _is_there(file)
    key_denied = os.geteuid() != 0 and any(
        fault.path in KEY_SETTINGS and "Permission denied" in fault.found for fault in faults
    )
    missing = config is None and not hidden and not file.exists()
    return Configuration(file, loaded, tuple(faults), missing, hidden or key_denied)


def _is_there(file: Path) -> bool:
    """Also where it stands in a folder that this user may not look into."""
    try:
        file.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def judge_settings(found: Configuration) -> Finding:
    faults = [fault for fault in found.faults if fault.path not in KEY_SETTINGS]
    if found.denied and (found.loaded is None or faults):
        return finding("settings", [unknown(f"{found.file} cannot be read by this user", AS_ROOT)])
    if found.missing and found.faults:
        words = f"there is no {found.file}, and the environment does not say where the control plane is"
        return finding("settings", [unknown(words, "install the agent, or name a file with --config")])
    points = [failure(f"{fault.path}: {fault.found}", fault.wanted, _advice(found.file, fault)) for fault in faults]
    if found.loaded is not None:
        points += [warning(text) for text in found.loaded.warnings if not text.startswith("api_key_file:")]
    return finding("settings", points or [ok(f"{found.file} is good" if not found.missing else "good, without a file")])


def _advice(file: Path, fault: Fault) -> str:
    if fault.path == CONFIG:
        return f"{file} is missing, or no file that can be read: name another with --config, or install the agent"
    return f"correct it in {file}, then: heterofleet-agent config check --config {file}"


@dataclass(frozen=True)
class KeyFile:
    """A file that holds the key. ``mode`` None: it could not be looked at, ``error`` says why."""

    path: str
    mode: Optional[int] = None
    owner: Optional[int] = None
    error: str = ""


def look_at_key_file(found: Configuration) -> Optional[KeyFile]:
    """The file that the key stands in: its own, or the settings themselves; None when it came from elsewhere."""
    loaded = found.loaded
    if loaded is None:
        return None
    settings = loaded.settings
    path = settings.api_key_file or (loaded.origins.get("api_key") if settings.api_key is not None else None)
    if path is None or not path.startswith("/"):
        return None
    try:
        facts = Path(path).stat()
    except OSError as error:
        return KeyFile(path, error=root_cause(error))
    return KeyFile(path, stat.S_IMODE(facts.st_mode), facts.st_uid)


def judge_key_file(found: Configuration, file: Optional[KeyFile]) -> list[Point]:
    """The key as far as this machine can tell: present, of the right form, and closed to others."""
    faults = [fault for fault in found.faults if fault.path in KEY_SETTINGS]
    if found.denied:
        return [unknown("the key cannot be read by this user", AS_ROOT)]
    if found.missing and found.faults:
        return [unknown("there are no settings that name a key", "see settings")]
    points = [
        failure(fault.found, fault.wanted, "put the system key of the control plane there, and nothing else")
        for fault in faults
    ]
    if file is not None and file.mode is not None:
        if file.mode & 0o077:
            points.append(
                warning(f"{file.path} is open to others (mode {file.mode:04o})", "0600", f"chmod 0600 {file.path}")
            )
        if file.owner not in (0, os.geteuid()):
            points.append(warning(f"{file.path} belongs to user {file.owner}", "root", f"chown root: {file.path}"))
    return points


def look_at_folders(settings: AgentSettings) -> dict[str, str]:
    """``volumes_allow`` -> "" where it is a folder, else what is wrong with it."""
    return {path: _folder_fault(path) for path in settings.volumes_allow}


def _folder_fault(path: str) -> str:
    try:
        facts = within(FOLDER_S, Path(path).stat)
    except Late:
        return f"did not answer in {FOLDER_S:g} s"
    except OSError as error:
        return root_cause(error)
    return "" if stat.S_ISDIR(facts.st_mode) else "is not a folder"


def judge_volumes(folders: Mapping[str, str], configured: bool) -> Finding:
    """``configured``: an operator named the folders; the default ones need not all be there."""
    good = [path for path, fault in folders.items() if not fault]
    bad = {path: fault for path, fault in folders.items() if fault}
    absent = f" ({', '.join(bad)} is not here)" if bad and not configured else ""
    points = [ok(f"tasks may bind folders below {', '.join(good)}{absent}")] if good else []
    for path, fault in bad.items():
        hung = "did not answer" in fault
        if hung or configured:
            advice = "look at its file server or disk" if hung else "make it, or take it out of volumes_allow"
            points.append((failure if hung else warning)(f"{path}: {fault}", "a folder (volumes_allow)", advice))
    if not folders:
        points.append(ok("volumes_allow is empty: tasks may bind no folder"))
    elif not points:
        points.append(ok(f"none of {', '.join(folders)} is here: tasks may bind no folder"))
    return finding("volumes", points)
