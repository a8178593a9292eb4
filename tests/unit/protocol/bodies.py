"""Every body of the contract, and values of them made at random, within the limits written beside the types."""

from __future__ import annotations

import dataclasses
import functools
import typing
from enum import Enum
from types import ModuleType
from typing import Any, Union

from hypothesis import strategies as st

from runtime.protocol import hardware, heartbeat, instructions, nodes, problems, tasks
from runtime.protocol.codec import wire_name

MODULES: tuple[ModuleType, ...] = (hardware, heartbeat, tasks, nodes, instructions, problems)

BODIES: tuple[type, ...] = tuple(
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
)

SAFE_INT = 2**53

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE_INT, SAFE_INT) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@functools.cache
def instances(cls: type) -> st.SearchStrategy[Any]:
    """Instances of a body; members with a default are sometimes left at it."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{field.name: values(hints[field.name]) for field in dataclasses.fields(cls)})


def values(hint: Any, keywords: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """Values of a type hint as the contract uses them."""
    keywords = keywords or {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        more = {key: value for extra in arguments[1:] for key, value in getattr(extra, "keywords", {}).items()}
        return values(arguments[0], {**keywords, **more})
    if origin is Union:
        return st.one_of(*(values(option, keywords) for option in arguments))
    if origin is list:
        return st.lists(values(arguments[0]), min_size=keywords.get("min_length", 0), max_size=2)
    if origin is dict:
        return st.dictionaries(st.text(max_size=6), values(arguments[1]), max_size=2)
    if hint is Any:
        return json_values
    if hint is type(None):
        return st.none()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint):
        return st.deferred(lambda: instances(typing.cast(type, hint)))
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(keywords.get("ge", -SAFE_INT), min(keywords.get("le", SAFE_INT), SAFE_INT))
    if hint is float:
        return st.floats(keywords.get("ge", -1e12), keywords.get("le", 1e12), allow_nan=False)
    if hint is str:
        return _texts(keywords)
    raise TypeError(f"no values for {hint!r}")


def _texts(keywords: dict[str, Any]) -> st.SearchStrategy[str]:
    shortest, longest = keywords.get("min_length", 0), keywords.get("max_length")
    if "pattern" not in keywords:
        return st.text(min_size=shortest, max_size=min(longest or 12, shortest + 12))
    # "$" of a pattern also stands before a final line break; a whole match does not.
    pattern = keywords["pattern"].removeprefix("^").removesuffix("$")
    texts = st.from_regex(pattern, fullmatch=True)
    return texts.filter(lambda text: shortest <= len(text) <= (longest or len(text)))


def with_strangers(cls: Any, data: Any) -> Any:
    """The JSON of a body with a member that nobody knows in every object of the contract inside it."""
    hints = typing.get_type_hints(cls)
    result = {"zz_unknown": {"a": [1]}}
    for field in dataclasses.fields(cls):
        key = wire_name(field)
        if key in data:
            result[key] = _strangers_inside(hints[field.name], data[key])
    return result


def _strangers_inside(hint: Any, data: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if data is None:
        return None
    if origin is Union:
        inner = [option for option in arguments if option is not type(None)]
        return _strangers_inside(inner[0], data) if len(inner) == 1 else data
    if origin is list and isinstance(data, list):
        return [_strangers_inside(arguments[0], item) for item in data]
    if dataclasses.is_dataclass(hint):
        return with_strangers(hint, data)
    return data
