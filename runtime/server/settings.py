"""The control plane's settings: every row of server.yaml, how they are read, and when they are refused."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import re
import secrets
import stat
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Optional

from runtime.protocol import settings as rules
from runtime.protocol.build import this_build
from runtime.protocol.constraints import Items, Text, Within
from runtime.protocol.credentials import fits_a_header
from runtime.protocol.problems import Fault
from runtime.protocol.yaml_faults import unique_keys, yaml_fault

DEFAULT_FILE = Path("/etc/heterofleet/server.yaml")

KNOWN_DEFAULT_KEYS = ("heterofleet", "heteroflow", "changeme", "change-me", "secret", "admin", "test", "default", "dev")
KEY_SHORTEST = 16
KEY_DISTINCT = 6
LETTERS_DISTINCT = 4
"""Asked of what stands beside a known default: digits alone do not make it a key."""
ROW_OF_LETTERS = re.compile(
    f"(?:{'|'.join(f'{one}(?={two})' for one, two in itertools.pairwise(string.ascii_lowercase))}){{3,}}[a-z]"
)
"""Four letters or more as the alphabet has them: ``abcdefgh``."""

LISTENS = ("listen", "doorbell_listen", "mirror_listen")

Listen = Annotated[str, Text(0, 300)]
Seconds = Annotated[float, Within(0.05, 86400 * 30)]
Beats = Annotated[int, Within(1, 100000)]


@dataclass(frozen=True)
class ServerSettings:
    """Durations ``_s`` in seconds, ``*_beats`` in heartbeat intervals, ``*_mib`` in MiB.

    ``listen`` and its kin are ``host:port``; an empty ``doorbell_listen`` or ``mirror_listen`` turns that off.
    """

    mode: Annotated[str, Text(pattern="production|dev")] = "production"
    listen: Listen = "0.0.0.0:3333"
    doorbell_listen: Listen = "0.0.0.0:3334"
    mirror_listen: Optional[Listen] = None
    public_url: Optional[Annotated[str, Text(pattern=r"https?://[A-Za-z0-9.:\[\]-]+")]] = None
    doorbell_url: Optional[Annotated[str, Text(pattern=r"https?://[A-Za-z0-9.:\[\]-]+")]] = None
    trusted_proxies: Annotated[list[str], Items(0, 100)] = field(default_factory=list)
    api_key: Optional[str] = field(default=None, metadata=rules.SECRET, repr=False)
    api_key_file: Optional[str] = None
    api_key_previous: Optional[str] = field(default=None, metadata=rules.SECRET, repr=False)
    secret_key_file: Optional[str] = None
    database_url: Optional[str] = field(default=None, metadata=rules.SECRET, repr=False)
    state_dir: str = "/var/lib/heterofleet/server"
    builds_dir: Optional[str] = None
    heartbeat_interval_s: Annotated[float, Within(1, 60)] = 5
    unreachable_after_beats: Beats = 3
    lost_after_beats: Beats = 12
    start_grace_s: Annotated[float, Within(0, 86400)] = 120
    offline_grace_s: Seconds = 600
    claim_overdue_s: Seconds = 120
    brake_fraction: Annotated[float, Within(0, 1)] = 0.3
    brake_min_nodes: Annotated[int, Within(1)] = 3
    card_lost_after_beats: Beats = 3
    card_back_after_beats: Beats = 3
    mps_max: Annotated[int, Within(1, 48)] = 4
    default_vendor: Optional[str] = None
    retention_days: Annotated[float, Within(0)] = 30
    threads: Annotated[int, Within(1, 1024)] = 16
    connection_limit: Annotated[int, Within(1, 1000000)] = 10000
    max_body_mib: Annotated[float, Within(0.01, 1024)] = 8
    metrics_public: bool = False

    @property
    def state_path(self) -> Path:
        return Path(self.state_dir)

    @property
    def builds_path(self) -> Path:
        return Path(self.builds_dir) if self.builds_dir else self.state_path / "builds"

    @property
    def secret_key_path(self) -> Path:
        return Path(self.secret_key_file) if self.secret_key_file else self.state_path / "secret.key"

    @property
    def effective_database_url(self) -> str:
        """SQLAlchemy's URL; ``postgresql://`` means the driver that is installed with us."""
        url = self.database_url or f"sqlite:///{self.state_path / 'heterofleet.db'}"
        for prefix in ("postgresql://", "postgres://"):
            if url.startswith(prefix):
                return "postgresql+psycopg://" + url.removeprefix(prefix)
        return url

    @property
    def unreachable_after_s(self) -> float:
        return self.heartbeat_interval_s * self.unreachable_after_beats

    @property
    def lost_after_s(self) -> float:
        return self.heartbeat_interval_s * self.lost_after_beats

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mib * 1024 * 1024)


def load(
    path: Path | None, *, environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> rules.Loaded[ServerSettings]:
    """Settings from ``path`` (None: the default file where there is one), environment and ``overrides``.

    Raises SettingsError with every fault. Keys are not looked at here: see :func:`with_keys`.
    """
    document, name = None, "file"
    chosen = path or DEFAULT_FILE
    if path is not None or _is_there(chosen):
        document, name = _read_yaml(chosen), str(chosen)
    loaded = rules.load(
        ServerSettings,
        document=document,
        document_name=name,
        environ=os.environ if environ is None else environ,
        overrides=overrides,
        version=this_build().version,
    )
    faults = [*_listen_faults(loaded), *_proxy_faults(loaded), *_database_faults(loaded)]
    if faults:
        raise rules.SettingsError(faults)
    return _with_the_nearer_key(loaded)


def _is_there(path: Path) -> bool:
    """One that may not be looked at counts as there: reading it says why."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _with_the_nearer_key(loaded: rules.Loaded[ServerSettings]) -> rules.Loaded[ServerSettings]:
    """Without the farther one of key and key file; two that are equally near stay, and are refused later."""
    settings, origins = loaded.settings, loaded.origins
    by_value, by_file = rules.rank(origins["api_key"]), rules.rank(origins["api_key_file"])
    if settings.api_key is None or settings.api_key_file is None or by_value == by_file:
        return loaded
    farther, nearer = ("api_key", "api_key_file") if by_value < by_file else ("api_key_file", "api_key")
    without: dict[str, Any] = {farther: None}
    told = {**origins, farther: f"{nearer} is nearer ({origins[nearer]})"}
    return replace(loaded, settings=replace(settings, **without), origins=told)


def with_keys(settings: ServerSettings) -> tuple[ServerSettings, bool]:
    """The settings with the system key in ``api_key``, and whether it was made just now (dev mode).

    Production refuses a missing or a guessable key; dev mode makes a random one where none is given, and
    listens on loopback only. Raises SettingsError.
    """
    faults: list[Fault] = []
    key = settings.api_key
    if settings.api_key_file is not None:
        if key is not None:
            faults.append(Fault("api_key_file", "api_key beside it", "only one of api_key and api_key_file"))
        else:
            try:
                key = Path(settings.api_key_file).read_text("utf-8-sig").strip()
            except (OSError, UnicodeDecodeError) as error:
                faults.append(Fault("api_key_file", str(error), "a readable file that holds the key"))
    if faults:
        raise rules.SettingsError(faults)
    made = settings.mode == "dev" and not key
    if made:
        key = secrets.token_urlsafe(32)
    fault_of = _form_fault if settings.mode == "dev" else key_fault
    for name, value in (("api_key", key), ("api_key_previous", settings.api_key_previous)):
        wrong = fault_of(value) if value is not None or name == "api_key" else None
        if wrong:
            or_none = ", or none at all" if name == "api_key_previous" else ""
            faults.append(Fault(name, wrong, f"a random key of at least {KEY_SHORTEST} characters{_HOW}{or_none}"))
    if faults:
        raise rules.SettingsError(faults)
    settings = replace(settings, api_key=key)
    if settings.mode == "dev":
        settings = replace(
            settings,
            listen=_on_loopback(settings.listen),
            doorbell_listen=_on_loopback(settings.doorbell_listen),
            mirror_listen=_on_loopback(settings.mirror_listen) if settings.mirror_listen else None,
        )
    return settings, made


def key_warnings(settings: ServerSettings) -> list[str]:
    """What is odd about the keys of :func:`with_keys`, and no reason not to start."""
    found = []
    if settings.api_key_previous is not None and settings.api_key_previous == settings.api_key:
        found.append("api_key_previous: the same key as api_key, so no key is being changed; remove it")
    if settings.api_key_file is not None:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(Path(settings.api_key_file).stat().st_mode)
            if mode & 0o077:
                found.append(f"api_key_file: {settings.api_key_file} is open to others (mode {mode:04o}); wanted 0600")
    return found


_HOW = " (make one with: head -c 32 /dev/urandom | base64)"


def key_fault(key: str | None) -> str | None:
    """What is wrong with a system key, without showing it; None when it is good."""
    form = _form_fault(key)
    if form is not None:
        return form
    assert key is not None
    if len(key) < KEY_SHORTEST:
        return f"a key of {len(key)} characters"
    if _is_known_default(key):
        return "a known default, also when repeated or padded"
    if len(set(key)) < KEY_DISTINCT:
        return f"a key with only {len(set(key))} distinct characters"
    return None


def _form_fault(key: str | None) -> str | None:
    if not key:
        return "nothing"
    if not fits_a_header(key):
        return "a key with blanks or other characters that an HTTP header cannot carry"
    return None


def _is_known_default(key: str) -> bool:
    """Whether nothing but known words and padding make up the key, however it is spelt and separated."""
    squeezed = "".join(character for character in key.lower() if character.isalnum())
    words = {word.replace("-", "") for word in KNOWN_DEFAULT_KEYS}
    rest = re.sub("|".join(sorted(words, key=len, reverse=True)), "", squeezed)
    if rest == squeezed:
        return False
    # A word may stand in a key that is more than that; a row of digits or one repeated letter beside it is padding.
    letters = set(ROW_OF_LETTERS.sub("", rest)) & set(string.ascii_lowercase)
    return len(letters) < LETTERS_DISTINCT or any(word.startswith(rest) for word in words)


def split_listen(text: str) -> tuple[str, int]:
    """``host:port`` (``[::1]:3333`` for IPv6); ValueError says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError("host:port")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - an operator who names no host means all


def _on_loopback(listen: str) -> str:
    if not listen:
        return listen
    host, port = split_listen(listen)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return listen if loopback else f"127.0.0.1:{port}"


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.load(path.read_text("utf-8"), Loader=unique_keys(yaml)) or {}  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise rules.SettingsError([Fault(str(path), error.strerror or str(error), "a readable file")]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fault = yaml_fault(error)
        where = "" if fault.line is None else f"; line {fault.line}, column {fault.column}"
        found = f"no YAML ({fault.words}{where})"
        raise rules.SettingsError([Fault(str(path), found, "YAML: a map of settings")]) from None


def _listen_faults(loaded: rules.Loaded[ServerSettings]) -> list[Fault]:
    faults = []
    for name in LISTENS:
        value = getattr(loaded.settings, name)
        if not value and name != "listen":
            continue
        try:
            split_listen(value)
        except ValueError:
            faults.append(Fault(name, f"{value!r} ({loaded.origins[name]})", "host:port"))
    return faults


def _proxy_faults(loaded: rules.Loaded[ServerSettings]) -> list[Fault]:
    faults = []
    for number, text in enumerate(loaded.settings.trusted_proxies):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            faults.append(Fault(f"trusted_proxies.{number}", repr(text), "an address or a network"))
    return faults


def _database_faults(loaded: rules.Loaded[ServerSettings]) -> list[Fault]:
    url = loaded.settings.effective_database_url
    if url.startswith(("sqlite:///", "postgresql+psycopg://")):
        return []
    scheme = url.partition("://")[0] if "://" in url else "text without a scheme"
    return [Fault("database_url", scheme, "sqlite:///PATH or postgresql://USER@HOST/NAME")]
