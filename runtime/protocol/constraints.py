"""Limits on values, written beside the type: ``Annotated[int, Within(1, 64)]``.

Plain objects of the standard library. The server's validator asks each for its schema keywords through the
hook method below (a dict in, a dict out), so limits are enforced and show up in the OpenAPI document without
a second definition.
"""

from __future__ import annotations

from typing import Any, Callable

from runtime.protocol.names import NODE_ID_PATTERN


class _Keywords:
    keywords: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        schema = handler(source)
        schema.update(self.keywords)
        if schema["type"] == "float":
            # A sender may write 1e999: no JSON can be made of what it is read as.
            schema["allow_inf_nan"] = False
        return schema


class Within(_Keywords):
    """A finite number from ``low`` to ``high``, both included; None leaves that side open."""

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.keywords = {key: limit for key, limit in (("ge", low), ("le", high)) if limit is not None}


class Text(_Keywords):
    """A string of ``shortest`` to ``longest`` characters that matches ``pattern`` as a whole."""

    def __init__(self, shortest: int = 0, longest: int | None = None, pattern: str | None = None) -> None:
        self.keywords = {"min_length": shortest}
        if longest is not None:
            self.keywords["max_length"] = longest
        if pattern is not None:
            self.keywords["pattern"] = f"^(?:{pattern})$"


class Items(_Keywords):
    """A list of ``fewest`` to ``most`` items."""

    def __init__(self, fewest: int = 0, most: int | None = None) -> None:
        self.keywords = {"min_length": fewest}
        if most is not None:
            self.keywords["max_length"] = most


NodeId = Text(1, 63, NODE_ID_PATTERN)
Token = Text(1, 128, r"[!-~]+")
"""A claim token, an instance id: opaque, made by machines, and what a header can carry."""
