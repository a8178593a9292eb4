"""What keeps the control plane from starting or holding its state: one sentence and an exit code."""

from __future__ import annotations


class StoreError(Exception):
    """The state cannot be used as it is. ``exit_code`` is one of ``runtime.server.exit_codes``."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
