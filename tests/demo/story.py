"""What the demo runs, and how each task must end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from tests.lab import places, task_image

PRIVATE_IMAGE = f"{places.REGISTRY}/lab/private:1"


@dataclass(frozen=True)
class Scene:
    """One task: how it is submitted, and the end it must have.

    ``stop_when_running``: the operator stops it. ``stays``: it goes on running and must be ready.
    """

    name: str
    shows: str
    command: tuple[str, ...]
    status: str
    exit_code: Optional[int] = None
    reason: Optional[str] = None
    image: str = task_image.NAME
    options: tuple[str, ...] = field(default=())
    private: bool = False
    stop_when_running: bool = False
    stays: bool = False


SCENES: tuple[Scene, ...] = (
    Scene(
        "succeeds",
        "a job on one card that ends well",
        ("print", "training done", "sleep", "2", "exit", "0"),
        "completed",
        0,
        None,
        options=("--gpus", "1"),
    ),
    Scene("exits-3", "a program that ends with 3", ("print", "cannot read input", "exit", "3"), "failed", 3, "exited"),
    Scene(
        "runs-out-of-time",
        "a limit of 3 s, and a program that ignores SIGTERM",
        ("ignore-term", "forever"),
        "failed",
        124,
        "timeout",
        options=("--timeout", "3", "--stop-grace", "1"),
    ),
    Scene(
        "runs-out-of-memory",
        "a limit of 32 MiB",
        ("eat", "200"),
        "failed",
        137,
        "oom_killed",
        options=("--memory", "32"),
    ),
    Scene(
        "from-private-registry",
        "an image behind a login",
        ("print", "pulled with a password", "exit", "0"),
        "completed",
        0,
        None,
        image=PRIVATE_IMAGE,
        private=True,
    ),
    Scene(
        "service",
        "an HTTP service, ready once its probe says so",
        ("serve", "8000", "3", "forever"),
        "running",
        options=("--kind", "inference", "--port", "8000", "--health-http", "8000/health", "--gpus", "1"),
        stays=True,
    ),
    Scene(
        "stopped-by-operator",
        "stopped by hand; its program then ends with 0",
        ("on-term", "0", "forever"),
        "stopped",
        0,
        "stopped_by_operator",
        stop_when_running=True,
    ),
)
