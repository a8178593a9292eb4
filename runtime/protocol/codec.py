"""Between dataclasses and JSON objects, for both ends of the wire.

:func:`encode` writes what a dataclass holds. :func:`decode` reads an answer of a peer that is trusted to
speak the protocol but may be older or newer: unknown members are ignored, members with a default may be
absent, and what has the wrong shape raises WireError with its path. It checks shapes, not limits: bodies
that come from outside are validated by the server with the same dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from enum import Enum
from typing import Any, TypeVar, Union

T = TypeVar("T")


class WireError(ValueError):
    """A JSON value has another shape than the contract says."""

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(f"{path or 'body'}: found {found}, wanted {wanted}")
        self.path = path
        self.found = found
        self.wanted = wanted


def wire_name(field: dataclasses.Field[Any]) -> str:
    """The member's name in JSON (``class`` for ``gpu_class``)."""
    return str(field.metadata.get("alias", field.name))


@functools.cache
def _members(cls: Any) -> tuple[tuple[str, str, bool], ...]:
    """(attribute, wire name, required) of each field."""
    return tuple(
        (
            f.name,
            wire_name(f),
            f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING,
        )
        for f in dataclasses.fields(cls)
    )


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def encode(value: Any, *, drop_none: bool = False) -> Any:
    """The JSON value of ``value``.

    ``drop_none`` leaves members that are None out: in heartbeats and requests, where absent means not
    measured or not given. In the API's answers they are null.
    """
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        result = {}
        for name, key, _ in _members(type(value)):
            item = getattr(value, name)
            if item is not None:
                result[key] = encode(item, drop_none=drop_none)
            elif not drop_none:
                result[key] = None
        return result
    if isinstance(value, dict):
        return {key: encode(item, drop_none=drop_none) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item, drop_none=drop_none) for item in value]
    return value


def decode(cls: type[T], data: Any, path: str = "") -> T:
    """An instance of the dataclass ``cls`` from the JSON value ``data``; WireError names the path at fault."""
    if not isinstance(data, dict):
        raise WireError(path, type(data).__name__, "an object")
    shape: Any = cls
    hints = _hints(shape)
    arguments = {}
    for name, key, required in _members(shape):
        where = f"{path}.{key}" if path else key
        if key in data:
            arguments[name] = _decode_value(hints[name], data[key], where)
        elif required:
            raise WireError(where, "nothing", "a value")
    return cls(**arguments)


_SCALARS: dict[Any, tuple[Any, str]] = {
    str: (str, "a string"),
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
}


def _decode_value(hint: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return data
    if origin is typing.Annotated:
        return _decode_value(typing.get_args(hint)[0], data, path)
    if origin is Union:
        return _decode_union(typing.get_args(hint), data, path)
    if origin is list:
        if not isinstance(data, list):
            raise WireError(path, type(data).__name__, "a list")
        (item_hint,) = typing.get_args(hint)
        return [_decode_value(item_hint, item, f"{path}.{n}") for n, item in enumerate(data)]
    if origin is dict:
        if not isinstance(data, dict):
            raise WireError(path, type(data).__name__, "an object")
        _, item_hint = typing.get_args(hint)
        return {key: _decode_value(item_hint, item, f"{path}.{key}") for key, item in data.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            raise WireError(path, repr(data), "one of " + ", ".join(m.value for m in hint)) from None
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(type, hint), data, path)
    if hint in _SCALARS:
        kinds, wanted = _SCALARS[hint]
        if not isinstance(data, kinds) or (isinstance(data, bool) and hint is not bool):
            raise WireError(path, type(data).__name__, wanted)
        return data
    raise TypeError(f"the codec does not know the type {hint!r} at {path}")


def _decode_union(options: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    for option in rest[:-1]:
        try:
            return _decode_value(option, data, path)
        except WireError:
            continue
    return _decode_value(rest[-1], data, path)
