"""What an engine's words about an image or a start mean: try again or not, and for which reason. Pure.

The texts come from Docker Engine 20.10 to 28, registries and container runtimes; they are matched without
regard to case, first match wins. The task's record always gets the engine's own line, whatever we make of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from runtime.protocol.reasons import Reason

PERMANENT = "permanent"
RETRYABLE = "retryable"


@dataclass(frozen=True)
class Verdict:
    """``kind`` is permanent or retryable; ``word`` names the cause finer than the reason does (network,
    ratelimit, denied...); ``wait_s`` is a wait that the registry asked for."""

    kind: str
    reason: Reason
    word: str
    wait_s: Optional[float] = None

    @property
    def permanent(self) -> bool:
        return self.kind == PERMANENT


_RULES: tuple[tuple[str, str, Reason, str], ...] = (
    # What the machine lacks. The kernel says the same of other things than disks: control groups, watches, keys.
    (r"(cgroup|cpuset|inotify|fsnotify)[^\n]*no space left on device|"
     r"(session key|keyring)[^\n]*disk quota exceeded", PERMANENT, Reason.START_FAILED, "kernel"),
    (r"no space left on device|disk quota exceeded|\benospc\b|\bedquot\b|not enough (disk )?space|"
     r"insufficient (disk |storage )?space|out of (disk )?space|disk is full|"
     r"free data blocks which is less than minimum required", PERMANENT, Reason.DISK_FULL, "disk"),
    (r"cannot connect to the docker daemon|is the docker daemon running|docker does not answer|dial unix .*docker|"
     r"containerd.*(connection refused|unavailable)", RETRYABLE, Reason.ENGINE_UNAVAILABLE, "daemon"),
    # What the registry asks us to wait for.
    (r"toomanyrequests|too many requests|rate limit", RETRYABLE, Reason.IMAGE_PULL_FAILED, "ratelimit"),
    # Cards, devices and the runtime that hands them out.
    (r"could not select device driver|unknown or invalid runtime name|unknown runtime", PERMANENT,
     Reason.GPU_UNAVAILABLE, "runtime"),
    (r"nvml error|driver/library version mismatch|nvidia-container-cli|libnvidia-ml", PERMANENT,
     Reason.GPU_UNAVAILABLE, "driver"),
    (r"error gathering device information|no such device|unresolvable cdi devices", PERMANENT,
     Reason.GPU_UNAVAILABLE, "device"),
    # What the create or start call met on the node.
    (r"port is already allocated|address already in use|failed to bind port|bind for .* failed", PERMANENT,
     Reason.PORT_IN_USE, "port"),
    (r"container name .* is already in use", PERMANENT, Reason.NAME_CONFLICT, "conflict"),
    (r"bind source path does not exist|invalid mount config|invalid volume specification|mount denied|"
     r"error mounting|mounts denied", PERMANENT, Reason.VOLUME_REJECTED, "mount"),
    # The image and this machine do not fit.
    (r"no matching manifest|does not match the (specified|expected|detected) platform|"
     r"no match for platform|exec format error|cannot be used on this platform", PERMANENT, Reason.IMAGE_NO_PLATFORM,
     "platform"),
    (r"invalid reference format|invalid tag|must be lowercase|not a valid repository/tag", PERMANENT,
     Reason.IMAGE_INVALID, "reference"),
    # Who may read it. Refused access is said the same way for what does not exist.
    (r"server gave http response to https client", PERMANENT, Reason.IMAGE_PULL_FAILED, "insecure"),
    (r"x509:|certificate (is not|has expired|signed by)|tls: (failed|bad)", PERMANENT, Reason.IMAGE_PULL_FAILED,
     "certificate"),
    (r"no basic auth credentials|unauthorized|authentication required|incorrect username or password", PERMANENT,
     Reason.REGISTRY_AUTH_FAILED, "unauthorized"),
    (r"denied", PERMANENT, Reason.REGISTRY_AUTH_FAILED, "denied"),
    (r"manifest unknown|manifest for .* not found|name unknown|repository .* not found|no such image|"
     r"not found: (manifest|name)|failed to resolve reference .* not found", PERMANENT, Reason.IMAGE_NOT_FOUND,
     "manifest"),
    # The way there.
    (r"tls handshake timeout|i/o timeout|connection (refused|reset|timed out)|no route to host|network is unreachable|"
     r"no such host|temporary failure in name resolution|unexpected eof|\beof\b|broken pipe|server misbehaving",
     RETRYABLE, Reason.IMAGE_PULL_FAILED, "network"),
    (r"context deadline exceeded|client\.timeout exceeded|request canceled|timeout|timed out", RETRYABLE,
     Reason.IMAGE_PULL_FAILED, "timeout"),
    (r"\b(408|429|500|502|503|504)\b|internal server error|bad gateway|service unavailable|gateway time-?out|"
     r"received unexpected http status: 5", RETRYABLE, Reason.IMAGE_PULL_FAILED, "server"),
)  # fmt: skip
_COMPILED = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), kind, reason, word) for pattern, kind, reason, word in _RULES
)
_WAIT = re.compile(r"retry[- ]after[:= ]+\"?(\d+(?:\.\d+)?)\s*(ms|s|m)?", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}

_PROGRAM_MISSING = re.compile(
    r"executable file not found|no such file or directory|permission denied|is a directory|not a directory|"
    r"exec: .*: stat|chdir to cwd",
    re.IGNORECASE,
)


def read_engine_text(text: str) -> Optional[Verdict]:
    """The first rule that the text meets, None when it meets none."""
    for pattern, kind, reason, word in _COMPILED:
        if pattern.search(text):
            return Verdict(kind, reason, word, _stated_wait(text) if word == "ratelimit" else None)
    return None


def classify_pull_error(text: str) -> Verdict:
    """Whether a failed pull is worth another try. What nobody knows is tried again within the budget."""
    return read_engine_text(text) or Verdict(RETRYABLE, Reason.IMAGE_PULL_FAILED, "unknown")


def classify_start_error(text: str) -> Verdict:
    """Why the engine could not create or start a container.

    A program that is missing or cannot be run is a start failure, not the node's fault in any finer sense;
    so is every text that no rule knows.
    """
    verdict = read_engine_text(text)
    if verdict is not None and verdict.word not in ("denied", "timeout", "network", "server", "unauthorized"):
        return verdict
    word = "program" if _PROGRAM_MISSING.search(text) else "unknown"
    return Verdict(PERMANENT, Reason.START_FAILED, word)


def engine_line(text: str) -> str:
    """The line that says it: without the engine's prefixes, one line, at most 1,000 characters."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    for prefix in ("docker: ", "Error response from daemon: "):
        if line.startswith(prefix):
            line = line[len(prefix) :]
    return line if len(line) <= 1000 else line[:997] + "..."


def _stated_wait(text: str) -> Optional[float]:
    found = _WAIT.search(text)
    return float(found.group(1)) * _UNITS[(found.group(2) or "s").lower()] if found else None
