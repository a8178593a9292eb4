"""The one validator: pydantic over the protocol's dataclasses.

Measured on a 5.5 KB heartbeat (8 cards, 8 tasks): json.loads 32 us, pydantic 34 us, msgspec 17 us; the
slower one was chosen because it reports every fault of a body with its path, where msgspec stops at the first.

Agent bodies ignore unknown members (an old server and a new agent understand each other). In operator bodies
an unknown member is a fault that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import typing
from typing import Any, TypeVar, Union

from pydantic import TypeAdapter, ValidationError

from runtime.protocol.codec import wire_name
from runtime.protocol.problems import Fault, Problem, wanted_name

T = TypeVar("T")

SECRET_MEMBERS = frozenset({"env", "registry_auth", "password"})
"""Members whose values never go into an error text."""


@functools.cache
def adapter(cls: Any) -> TypeAdapter[Any]:
    """The validator of one body, built once."""
    return TypeAdapter(cls)


def parse(cls: type[T], raw: bytes, *, code: str, forbid_unknown: bool = False) -> T:
    """The body ``raw`` as ``cls``. ``forbid_unknown`` is for operators' bodies: unknown members are faults, and
    so is a NUL in a text, which neither a container nor every database takes.

    Raises Problem malformed_json when it is not JSON, and Problem ``code`` with one Fault an error otherwise.
    """
    shape: Any = cls
    try:
        result: T = adapter(shape).validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Problem("malformed_json", f"The body is not JSON ({_reason(first)}); send one JSON object.") from None
        faults = _faults(error.errors(include_url=False))
        if forbid_unknown:
            told = {fault.path for fault in faults}
            faults.extend(fault for fault in _operator_faults(cls, raw) if fault.path not in told)
        raise refusal(code, faults) from None
    if b"NaN" in raw or b"Infinity" in raw:
        # The validator reads these words as numbers, where it is not told what to expect.
        json.loads(raw, parse_constant=_refuse_constant)
    if forbid_unknown:
        faults = _operator_faults(cls, raw)
        if faults:
            raise refusal(code, faults)
    return result


def _refuse_constant(word: str) -> None:
    raise Problem("malformed_json", f"The body is not JSON (it knows no number {word}); send one JSON object.")


def _reason(error: Any) -> str:
    return str(error["msg"]).removeprefix("Invalid JSON: ")


def refusal(code: str, faults: list[Fault]) -> Problem:
    """The problem that lists ``faults``; 422 where the code may come with several statuses."""
    text = "; ".join(map(str, faults[:5]))
    more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
    return Problem(code, f"{text}{more}.", errors=[dataclasses.asdict(fault) for fault in faults])


_FORMS = {"dict[str,str]": "an object of texts", "list[str]": "a list of texts"}
"""The branches of unions, as pydantic names them in a path; no member of ours has a bracket."""


def _faults(errors: list[Any]) -> list[Fault]:
    """One fault for each thing that is wrong. Of a union, every branch says what it lacks: only that one counts whose
    kind the value is, else all of them are one fault that wants any of the forms."""
    branches: dict[tuple[Any, ...], dict[str, bool]] = {}
    for error in errors:
        where, form, rest = _union_of(error)
        if form is not None:
            branches.setdefault(where, {})[form] = bool(rest)
    faults: list[Fault] = []
    for error in errors:
        where, form, rest = _union_of(error)
        fault = _fault(error)
        if form is None:
            faults.append(fault)
            continue
        forms = " or ".join(_FORMS.get(name, name) for name in branches[where])
        if rest:
            faults.append(dataclasses.replace(fault, wanted=f"{fault.wanted} ({where[-1]}: {forms})"))
        elif not any(branches[where].values()) and form == next(iter(branches[where])):
            faults.append(dataclasses.replace(fault, wanted=forms))
    return faults


def _union_of(error: Any) -> tuple[tuple[Any, ...], str | None, tuple[Any, ...]]:
    """(path of the union, the branch, path within it); no branch: the error lies in none."""
    loc: tuple[Any, ...] = error["loc"]
    for number, part in enumerate(loc):
        if "[" in str(part):
            return loc[:number], str(part), loc[number + 1 :]
    return loc, None, ()


def _fault(error: Any) -> Fault:
    parts = [str(part) for part in error["loc"] if "[" not in str(part)]
    path = ".".join(parts) or "body"
    if error["type"] == "missing":
        return Fault(path, "nothing", "a value (it is required)")
    hidden = not SECRET_MEMBERS.isdisjoint(parts)
    found = "a value that is not shown" if hidden else _short(error.get("input"))
    wanted = error["msg"].removeprefix("Input should ").removeprefix("have ").removeprefix("be ")
    return Fault(path, found, wanted)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _operator_faults(cls: Any, raw: bytes) -> list[Fault]:
    # These bodies are small, and the second parse is simpler than a second schema.
    data = json.loads(raw)
    return [*_walk(cls, data, ""), *_unstorable(data, "")]


def _unstorable(data: Any, path: str) -> typing.Iterator[Fault]:
    if isinstance(data, float) and not math.isfinite(data):
        yield Fault(path or "body", "a number too large to hold", "a smaller one")
    elif isinstance(data, str):
        if "\x00" in data:
            yield Fault(path or "body", "text with a NUL character", "text without it")
    elif isinstance(data, dict):
        for key, value in data.items():
            if "\x00" in key:
                yield Fault(path or "body", "a name with a NUL character", "a name without it")
            else:
                yield from _unstorable(value, f"{path}.{key}" if path else key)
    elif isinstance(data, list):
        for number, item in enumerate(data):
            yield from _unstorable(item, f"{path}.{number}" if path else str(number))


@functools.cache
def _members(cls: Any) -> dict[str, Any]:
    """Wire name -> type of each member."""
    hints = typing.get_type_hints(cls)
    return {wire_name(field): hints[field.name] for field in dataclasses.fields(cls)}


def _walk(hint: Any, data: Any, path: str) -> typing.Iterator[Fault]:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from _walk(typing.get_args(hint)[0], data, path)
    elif origin is Union:
        for option in typing.get_args(hint):
            if dataclasses.is_dataclass(option) or typing.get_origin(option) is list:
                yield from _walk(option, data, path)
    elif origin is list and isinstance(data, list):
        for number, item in enumerate(data):
            yield from _walk(typing.get_args(hint)[0], item, f"{path}.{number}")
    elif dataclasses.is_dataclass(hint) and isinstance(data, dict):
        known = _members(typing.cast(Any, hint))
        for key, value in data.items():
            where = f"{path}.{key}" if path else key
            if key in known:
                yield from _walk(known[key], value, where)
            else:
                yield Fault(where, "an unknown member", wanted_name(key, known))
