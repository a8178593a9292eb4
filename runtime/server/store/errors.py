"""What keeps the control plane from starting or holding its state: one sentence and an exit code."""

from __future__ import annotations

EXIT_UNAVAILABLE = 69
EXIT_CANNOT_WRITE = 73
EXIT_CONFIGURATION = 78


class StoreError(Exception):
    """The state cannot be used as it is. ``exit_code`` is the process's: 69, 73 or 78."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
