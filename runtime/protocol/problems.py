"""Errors on the wire: RFC 9457 problem documents, and the full list of our codes.

Every refusal of the server is one of these. ``detail`` is a sentence for a person: what was found, what is
wanted, what to do. Members beyond the fixed ones depend on the code (``errors``, ``task_status``, ``holder``...).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, Optional

MEDIA_TYPE = "application/problem+json"

CODES: dict[str, tuple[int, ...]] = {
    "malformed_json": (400,),
    "bad_parameter": (400,),
    "node_scope_required": (400,),
    "unknown_arch": (400,),
    "bad_api_key": (401,),
    "bad_token": (401,),
    "agent_key_not_allowed": (403,),
    "operator_token_not_allowed": (403,),
    "role_not_allowed": (403,),
    "node_scope_mismatch": (403,),
    "instance_mismatch": (403,),
    "task_not_found": (404,),
    "node_not_found": (404,),
    "gpu_not_found": (404,),
    "request_not_found": (404,),
    "agent_build_missing": (404,),
    "route_not_found": (404,),
    "method_not_allowed": (405,),
    "state_conflict": (409,),
    "illegal_transition": (409, 422),  # 409: forbidden now; 422: never allowed
    "task_exists": (409,),
    "log_offset": (409,),
    "node_id_in_use": (409,),
    "instance_cloned": (409,),
    "stale_run": (409,),
    "card_in_use": (409,),
    "cards_not_allocated": (409,),
    "not_running": (409,),
    "node_online": (409,),
    "node_has_tasks": (409,),
    "body_too_large": (413,),
    "unsupported_media_type": (415,),
    "invalid_task": (422,),
    "invalid_heartbeat": (422,),
    "invalid_node_id": (422,),
    "vendor_required": (422,),
    "too_many_requests": (429,),
    "overloaded": (503,),
    "database_busy": (503,),
    "database_rolled_back": (503,),
    "starting": (503,),
}
"""Problem code -> the HTTP statuses it may come with."""

TITLES: dict[str, str] = {code: code.replace("_", " ").capitalize() for code in CODES}


class Problem(Exception):
    """A refusal with a code of the table above; raise it anywhere behind a request.

    ``status`` may be left out where the code has one status only. ``members`` are the extra members of the
    document, ``retry_after`` the seconds of a Retry-After header.
    """

    def __init__(
        self, code: str, detail: str, *, status: int | None = None, retry_after: int | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status if status is not None else CODES[code][0]
        if self.status not in CODES[code]:
            raise ValueError(f"{code} comes with {CODES[code]}, not {self.status}")
        self.retry_after = retry_after
        self.members = members

    def document(self, control_plane_id: str | None) -> dict[str, Any]:
        """The JSON object that crosses the wire."""
        return {
            "type": f"urn:heterofleet:problem:{self.code}",
            "title": TITLES[self.code],
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "control_plane_id": control_plane_id,
            **self.members,
        }


@dataclass(frozen=True)
class ProblemDocument:
    """A problem as read by a client. ``members`` holds what is beyond the fixed members."""

    status: int
    code: str
    detail: str
    title: str = ""
    type: str = ""
    control_plane_id: Optional[str] = None
    members: dict[str, Any] = field(default_factory=dict)


_FIXED_MEMBERS = frozenset(f.name for f in fields(ProblemDocument)) - {"members"}


def read_problem(status: int, content: bytes) -> Optional[ProblemDocument]:
    """The document in an answer's body; None when it is none of ours. ``status`` is that of the answer."""
    try:
        data = json.loads(content)
    except ValueError:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("code"), str):
        return None
    return ProblemDocument(
        status=status,
        code=data["code"],
        detail=str(data.get("detail", "")),
        title=str(data.get("title", "")),
        type=str(data.get("type", "")),
        control_plane_id=data.get("control_plane_id"),
        members={name: value for name, value in data.items() if name not in _FIXED_MEMBERS},
    )


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a body (``errors`` of invalid_task and its like).

    ``path`` is dotted (``volumes.0.host``), ``found`` what was there in short and never a secret, ``wanted``
    what would be right.
    """

    path: str
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}, wanted {self.wanted}"


def nearest_name(name: str, known: Collection[str]) -> Optional[str]:
    """The one of ``known`` that was probably meant; None when none is near."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)


def wanted_name(name: str, known: Collection[str]) -> str:
    """What would be right in place of an unknown name: the nearest of ``known``, else all of them."""
    nearest = nearest_name(name, known)
    return f"a known one; the nearest is {nearest}" if nearest else "a known one: " + ", ".join(known)
