"""Values of flags with a form of their own: ``8g``, ``10m``, ``8000/health``, ``HOST:CONT:ro``, ``K=V``."""

from __future__ import annotations

import re
from typing import Any, Optional

import click

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Form(click.ParamType[Any]):
    """A flag's value that is parsed here, so that the refusal can say what was wanted."""

    wanted = ""

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> Any:
        if not isinstance(value, str):
            return value
        parsed = self.parse(value)
        if parsed is None:
            self.fail(f"found {value!r}, wanted {self.wanted}", param, ctx)
        return parsed

    def parse(self, text: str) -> Any:
        """The value, or None when the text has another form."""
        raise NotImplementedError


class Pair(Form):
    """``K=V`` -> (K, V)."""

    name = "K=V"
    wanted = "NAME=VALUE"

    def parse(self, text: str) -> Optional[tuple[str, str]]:
        key, equals, value = text.partition("=")
        return (key, value) if equals and key else None


class Volume(Form):
    """``HOST:CONT[:ro|rw]`` -> a volume of the contract; writable unless it says ro."""

    name = "HOST:CONT[:ro]"
    wanted = "HOST:CONT or HOST:CONT:ro, both absolute paths"

    def parse(self, text: str) -> Optional[dict[str, Any]]:
        match = re.fullmatch(r"(/[^:]*):(/[^:]*)(?::(ro|rw))?", text)
        if match is None:
            return None
        return {"host": match[1], "container": match[2], "read_only": match[3] == "ro"}


class Port(Form):
    """``CONT`` or ``HOST:CONT`` -> a port mapping of the contract."""

    name = "[HOST:]CONT"
    wanted = "CONT or HOST:CONT, ports from 1 to 65535"

    def parse(self, text: str) -> Optional[dict[str, int]]:
        host, colon, container = text.rpartition(":")
        ports = [_port(container), _port(host)] if colon else [_port(container)]
        if any(port is None for port in ports):
            return None
        return {key: port for key, port in zip(("container", "host"), ports) if port is not None}


class HttpHealth(Form):
    """``PORT[/PATH]`` -> an http health probe of the contract."""

    name = "PORT/PATH"
    wanted = "PORT/PATH, for example 8000/health"

    def parse(self, text: str) -> Optional[dict[str, Any]]:
        number, slash, rest = text.partition("/")
        port = _port(number)
        if port is None:
            return None
        return {"type": "http", "port": port, **({"path": f"/{rest}"} if slash else {})}


class Duration(Form):
    """``90``, ``90s``, ``10m``, ``2h``, ``1d`` -> seconds."""

    name = "DURATION"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero
        self.wanted = "seconds, or a number with s, m, h or d" + ("" if zero else ", above 0")

    def parse(self, text: str) -> Optional[float]:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
        if match is None:
            return None
        seconds = float(match[1]) * _SECONDS[match[2]]
        return seconds if seconds > 0 or self._zero else None


class Size(Form):
    """``512``, ``512m``, ``8g`` -> MiB. A bare number is MiB, as everywhere in the contract."""

    name = "SIZE"
    wanted = "MiB, or a number with m (MiB) or g (GiB), for example 8g"

    def parse(self, text: str) -> Optional[int]:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:(m|g)(?:i?b)?)?", text.lower())
        size = int(float(match[1]) * (1024 if match[2] == "g" else 1)) if match else 0
        return size or None


def _port(text: str) -> Optional[int]:
    return int(text) if re.fullmatch(r"[1-9]\d{0,4}", text) and int(text) <= 65535 else None
