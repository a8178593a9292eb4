"""Where the control plane is and who asks: options over environment over ``~/.config/heterofleet/config.yaml``."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional

import yaml

from runtime.cli.errors import MASKER, CliError, ExitCode
from runtime.protocol.address import AddressError, parse_server_url
from runtime.protocol.build import this_build
from runtime.protocol.causes import root_cause
from runtime.protocol.constraints import Text, Within
from runtime.protocol.credentials import ca_bundle, fits_a_header, password_in
from runtime.protocol.settings import SECRET, Loaded, SettingsError, load, rank
from runtime.protocol.yaml_faults import unique_keys, yaml_fault

CONFIG = Path(".config/heterofleet/config.yaml")
"""Below the home folder."""


@dataclass(frozen=True)
class CliSettings:
    """``token`` wins over a ``token_file`` that is no nearer; ``timeout_s`` is the longest wait for one answer."""

    server_url: Optional[str] = None
    token: Optional[str] = field(default=None, repr=False, metadata=SECRET)
    token_file: Optional[str] = None
    ca_file: Optional[str] = None
    proxy: Optional[str] = field(default=None, repr=False, metadata=SECRET)
    allow_plain_http: bool = False
    output: Annotated[str, Text(pattern="table|json|yaml")] = "table"
    timeout_s: Annotated[float, Within(0.1, 3600)] = 30


@dataclass(frozen=True)
class Connection:
    """All that a client needs to know. ``server_url`` is checked and has no trailing slash."""

    server_url: str
    token: str = field(repr=False)
    ca_file: Optional[str]  # also the system's own list; None: that of the HTTP library
    proxy: Optional[str] = field(repr=False)
    timeout_s: float


def read_settings(overrides: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Loaded[CliSettings], list[str]]:
    """The merged settings and warnings for standard error. Raises CliError (usage) with every fault."""
    path = Path(environ.get("HOME") or Path.home()) / CONFIG
    document, warnings = None, []
    try:
        text = path.read_text("utf-8")
        document = yaml.load(text, Loader=unique_keys(yaml))  # noqa: S506 (a SafeLoader)
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {path}: {root_cause(error)}", ExitCode.USAGE) from None
    except yaml.YAMLError as error:
        fault = yaml_fault(error)
        raise CliError(f"{path}{fault.place} is not YAML: {fault.words}", ExitCode.USAGE) from None
    if isinstance(document, dict) and "token" in document:
        warnings.extend(_open_to_others(path))
    try:
        loaded = load(
            CliSettings,
            document=document,
            document_name=str(path),
            environ=environ,
            overrides=overrides,
            version=this_build().version,
        )
    except SettingsError as error:
        lines = [f"  {fault}" for fault in error.faults]
        raise CliError("\n".join(["settings of the command line are wrong:", *lines]), ExitCode.USAGE) from None
    return loaded, warnings + loaded.warnings


def connection(settings: CliSettings, origins: Mapping[str, str]) -> tuple[Connection, list[str]]:
    """Who to ask, as whom. Raises CliError: usage without an address, not authorised without a token."""
    if settings.server_url is None:
        raise CliError(
            "no control plane given; give --server URL, set HETEROFLEET_SERVER_URL, or write server_url into "
            f"~/{CONFIG}",
            ExitCode.USAGE,
        )
    try:
        url = parse_server_url(settings.server_url, allow_plain_http=settings.allow_plain_http).base
    except AddressError as error:
        raise CliError(f"server_url ({origins['server_url']}): {error}", ExitCode.USAGE) from None
    token, warnings = settings.token, []
    if settings.token_file and (token is None or rank(origins["token_file"]) > rank(origins["token"])):
        path = Path(settings.token_file).expanduser()
        try:
            token = path.read_text("utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"cannot read the token file {path}: {root_cause(error)}", ExitCode.USAGE) from None
        warnings.extend(_open_to_others(path))
    if not token:
        raise CliError(
            "no operator token given; give --token-file FILE or set HETEROFLEET_TOKEN. On the control plane's "
            "machine `heterofleet server token create --name NAME --role admin|viewer` makes one",
            ExitCode.NOT_AUTHORISED,
        )
    if not fits_a_header(token):
        raise CliError("the operator token is not one line of printable ASCII without blanks", ExitCode.USAGE)
    if settings.ca_file is not None and not Path(settings.ca_file).expanduser().is_file():
        raise CliError(
            f"ca_file ({origins['ca_file']}): found no file {settings.ca_file}, wanted CA certificates in PEM form",
            ExitCode.USAGE,
        )
    trust = ca_bundle(str(Path(settings.ca_file).expanduser()) if settings.ca_file is not None else None)
    MASKER.add_all([token, password_in(settings.proxy)])
    return Connection(url, token, trust, settings.proxy, settings.timeout_s), warnings


def _open_to_others(path: Path) -> list[str]:
    mode = stat.S_IMODE(path.stat().st_mode)
    return [f"{path} holds a token and others may read it (mode {mode:04o}); chmod 600 it"] if mode & 0o077 else []
