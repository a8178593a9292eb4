"""Why a task ended: the full list of reasons, each with its class.

The class decides what follows: an infrastructure end with starts left goes back to ``pending``, the others
never do.
"""

from __future__ import annotations

from enum import Enum


class ReasonClass(str, Enum):
    PROGRAM = "program"
    OPERATOR = "operator"
    INFRASTRUCTURE = "infrastructure"


class Reason(str, Enum):
    # program
    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMEOUT = "timeout"
    OOM_KILLED = "oom_killed"
    HEALTH_FAILED = "health_failed"
    START_TIMEOUT = "start_timeout"
    IMAGE_INVALID = "image_invalid"
    IMAGE_NOT_FOUND = "image_not_found"
    IMAGE_NO_PLATFORM = "image_no_platform"
    REGISTRY_AUTH_FAILED = "registry_auth_failed"
    IMAGE_PULL_FAILED = "image_pull_failed"
    PULL_TIMEOUT = "pull_timeout"
    VOLUME_REJECTED = "volume_rejected"
    ENV_INVALID = "env_invalid"
    PROFILE_REJECTED = "profile_rejected"
    # operator
    STOPPED_BY_OPERATOR = "stopped_by_operator"
    # infrastructure
    DISK_FULL = "disk_full"
    SHM_TOO_SMALL = "shm_too_small"
    PORT_IN_USE = "port_in_use"
    GPU_UNAVAILABLE = "gpu_unavailable"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    NAME_CONFLICT = "name_conflict"
    START_FAILED = "start_failed"
    NEVER_STARTED = "never_started"
    LOST_CONTAINER = "lost_container"
    ENGINE_RESTARTED = "engine_restarted"
    HOST_RESTARTED = "host_restarted"
    NODE_LOST = "node_lost"
    END_UNKNOWN = "end_unknown"


_PROGRAM = (
    Reason.EXITED,
    Reason.SIGNALLED,
    Reason.TIMEOUT,
    Reason.OOM_KILLED,
    Reason.HEALTH_FAILED,
    Reason.START_TIMEOUT,
    Reason.IMAGE_INVALID,
    Reason.IMAGE_NOT_FOUND,
    Reason.IMAGE_NO_PLATFORM,
    Reason.REGISTRY_AUTH_FAILED,
    Reason.IMAGE_PULL_FAILED,
    Reason.PULL_TIMEOUT,
    Reason.VOLUME_REJECTED,
    Reason.ENV_INVALID,
    Reason.PROFILE_REJECTED,
)

CLASS_OF: dict[Reason, ReasonClass] = {
    reason: (
        ReasonClass.PROGRAM
        if reason in _PROGRAM
        else ReasonClass.OPERATOR
        if reason is Reason.STOPPED_BY_OPERATOR
        else ReasonClass.INFRASTRUCTURE
    )
    for reason in Reason
}

EXIT_TIMEOUT = 124
"""The exit code of a task that ran out of its ``timeout_s``, whatever its program returned."""
