"""Which tasks the node gives an image, and what of that stays with a task. Pure."""

from __future__ import annotations

from dataclasses import replace

from runtime.protocol.states import Driver
from runtime.protocol.tasks import TaskSpec


def needs_route(spec: TaskSpec) -> bool:
    """Whether it is the node that has to say which image runs the task."""
    return spec.driver is Driver.DOCKER and spec.image is None and spec.model is not None


def carried(spec: TaskSpec, before: TaskSpec) -> TaskSpec:
    """What the server says of a task whose container was made by a route that is known from before."""
    if not needs_route(spec) or before.image is None:
        return spec
    return replace(
        spec,
        image=before.image,
        entrypoint=before.entrypoint,
        command=before.command,
        volumes=before.volumes,
        health=before.health,
    )
