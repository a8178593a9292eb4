"""Why a connection failed, in the words of whoever knew first: HTTP libraries nest errors several layers deep."""

from __future__ import annotations

import ssl


def root_cause(error: BaseException) -> str:
    """The innermost reason of a library's nested errors, in one line."""
    seen: set[int] = set()
    cause: BaseException = error
    while id(cause) not in seen:
        seen.add(id(cause))
        inner = getattr(cause, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in cause.args if isinstance(arg, BaseException)), cause.__cause__)
        cause = inner if inner is not None else cause
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause).split("\n", 1)[0] or type(cause).__name__
