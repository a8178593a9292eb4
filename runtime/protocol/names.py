"""Names with a grammar: node ids, task ids, environment variables, image references."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from typing import Optional

NODE_ID_PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""The grammar of node ids and task ids (a DNS label)."""

_NODE_ID = re.compile(NODE_ID_PATTERN, re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_node_id(text: str) -> bool:
    """Whether ``text`` is a node id, letter for letter."""
    return _NODE_ID.fullmatch(text) is not None


is_task_id = is_node_id


def node_id_from_hostname(hostname: str) -> str:
    """The default node id: lower case, every run of other characters one ``-``, trimmed, at most 63.

    A hostname that leaves nothing gives ``node-<6 hex>``.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", hostname.lower()).strip("-")[:63].strip("-")
    return slug or f"node-{secrets.token_hex(3)}"


def is_env_name(text: str) -> bool:
    """POSIX environment variable name (IEEE Std 1003.1, 8.1, lower case allowed)."""
    return _ENV_NAME.fullmatch(text) is not None


_ULID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_task_id() -> str:
    """A ULID (48 bits of milliseconds, 80 random bits) in lower case, so that it is a task id too."""
    value = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    return "".join(_ULID_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


class ImageReferenceError(ValueError):
    """The reference is not one; the message names the part at fault."""


_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
    r"|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
)
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,}")


@dataclass(frozen=True)
class ImageReference:
    """An image reference in its parts; grammar of the distribution project's reference package.

    ``registry`` is ``docker.io`` and ``repository`` starts with ``library/`` where the text leaves them out.
    """

    registry: str
    repository: str
    tag: Optional[str]
    digest: Optional[str]

    @property
    def pull_name(self) -> str:
        """Registry and repository as one name, without tag and digest."""
        return f"{self.registry}/{self.repository}"


def parse_image_reference(text: str) -> ImageReference:
    """Split ``[registry/]repository[:tag][@digest]``; without tag and digest the tag is ``latest``.

    Raises ImageReferenceError. The tag's colon is looked for after the last slash only, so that a registry's
    port is never a tag; a first component is a registry when it has a dot, a colon, or is ``localhost``.
    """
    name, at, digest = text.partition("@")
    if at and (_DIGEST.fullmatch(digest) is None or (digest.startswith("sha256:") and len(digest) != 71)):
        raise ImageReferenceError(f"digest {digest!r} is not algorithm:hex (sha256 has 64 digits)")
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and _TAG.fullmatch(tag) is None:
        raise ImageReferenceError(f"tag {tag!r} is not 1 to 128 letters, digits, '_', '.' or '-'")
    path = f"{head}{slash}{last}"
    first, slash, rest = path.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, repository = first, rest
        if _HOST.fullmatch(registry) is None:
            raise ImageReferenceError(f"registry {registry!r} is not host[:port]")
    else:
        registry, repository = "docker.io", path if slash else f"library/{path}"
    if registry in ("docker.io", "index.docker.io") and "/" not in repository:
        repository = f"library/{repository}"
    for component in repository.split("/"):
        if _COMPONENT.fullmatch(component) is None:
            raise ImageReferenceError(
                f"repository component {component!r} is not lower-case letters and digits joined by '.', '_' or '-'"
            )
    if len(f"{registry}/{repository}") > 255:
        raise ImageReferenceError("the name is longer than 255 characters")
    return ImageReference(registry, repository, tag or (None if at else "latest"), digest or None)
