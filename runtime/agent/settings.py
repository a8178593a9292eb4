"""The agent's settings: ``agent.yaml``, environment and command line, checked as a whole.

Every fault is reported with its path. Reading the key file is part of it: a key that cannot be read or used is
a fault of the settings, not of the first call.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional

from runtime.agent.engines.templates import entry_fault
from runtime.agent.hardware_settings import HardwareSettings, probe_faults, tool_faults
from runtime.agent.key_file import KeyFileError, key_faults, read_key_file
from runtime.protocol.address import AddressError, parse_server_url
from runtime.protocol.build import this_build
from runtime.protocol.constraints import Within
from runtime.protocol.credentials import password_in
from runtime.protocol.engines import FORMATS
from runtime.protocol.masking import Masker
from runtime.protocol.names import is_node_id
from runtime.protocol.problems import Fault
from runtime.protocol.settings import AWAITS, SECRET, Loaded, SettingsError, is_newer, load, rank
from runtime.protocol.yaml_faults import unique_keys, yaml_fault

DEFAULT_PATH = Path("/etc/heterofleet/agent.yaml")
CONFIG = "config"
"""The path of a fault of the file itself: it is missing or cannot be read."""


def default_workers() -> int:
    """As many workers as cores, from 2 to 16."""
    return max(2, min(16, os.cpu_count() or 2))


@dataclass(frozen=True)
class AgentSettings:
    """``agent.yaml``. Durations in seconds (``_s``), sizes in MiB (``_mib``); paths are absolute.

    ``api_key`` holds the key itself, also when it came from ``api_key_file``. ``volumes_deny`` is added to what
    is always denied. ``fabrics`` are maps with ``name`` and ``hcas``. ``proxy`` may carry a login, so it is a secret.
    """

    server_url: Optional[str] = None
    api_key: Optional[str] = field(default=None, metadata=SECRET, repr=False)
    api_key_file: Optional[str] = None
    ca_file: Optional[str] = None
    proxy: Optional[str] = field(default=None, metadata=SECRET, repr=False)
    allow_plain_http: bool = False
    node_id: Optional[str] = None
    labels: dict[str, str] = field(default_factory=dict)
    fabrics: list[dict[str, Any]] = field(default_factory=list)
    mgmt_addr: Optional[str] = None
    state_dir: str = "/var/lib/heterofleet/agent"
    docker_host: Optional[str] = None
    volumes_allow: list[str] = field(default_factory=lambda: ["/data", "/mnt", "/srv"])
    volumes_deny: list[str] = field(default_factory=list)
    file_roots: list[str] = field(default_factory=lambda: ["/data"], metadata={AWAITS: "file instructions"})
    model_scan_dirs: list[str] = field(default_factory=lambda: ["/data/heteroflow/model-cache"])
    engine_priorities: dict[str, list[str]] = field(default_factory=dict)
    workers: Annotated[int, Within(1, 64)] = field(default_factory=default_workers)
    max_tasks: Annotated[int, Within(1, 10000)] = 64
    allow_host_network: bool = True
    allow_ipc_host: bool = True
    verify_image_access: bool = False
    process_driver: bool = False
    process_allow_root: bool = False
    process_unconfined: bool = False
    reconcile_interval_s: Annotated[float, Within(1, 3600)] = 60
    poll_interval_s: Annotated[float, Within(0.1, 3600)] = 5
    safety_pull_s: Annotated[float, Within(1, 3600)] = 60
    pull_attempts: Annotated[int, Within(1, 100)] = 3
    pull_stall_s: Annotated[float, Within(1, 86400)] = 300
    pull_total_s: Annotated[float, Within(1, 7 * 86400)] = 1800
    report_attempts: Annotated[int, Within(1, 1000)] = 6
    report_backoff_first_s: Annotated[float, Within(0.01, 3600)] = 1
    report_backoff_max_s: Annotated[float, Within(0.01, 3600)] = 10
    report_total_s: Annotated[float, Within(1, 86400)] = 60
    outbox_keep_days: Annotated[float, Within(1, 3650)] = 30
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    disk_min_free_mib: Annotated[int, Within(0)] = 2048
    log_max_mib: Annotated[int, Within(1, 1024 * 1024)] = 50


def load_settings(
    path: Optional[Path] = None,
    environ: Optional[Mapping[str, str]] = None,
    overrides: Optional[Mapping[str, Any]] = None,
) -> Loaded[AgentSettings]:
    """The effective settings, with the key read from its file.

    ``path`` None: the default file, which may be absent; a path that was named must exist. ``overrides`` hold
    dotted names. Raises SettingsError with every fault found.
    """
    loaded, faults = load_with_faults(path, os.environ if environ is None else environ, overrides)
    if faults or loaded is None:
        raise SettingsError(faults)
    return loaded


def load_with_faults(
    path: Optional[Path], environ: Mapping[str, str], overrides: Optional[Mapping[str, Any]] = None
) -> tuple[Optional[Loaded[AgentSettings]], list[Fault]]:
    """What could be read, and every fault found; None when no value can be told from another."""
    try:
        document, name = read_document(path)
        loaded = load(
            AgentSettings,
            document=document,
            document_name=name,
            environ=environ,
            overrides=overrides,
            version=this_build().version,
        )
    except SettingsError as error:
        return None, error.faults
    warnings = list(loaded.warnings)
    settings, origins, faults = _with_key(loaded, warnings)
    faults += _faults(settings)
    unknown_tools = tool_faults(settings.hardware)
    if is_newer(document, this_build().version):
        warnings += [f"{fault}; ignored, since the file was written for a newer release" for fault in unknown_tools]
    else:
        faults += unknown_tools
    return Loaded(settings, origins, warnings), faults


def read_document(path: Optional[Path]) -> tuple[Any, str]:
    """The parsed file and its name in messages."""
    file = DEFAULT_PATH if path is None else path
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        if path is None:
            return None, str(file)
        raise SettingsError([Fault(CONFIG, f"no file {file}", "a settings file, or no --config")]) from None
    except OSError as error:
        raise SettingsError([Fault(CONFIG, f"{file}: {error.strerror}", "a file that can be read")]) from None
    return _parse_yaml(text, file), str(file)


def _parse_yaml(text: bytes, file: Path) -> Any:
    import yaml  # 20 ms of start-up time, for the one place that needs it

    try:
        return yaml.load(text, Loader=unique_keys(yaml))  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fault = yaml_fault(error)
        raise SettingsError([Fault(f"{file}{fault.place}", fault.words, "valid YAML in UTF-8")]) from None


def _with_key(loaded: Loaded[AgentSettings], warnings: list[str]) -> tuple[AgentSettings, dict[str, str], list[Fault]]:
    """The settings with the key in place, wherever it came from."""
    settings, origins = loaded.settings, dict(loaded.origins)
    given, file = settings.api_key, settings.api_key_file
    if given is not None and file is not None:
        by_value, by_file = rank(origins["api_key"]), rank(origins["api_key_file"])
        if by_value == by_file:
            return settings, origins, [Fault("api_key_file", "a key as well as a key file", "one of the two")]
        given, file = (given, None) if by_value > by_file else (None, file)
    if file is None:
        return settings, origins, [] if given is None else key_faults("api_key", given)
    try:
        key = read_key_file(Path(file), warnings)
    except KeyFileError as error:
        return settings, origins, [Fault("api_key_file", error.found, error.wanted)]
    origins["api_key"] = file
    return dataclasses.replace(settings, api_key=key), origins, []


def _faults(settings: AgentSettings) -> list[Fault]:
    """What is wrong with values that have the right type: the second pass."""
    faults: list[Fault] = []
    if settings.server_url is None:
        faults.append(Fault("server_url", "nothing", "the control plane's URL, such as http://HOST:3333"))
    else:
        try:
            parse_server_url(settings.server_url, allow_plain_http=settings.allow_plain_http)
        except AddressError as error:
            faults.append(Fault("server_url", error.found, error.wanted))
    if settings.api_key is None and settings.api_key_file is None:
        faults.append(Fault("api_key_file", "neither api_key nor api_key_file", "one of the two"))
    if settings.node_id is not None and not is_node_id(settings.node_id):
        faults.append(
            Fault("node_id", repr(settings.node_id), "1 to 63 of a-z, 0-9 and '-', with no '-' at either end")
        )
    if settings.mgmt_addr is not None and re.fullmatch(r"[^\s/@]{1,255}", settings.mgmt_addr) is None:
        faults.append(Fault("mgmt_addr", repr(settings.mgmt_addr), "one host name or address"))
    if settings.proxy is not None:
        try:
            parse_server_url(_without_login(settings.proxy), allow_plain_http=True)
        except AddressError as error:
            faults.append(Fault("proxy", error.found, error.wanted.replace("3333", "3128")))
    if settings.report_backoff_max_s < settings.report_backoff_first_s:
        faults.append(
            Fault(
                "report_backoff_max_s",
                f"{settings.report_backoff_max_s:g}",
                f"at least report_backoff_first_s ({settings.report_backoff_first_s:g})",
            )
        )
    faults += _path_faults(settings)
    faults += _priority_faults(settings.engine_priorities)
    faults += probe_faults(settings.hardware)
    for n, fabric in enumerate(settings.fabrics):
        hcas = fabric.get("hcas", [])
        if not isinstance(fabric.get("name"), str) or set(fabric) - {"name", "hcas"}:
            faults.append(Fault(f"fabrics.{n}", repr(fabric)[:80], "a map with name and hcas"))
        elif not isinstance(hcas, list) or not all(isinstance(hca, str) for hca in hcas):
            faults.append(Fault(f"fabrics.{n}.hcas", repr(hcas)[:80], "a list of adapter names"))
    return faults


def _priority_faults(priorities: dict[str, list[str]]) -> list[Fault]:
    faults = []
    for form, entries in priorities.items():
        if form not in FORMATS:
            faults.append(Fault(f"engine_priorities.{form}", "an unknown format", f"one of {', '.join(FORMATS)}"))
            continue
        for n, entry in enumerate(entries):
            wanted = entry_fault(form, entry)
            if wanted is not None:
                faults.append(Fault(f"engine_priorities.{form}.{n}", repr(entry)[:80], wanted))
    return faults


def _without_login(url: str) -> str:
    """A proxy may carry a login of its own; the rest follows the server's rules, and may be shown."""
    head, sign, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return head + sign + authority.rpartition("@")[2] + slash + path


def _path_faults(settings: AgentSettings) -> list[Fault]:
    faults = []
    single = {name: getattr(settings, name) for name in ("state_dir", "ca_file", "api_key_file")}
    for name in ("volumes_allow", "volumes_deny", "file_roots", "model_scan_dirs"):
        single.update({f"{name}.{n}": value for n, value in enumerate(getattr(settings, name))})
    single.update({f"hardware.tools.{name}": value for name, value in settings.hardware.tools.items()})
    for name, value in single.items():
        if value is not None and not value.startswith("/"):
            faults.append(Fault(name, repr(value), "an absolute path"))
    if settings.ca_file is not None and settings.ca_file.startswith("/") and not Path(settings.ca_file).is_file():
        faults.append(Fault("ca_file", f"no file {settings.ca_file}", "a file with CA certificates in PEM form"))
    return faults


def masker_of(settings: AgentSettings) -> Masker:
    """Knows every secret that the settings hold."""
    masker = Masker()
    masker.add_all([settings.api_key, password_in(settings.proxy)])
    return masker
