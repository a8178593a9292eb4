"""The body of ``POST /api/v1/tasks`` from a file and flags. Flags win; lists and maps are joined.

Limits are the server's to check: it knows them, and says every fault at once. Nothing here prints a value of
an environment variable or a credential.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Optional, Union

import yaml

from runtime.cli.errors import CliError, ExitCode
from runtime.protocol.causes import root_cause
from runtime.protocol.names import ImageReferenceError, is_env_name, new_task_id, parse_image_reference
from runtime.protocol.tasks import HIDDEN
from runtime.protocol.yaml_faults import unique_keys, yaml_fault

Spec = dict[str, Any]
_DOCKER_HUB_KEYS = ("docker.io", "https://index.docker.io/v1/", "index.docker.io")


def read_spec(stream: IO[str], name: str) -> Spec:
    """A task from YAML or JSON. Raises CliError (usage) when it is not a mapping."""
    try:
        spec = yaml.load(stream, Loader=unique_keys(yaml))  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fault = yaml_fault(error)
        raise usage(f"{name}{fault.place} is neither YAML nor JSON: {fault.words}") from None
    if not isinstance(spec, dict) or not all(isinstance(key, str) for key in spec):
        raise usage(f"{name} holds {type(spec).__name__}, wanted a mapping with the task's members")
    return spec


def parse_env(text: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """``K=V``, or ``K`` alone: its value comes from this command's own environment."""
    name, equals, value = text.partition("=")
    if not is_env_name(name):
        raise usage(f"environment variable {name!r}: wanted a name of letters, digits and '_', then =VALUE")
    if equals:
        return name, value
    if name not in environ:
        raise usage(f"environment variable {name!r} has no value here; give {name}=VALUE, or export it first")
    return name, environ[name]


def read_env_file(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Docker's form: a ``K=V`` or ``K`` a line, ``#`` comments, no quoting. Raises CliError (usage)."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"cannot read the env file {path}: {root_cause(error)}") from None
    env = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                name, value = parse_env(line.lstrip(), environ)
            except CliError as error:
                # A line without '=' may be a piece of a secret that was torn over two lines.
                what = error.message if "=" in line else "found a line without '=', wanted NAME=VALUE"
                if "=" not in line and is_env_name(line.strip()):
                    what = f"{line.strip()} is not set in this command's environment"
                raise usage(f"{path}, line {number}: {what}") from None
            env[name] = value
    return env


def read_registry_auth(path: Path, image: Optional[str]) -> dict[str, str]:
    """``{server, username, password}`` from such a file, or Docker's config.json by the image's registry."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"cannot read the registry file {path}: {root_cause(error)}") from None
    except yaml.YAMLError:
        raise usage(f"the registry file {path} is neither JSON nor YAML") from None
    if isinstance(document, dict) and isinstance(document.get("auths"), dict):
        return _from_docker_config(path, document["auths"], image)
    wanted = ("server", "username", "password")
    if not isinstance(document, dict) or not all(isinstance(document.get(key), str) for key in wanted):
        raise usage(f"the registry file {path} does not hold server, username and password as text")
    return {key: document[key] for key in wanted}


def _from_docker_config(path: Path, auths: Mapping[str, Any], image: Optional[str]) -> dict[str, str]:
    if image is None:
        raise usage(f"{path} is a Docker configuration; which login is meant follows from --image, which is missing")
    try:
        registry = parse_image_reference(image).registry
    except ImageReferenceError as error:
        raise usage(f"image {image!r}: {error}") from None
    keys = _DOCKER_HUB_KEYS if registry == "docker.io" else (registry, f"https://{registry}", f"http://{registry}")
    for key in keys:
        entry = auths.get(key)
        if isinstance(entry, dict) and isinstance(entry.get("auth"), str) and entry["auth"]:
            try:
                username, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                username, colon, password = "", "", ""
            if not colon:
                raise usage(f"the login for {registry} in {path} is not base64 of user:password")
            return {"server": registry, "username": username, "password": password}
    raise usage(
        f"{path} holds no login for {registry} (a credential helper may keep it); write server, username and "
        "password into a file of mode 0600"
    )


def build(
    base: Spec,
    *,
    members: Mapping[str, Any],
    env: Mapping[str, str],
    labels: Mapping[str, str],
    volumes: Iterable[Mapping[str, Any]],
    ports: Iterable[Mapping[str, Any]],
    gpus: Mapping[str, Any],
) -> Spec:
    """``base`` with what the flags say. An id is made where none is given: with it the request may be repeated."""
    spec = dict(base)
    spec.update({key: value for key, value in members.items() if value is not None})
    if env:
        spec["env"] = _joined_env(spec.get("env"), env)
    for key, more in (("labels", dict(labels)), ("gpus", {k: v for k, v in gpus.items() if v is not None})):
        if more:
            spec[key] = {**_mapping(spec.get(key), key), **more}
    for key, items in (("volumes", list(volumes)), ("ports", list(ports))):
        if items:
            spec[key] = [*_items(spec.get(key), key), *items]
    if "name" not in spec:
        spec["name"] = _name_from(spec.get("image"), spec.get("model"))
    spec.setdefault("id", new_task_id())
    return spec


def without_secrets(spec: Spec) -> Spec:
    """The body as it may be shown: values of env and the registry's password hidden."""
    shown = dict(spec)
    env = shown.get("env")
    if isinstance(env, dict):
        shown["env"] = dict.fromkeys(env, HIDDEN)
    elif isinstance(env, list):
        shown["env"] = [f"{str(item).partition('=')[0]}={HIDDEN}" for item in env]
    if isinstance(shown.get("registry_auth"), dict):
        shown["registry_auth"] = {**shown["registry_auth"], "password": HIDDEN}
    return shown


def usage(message: str) -> CliError:
    return CliError(message, ExitCode.USAGE)


def _joined_env(base: Any, more: Mapping[str, str]) -> Union[dict[str, str], list[str]]:
    if isinstance(base, list):
        kept = [item for item in base if str(item).partition("=")[0] not in more]
        return [*kept, *(f"{name}={value}" for name, value in more.items())]
    return {**_mapping(base, "env"), **more}


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise usage(f"{name} in the file is {type(value).__name__}, wanted a mapping to add flags to")
    return value or {}


def _items(value: Any, name: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise usage(f"{name} in the file is {type(value).__name__}, wanted a list to add flags to")
    return value or []


def _name_from(image: Any, model: Any) -> str:
    """A name for people where none was given: the last word of the image or the model."""
    for source in (image, model):
        if isinstance(source, str) and source:
            word = source.partition("@")[0].rstrip("/").rpartition("/")[2].partition(":")[0]
            if word:
                return word
    return "task"


def as_json(spec: Spec) -> str:
    return json.dumps(spec, indent=2, ensure_ascii=False)
