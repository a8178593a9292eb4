"""How a call to the server can fail: refused for good, or no usable answer.

The difference decides what the caller may conclude. After :class:`Refused` the server has decided and nothing
was changed. After :class:`Unavailable` the outcome is unknown: the change may have been stored, so the caller
repeats the call with the same token.
"""

from __future__ import annotations

from typing import Optional

from runtime.protocol.problems import ProblemDocument


class LinkError(Exception):
    """A call to the server that brought no success. ``foreseen``: loops log it without a traceback."""

    foreseen = True


class Refused(LinkError):
    """A final answer: 4xx other than 408 and 429, with its problem document.

    ``again_s``: the key was refused (401), and for so many seconds nothing is sent with it.
    """

    def __init__(self, problem: ProblemDocument, *, again_s: Optional[float] = None) -> None:
        super().__init__(f"{problem.code} ({problem.status}): {problem.detail}")
        self.problem = problem
        self.again_s = again_s

    @property
    def code(self) -> str:
        return self.problem.code


class Unavailable(LinkError):
    """No answer, or a temporary or unusable one.

    ``why`` is a sentence. ``answered`` tells whether an HTTP answer came (5xx, 408, 429, a redirect, a page that
    is not ours, a body that was cut). ``retry_after`` is what the server asked for, in seconds. ``problem`` is
    there when the temporary answer was a problem document (``overloaded``, ``database_rolled_back``...).
    """

    def __init__(
        self,
        why: str,
        *,
        answered: bool = False,
        retry_after: Optional[float] = None,
        problem: Optional[ProblemDocument] = None,
        status: Optional[int] = None,
    ) -> None:
        super().__init__(why)
        self.why = why
        self.answered = answered
        self.retry_after = retry_after
        self.problem = problem
        self.status = status

    @property
    def code(self) -> Optional[str]:
        return self.problem.code if self.problem is not None else None
