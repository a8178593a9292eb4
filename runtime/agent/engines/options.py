"""What a task may ask of an engine (``profile``), in one set of words for all engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.protocol.problems import wanted_name

_NUMBERS = {"tensor_parallel": (1, 1024), "max_model_len": (1, 10**9), "port": (1, 65535)}
_ARGS_LIMIT = 200


class OptionRefused(ValueError):
    """The profile asks for what cannot be; the message says what would be right."""


@dataclass(frozen=True)
class Program:
    """A container's program; ``entrypoint`` None: the image's own."""

    entrypoint: Optional[list[str]]
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """``profile`` of a task. ``memory_fraction`` is of each card; ``args`` are handed on as they are."""

    served_model_name: Optional[str] = None
    tensor_parallel: Optional[int] = None
    max_model_len: Optional[int] = None
    memory_fraction: Optional[float] = None
    port: Optional[int] = None
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """``model`` is the path in the container; ``cards`` how many of them it gets."""

    model: str
    name: str
    port: int
    cards: int = 0
    options: Options = Options()

    @property
    def args(self) -> tuple[str, ...]:
        return self.options.args

    @property
    def world(self) -> int:
        """Over how many cards the model is spread."""
        return self.options.tensor_parallel or max(self.cards, 1)

    def settings(self, engine: str, flags: Mapping[str, str]) -> dict[str, str]:
        """Option -> value, for an engine with these flags. Raises OptionRefused."""
        asked = self.options
        for option in ("served_model_name", "tensor_parallel", "max_model_len", "memory_fraction"):
            if getattr(asked, option) is not None and option not in flags:
                raise OptionRefused(f"profile.{option}: {engine} has no such option")
        said = {
            "served_model_name": asked.served_model_name or self.name,
            "host": "0.0.0.0",  # noqa: S104 (inside the container; what is published is the task's)
            "port": str(self.port),
            "tensor_parallel": str(self.world) if self.world > 1 else None,
            "max_model_len": None if asked.max_model_len is None else str(asked.max_model_len),
            "memory_fraction": None if asked.memory_fraction is None else f"{asked.memory_fraction:g}",
        }
        return {option: value for option, value in said.items() if value is not None and option in flags}


def read_options(profile: Mapping[str, Any]) -> Options:
    """``profile`` of a task, checked. Raises OptionRefused."""
    known = Options.__dataclass_fields__
    for name, value in profile.items():
        wanted = _wanted(name, value) if name in known else wanted_name(name, known)
        if wanted is not None:
            raise OptionRefused(f"profile.{name}: found {str(value)[:80]!r}, wanted {wanted}")
    said: dict[str, Any] = {name: tuple(value) if name == "args" else value for name, value in profile.items()}
    return Options(**said)


def _wanted(name: str, value: Any) -> Optional[str]:
    """What would be right, when ``value`` is not."""
    if name in _NUMBERS:
        low, high = _NUMBERS[name]
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if fits else f"a number from {low} to {high}"
    if name == "memory_fraction":
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
        return None if fits else "a number above 0, at most 1"
    if name == "args":
        fits = isinstance(value, list) and len(value) <= _ARGS_LIMIT and all(isinstance(word, str) for word in value)
        return None if fits else f"a list of at most {_ARGS_LIMIT} words"
    return None if isinstance(value, str) and 0 < len(value) <= 200 else "1 to 200 characters"
