"""Forms of flags, as tables: what is read, and what is not."""

from __future__ import annotations

from typing import Any

import click
import pytest

from runtime.cli.values import Duration, Form, HttpHealth, Pair, Port, Size, Volume


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        (Pair(), "a=b", ("a", "b")),
        (Pair(), "a=b=c", ("a", "b=c")),
        (Pair(), "a=", ("a", "")),
        (Volume(), "/d:/c", {"host": "/d", "container": "/c", "read_only": False}),
        (Volume(), "/d:/c:ro", {"host": "/d", "container": "/c", "read_only": True}),
        (Volume(), "/d:/c:rw", {"host": "/d", "container": "/c", "read_only": False}),
        (Port(), "8000", {"container": 8000}),
        (Port(), "18000:8000", {"container": 8000, "host": 18000}),
        (HttpHealth(), "8000", {"type": "http", "port": 8000}),
        (HttpHealth(), "8000/", {"type": "http", "port": 8000, "path": "/"}),
        (HttpHealth(), "8000/v1/health?x=1", {"type": "http", "port": 8000, "path": "/v1/health?x=1"}),
        (Duration(), "90", 90.0),
        (Duration(), "0.5s", 0.5),
        (Duration(), "10m", 600.0),
        (Duration(), "2h", 7200.0),
        (Duration(), "1d", 86400.0),
        (Duration(zero=True), "0", 0.0),
        (Size(), "512", 512),
        (Size(), "512m", 512),
        (Size(), "512MiB", 512),
        (Size(), "1.5g", 1536),
        (Size(), "8GB", 8192),
    ],
)
def test_forms(form: Form, text: str, value: Any) -> None:
    assert form.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Pair(), "a"),
        (Pair(), "=b"),
        (Volume(), "/d"),
        (Volume(), "d:/c"),
        (Volume(), "/d:c"),
        (Volume(), "/d:/c:z"),
        (Volume(), "/d:/c:ro:ro"),
        (Port(), "0"),
        (Port(), "65536"),
        (Port(), "08"),
        (Port(), ":80"),
        (Port(), "80:"),
        (Port(), "1:2:3"),
        (HttpHealth(), "/health"),
        (HttpHealth(), "http/x"),
        (Duration(), ""),
        (Duration(), "0"),
        (Duration(), "-5"),
        (Duration(), "5 m"),
        (Duration(), "nan"),
        (Size(), "0"),
        (Size(), "0.1m"),
        (Size(), "1t"),
        (Size(), "-1g"),
    ],
)
def test_what_is_none(form: Form, text: str) -> None:
    with pytest.raises(click.BadParameter, match="wanted"):
        form.convert(text, None, None)
