"""Settings of agent and server: one dataclass each, filled from file, environment and command line.

Environment over file, command line over both. ``HETEROFLEET_<NAME>``, nested with ``__``, lists and maps as
JSON. Every fault is reported with its path; an unknown setting is a fault that names the nearest known one,
or a warning when the file's ``written_for`` names a newer release than this one.

The caller parses the file (YAML is not in the standard library) and hands over the mapping.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Optional, TypeVar, Union

from runtime.protocol.build import release_of
from runtime.protocol.masking import MASK
from runtime.protocol.problems import Fault, nearest_name, wanted_name

S = TypeVar("S")

PREFIX = "HETEROFLEET_"
WRITTEN_FOR = "written_for"
AWAITS = "awaits"
"""Metadata of a setting whose feature this release does not have: ``field(metadata={AWAITS: "the mirror"})``.
Setting it is a warning, never silence."""

SECRET = {"secret": True}
"""Metadata of a field that is never printed: ``field(metadata=SECRET, repr=False)``."""


class SettingsError(Exception):
    """One or more settings are wrong; ``faults`` has them all."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """Settings with the origin of each (``default``, a file's name, a variable's name, ``command line``)."""

    settings: S
    origins: dict[str, str]
    warnings: list[str] = field(default_factory=list)


def rank(origin: str) -> int:
    """How near an origin is: default, file, variable, command line, in this order.

    Of two settings that stand for one thing (a key, and a file that holds it) the nearer one counts.
    """
    return {"default": 0, "command line": 3}.get(origin, 2 if origin.startswith(PREFIX) else 1)


def load(
    cls: type[S],
    *,
    document: Any = None,
    document_name: str = "file",
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    version: str = "dev",
) -> Loaded[S]:
    """Merge and check. ``document`` is the parsed file (None: no file); ``overrides`` hold dotted paths.

    Raises SettingsError with every fault found.
    """
    faults: list[Fault] = []
    warnings: list[str] = []
    known = _leaves(cls)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    if document is not None and not isinstance(document, dict):
        raise SettingsError([Fault(document_name, type(document).__name__, "a mapping of settings")])
    document = dict(document or {})
    newer = is_newer(document, version)
    document.pop(WRITTEN_FOR, None)
    for path, value in _flatten(document, known):
        if path in known:
            values[path], origins[path] = value, document_name
            continue
        if any(name.startswith(f"{path}.") for name in known):
            faults.append(Fault(path, f"{_short(value)} ({document_name})", "a map"))
            continue
        if newer:
            nearest = nearest_name(path, known)
            advice = f"; did you mean {nearest}?" if nearest else ""
            text = f"{path}: unknown setting in {document_name}{advice}"
            warnings.append(f"{text}; ignored, since the file was written for a newer release")
        else:
            faults.append(Fault(path, f"an unknown setting in {document_name}", wanted_name(path, known)))

    variables = {PREFIX + path.upper().replace(".", "__"): path for path in known}
    for variable, text in (environ or {}).items():
        if variable in variables:
            path = variables[variable]
            values[path], origins[path] = _from_text(known[path], text), variable
    warnings += _mistyped(environ or {}, variables)
    for path, value in (overrides or {}).items():
        if value is not None:
            values[path], origins[path] = value, "command line"

    for path, value in list(values.items()):
        secret = bool(known[path].metadata.get("secret"))
        problem = _check(known[path].hint, value)
        if problem:
            found = "a value that is not shown" if secret else _short(value)
            faults.append(Fault(path, f"{found} ({origins[path]})", problem))
        else:
            values[path] = _coerced(known[path].hint, value)
    if faults:
        raise SettingsError(faults)
    settings = _build(cls, "", values)
    warnings += [
        f"{path}: set in {origins[path]}, and does nothing: this release does not have {known[path].metadata[AWAITS]}"
        for path in values
        if AWAITS in known[path].metadata
    ]
    return Loaded(settings, {path: origins.get(path, "default") for path in known}, warnings)


def effective(loaded: Loaded[Any]) -> list[tuple[str, Any, str]]:
    """(path, value with secrets masked, origin) of every setting, in the order of the dataclass."""
    rows = []
    for path, leaf in _leaves(type(loaded.settings)).items():
        value: Any = loaded.settings
        for part in path.split("."):
            value = getattr(value, part)
        if leaf.metadata.get("secret") and value is not None:
            value = MASK
        rows.append((path, value, loaded.origins[path]))
    return rows


def _mistyped(environ: Mapping[str, str], variables: Mapping[str, str]) -> list[str]:
    """Variables that are nearly one of ours. A warning, not a fault: other programs share the prefix."""
    short = {name[len(PREFIX) :]: name for name in variables}
    return [
        f"{name}: no setting has this variable; did you mean {short[close[0]]}?"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in variables
        for close in [difflib.get_close_matches(name[len(PREFIX) :], short, n=1, cutoff=0.8)]
        if close
    ]


@dataclass(frozen=True)
class _Leaf:
    hint: Any
    metadata: Mapping[str, Any]


def _leaves(cls: type, prefix: str = "") -> dict[str, _Leaf]:
    hints = typing.get_type_hints(cls, include_extras=True)
    leaves: dict[str, _Leaf] = {}
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            leaves.update(_leaves(typing.cast(type, hint), f"{prefix}{f.name}."))
        else:
            leaves[prefix + f.name] = _Leaf(hint, f.metadata)
    return leaves


def _flatten(document: dict[Any, Any], known: dict[str, _Leaf], prefix: str = "") -> list[tuple[str, Any]]:
    groups = {path.rsplit(".", 1)[0] + "." for path in known if "." in path}
    pairs: list[tuple[str, Any]] = []
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path + "." in groups:
            pairs.extend(_flatten(value, known, path + "."))
        else:
            pairs.append((path, value))
    return pairs


def is_newer(document: Any, version: str) -> bool:
    """Whether the file was written for a later release than this one; where that is not known, it was not."""
    written_for = document.get(WRITTEN_FOR) if isinstance(document, dict) else None
    if not isinstance(written_for, str) or not re.search(r"\d", written_for):
        return False
    ours = release_of(version)
    return bool(ours) and release_of(written_for) > ours


def _bare(hint: Any) -> tuple[Any, dict[str, Any], bool]:
    """(type, schema keywords, may be None)."""
    keywords: dict[str, Any] = {}
    optional = False
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            hint, *extras = typing.get_args(hint)
            for extra in extras:
                keywords.update(getattr(extra, "keywords", {}))
        elif origin is Union and type(None) in typing.get_args(hint):
            optional = True
            hint = Union[tuple(a for a in typing.get_args(hint) if a is not type(None))]
        else:
            return hint, keywords, optional


def _from_text(leaf: _Leaf, text: str) -> Any:
    """A variable's text as the value it stands for; text that does not fit stays text, and is refused later."""
    hint, _, optional = _bare(leaf.hint)
    if optional and text == "":
        return None
    if typing.get_origin(hint) in (list, dict):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if hint is bool:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    return text


def _check(annotation: Any, value: Any) -> Optional[str]:
    """What would be right, when ``value`` is not."""
    hint, keywords, optional = _bare(annotation)
    if value is None:
        return None if optional else _wanted(hint)
    origin = typing.get_origin(hint)
    if origin is list:
        item = typing.get_args(hint)[0]
        fits = isinstance(value, list) and all(_check(item, part) is None for part in value)
    elif origin is dict:
        item = typing.get_args(hint)[1]
        fits = isinstance(value, dict) and all(
            isinstance(key, str) and _check(item, part) is None for key, part in value.items()
        )
    elif hint is Any:
        fits = True
    elif hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    elif hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, hint)
    if not fits:
        return _wanted(hint)
    low, high = keywords.get("ge"), keywords.get("le")
    if low is not None and value < low:
        return f"at least {low}"
    if high is not None and value > high:
        return f"at most {high}"
    pattern = keywords.get("pattern")
    if pattern is not None and re.fullmatch(pattern, value) is None:
        words = _ONE_OF.fullmatch(pattern)
        return words[1].replace("|", " or ") if words else f"text that matches {pattern}"
    return _check_length(keywords, value)


_ONE_OF = re.compile(r"\^\(\?:([\w-]+(?:\|[\w-]+)+)\)\$")
"""A pattern that is nothing but a choice of words."""


def _check_length(keywords: dict[str, Any], value: Any) -> Optional[str]:
    fewest, most = keywords.get("min_length", 0), keywords.get("max_length")
    unit = "characters" if isinstance(value, str) else "items"
    if fewest and len(value) < fewest:
        return f"at least {fewest} {unit}"
    if most is not None and len(value) > most:
        return f"at most {most} {unit}"
    return None


def _coerced(annotation: Any, value: Any) -> Any:
    hint, _, _ = _bare(annotation)
    return float(value) if hint is float and value is not None else value


def _wanted(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is list:
        return f"a list of {_wanted(_bare(typing.get_args(hint)[0])[0])}"
    if origin is dict:
        return f"a map of names to {_wanted(_bare(typing.get_args(hint)[1])[0])}"
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Any: "anything"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _build(cls: type[S], prefix: str, values: dict[str, Any]) -> S:
    hints = typing.get_type_hints(cls, include_extras=True)
    arguments: dict[str, Any] = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        path = prefix + f.name
        if dataclasses.is_dataclass(hints[f.name]):
            arguments[f.name] = _build(typing.cast(type, hints[f.name]), path + ".", values)
        elif path in values:
            arguments[f.name] = values[path]
    return cls(**arguments)
