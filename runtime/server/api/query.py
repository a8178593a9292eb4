"""Query parameters, each read and checked in one way. All raise Problem bad_parameter."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import flask

from runtime.protocol.names import is_node_id
from runtime.protocol.problems import Problem

E = TypeVar("E", bound=Enum)


def number(name: str, default: int, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``."""
    given = flask.request.args.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > 20 or not low <= int(given) <= high:
        raise bad(name, given, f"a whole number from {low} to {high}")
    return int(given)


def flag(name: str) -> bool:
    """``true``, ``1`` or an empty value; absent is false."""
    given = flask.request.args.get(name)
    if given is None or given in ("false", "0"):
        return False
    if given in ("true", "1", ""):
        return True
    raise bad(name, given, "true or false")


def text(name: str) -> str | None:
    """A node or task id, or any other word that has their grammar."""
    given = flask.request.args.get(name)
    if given is not None and not is_node_id(given):
        raise bad(name, given, "1 to 63 lower-case letters, digits and '-', not at the ends")
    return given


def choice(name: str, values: type[E]) -> E | None:
    """One word of an enumeration."""
    given = flask.request.args.get(name)
    return _member(name, given, values) if given is not None else None


def choices(name: str, values: type[E]) -> list[E] | None:
    """A comma list of words of an enumeration; None when the parameter is absent."""
    given = flask.request.args.get(name)
    if given is None:
        return None
    return [_member(name, word, values) for word in given.split(",")]


def _member(name: str, word: str, values: type[E]) -> E:
    try:
        return values(word)
    except ValueError:
        raise bad(name, word, "one of " + ", ".join(str(member.value) for member in values)) from None


def bad(name: str, given: str, wanted: str) -> Problem:
    return Problem("bad_parameter", f"Query parameter {name}: found {given[:80]!r}, wanted {wanted}.", parameter=name)
