"""The environment that Ansible gets: this user's own, without what may be a secret, and with what holds it together.

ansible-runner keeps the environment of a run in clear, and every process below shows it to its user.
"""

from __future__ import annotations

import configparser
import re
import sys
from collections.abc import Mapping
from pathlib import Path

SECRET_NAME = re.compile(
    r"(?i)(^|[_.-]|(?<=[a-z]))"
    r"(key|token|password|passwd|passphrase|pass|pw|secret|credentials?|auth|cookie|bearer|login)(?=$|[_.-]|s$)"
)
PATH_NAME = re.compile(r"(?i)(_|-)(file|path|dir|sock|socket)$")
"""A name that ends so says where a secret is, and is none."""


def looks_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret itself."""
    return bool(SECRET_NAME.search(name)) and not PATH_NAME.search(name)


def has_login(value: str) -> bool:
    """Whether an address in it has a password."""
    return bool(re.search(r"://[^\s@]*:[^\s@]*@", value))


def secret_names(environ: Mapping[str, str]) -> list[str]:
    """The variables that Ansible must not get: secrets by their names, or an address with a password in it."""
    return [name for name, value in environ.items() if looks_secret(name) or has_login(value)]


def for_ansible(project: Path, folder: Path, sockets: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What is set beside the user's own: this project's roles and settings, this Python's programs, and every file
    that Ansible leaves inside ``folder``."""
    config = environ.get("ANSIBLE_CONFIG") or str(project / "ansible.cfg")
    return {
        "PATH": f"{Path(sys.executable).parent}:{environ.get('PATH', '/usr/bin:/bin')}",
        "ANSIBLE_CONFIG": config,
        "ANSIBLE_ROLES_PATH": str(project / "roles"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
        # ansible-runner would turn it off.
        "ANSIBLE_HOST_KEY_CHECKING": environ.get("ANSIBLE_HOST_KEY_CHECKING") or _host_keys(Path(config)),
        # A module's arguments, and secrets in them, are no file on the host.
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_STDOUT_CALLBACK": "default",
    }


def _host_keys(config: Path) -> str:
    """What the settings file says of unknown hosts; Ansible's own default is to refuse them."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(config)
    except (configparser.Error, UnicodeDecodeError):
        return "True"
    return parser.get("defaults", "host_key_checking", fallback="True")
