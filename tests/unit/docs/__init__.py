"""The docs held against the code: settings as they are documented."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

COMPUTED = {"workers": "cores, 2 to 16"}
"""Defaults that depend on the machine, in words."""


def leaves(cls: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, default) of every setting of a settings dataclass, in its order."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], f"{prefix}{field.name}.")
        elif field.name in COMPUTED:
            yield prefix + field.name, COMPUTED[field.name]
        else:
            yield prefix + field.name, getattr(cls(), field.name)


def default_text(value: Any) -> str:
    """A default as the docs write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if value in COMPUTED.values() else f"`{value}`"
    if isinstance(value, (int, float)):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value) or "`[]`"
    return "`{}`" if value == {} else f"`{value}`"
