"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(what: str, probe: Callable[[], Any], timeout: float = 40) -> Any:
    """The first true value of ``probe``; AssertionError after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < end, f"not within {timeout:g} s: {what}"
        time.sleep(0.05)
