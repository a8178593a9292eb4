"""What of a task is secret on the node: what is written down without it, and what is masked. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from runtime.protocol.codec import encode
from runtime.protocol.tasks import TaskSpec

SHORTEST_VALUE = 8
"""Values of variables below this length (``true``, ``4``, ``debug``) are words of ordinary sentences. They are never
logged either, but they are not looked for in what others say."""


def without_secrets(spec: TaskSpec) -> TaskSpec:
    """The specification without env values and registry credentials, for the disk."""
    return dataclasses.replace(spec, env=None, registry_auth=None)


def secrets_of(spec: TaskSpec) -> list[str]:
    """The values to mask wherever they turn up.

    A value of a variable that the specification also shows openly (a path of a volume, the image) is no secret,
    and masking it would take the facts out of a refusal.
    """
    found = [spec.registry_auth.password] if spec.registry_auth is not None else []
    open_texts = list(_texts(encode(without_secrets(spec))))
    for value in _values(spec):
        if len(value) >= SHORTEST_VALUE and not any(value in text for text in open_texts):
            found.append(value)
    return found


def _values(spec: TaskSpec) -> Iterator[str]:
    if isinstance(spec.env, dict):
        yield from spec.env.values()
    else:
        yield from (item.partition("=")[2] for item in spec.env or ())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
