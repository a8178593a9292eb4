"""Image instructions: is it here, and fetch it. Shares nothing with a task's pull."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from runtime.agent.drivers.errors import DriverError, PullFailed, PullStalled
from runtime.agent.tasks.images import classify_pull_error, engine_line
from runtime.protocol.instructions import ImageRequest
from runtime.protocol.names import ImageReferenceError, parse_image_reference

if TYPE_CHECKING:
    from runtime.agent.drivers.images import DockerImages
    from runtime.agent.tasks.timers import Timers

ERROR_CHARS = 4000


class InstructionFailed(Exception):
    """It could not be done; the message is for the instruction's record."""


class ImageChannel:
    """Does image instructions in the caller's thread."""

    def __init__(self, images: DockerImages, timers: Timers, stall_s: float) -> None:
        self._images = images
        self._timers = timers
        self._stall_s = stall_s

    def do(self, request_id: str, request: ImageRequest) -> dict[str, Any]:
        """The result: ``{"present": bool, "images": [...]}``. Raises InstructionFailed."""
        try:
            parse_image_reference(request.image)
        except ImageReferenceError as error:
            raise InstructionFailed(f"image {request.image!r}: {error}") from None
        try:
            if request.op == "pull":
                self._pull(request_id, request)
            return self.now(request)
        except (PullFailed, PullStalled) as error:
            words = engine_line(error.text) if isinstance(error, PullFailed) else error.text
            raise InstructionFailed("\n".join((words, *error.tail))[-ERROR_CHARS:]) from None
        except DriverError as error:
            raise InstructionFailed(str(error)) from None

    def now(self, request: ImageRequest) -> dict[str, Any]:
        """What is on the engine now."""
        if request.match == "exact":
            present = self._images.present(request.image)
            return {"present": present, "images": [request.image] if present else []}
        found = [name for name in self._images.list() if same_repository(name, request.image)]
        return {"present": bool(found), "images": found}

    def _pull(self, request_id: str, request: ImageRequest) -> None:
        """Two tries at most, together within the request's time."""
        ends = time.monotonic() + request.timeout_s
        try:
            self._try(request_id, request, ends)
        except PullFailed as failed:
            if classify_pull_error(failed.text).permanent:
                raise
            self._try(request_id, request, ends)

    def _try(self, request_id: str, request: ImageRequest, ends: float) -> None:
        left = max(1.0, ends - time.monotonic())
        pull = self._images.pull(request.image, None, min(self._stall_s, left), left)
        name = ("instruction", request_id)

        def look() -> None:
            due = pull.overdue(time.monotonic())
            if due is None:
                pull.give_up()
            else:
                self._timers.at(name, due, look)

        self._timers.after(name, 0.0, look)
        try:
            pull.run()
        finally:
            self._timers.cancel(name)


def same_repository(name: str, wanted: str) -> bool:
    """Whether two references name the same repository, by whole path components, whatever tag or digest."""
    try:
        return parse_image_reference(name).pull_name == parse_image_reference(wanted).pull_name
    except ImageReferenceError:
        return False
