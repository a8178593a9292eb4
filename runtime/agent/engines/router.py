"""The engine router: a task with a model and no image becomes one with an image and a program.

The model is looked at when the task is prepared, and an engine counts when its image is there at that moment, letter
for letter: nothing here is remembered from a start, and no image is pulled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.engines.options import Launch, OptionRefused, Options, read_options
from runtime.agent.engines.route import needs_route
from runtime.agent.engines.templates import Template, routes_of
from runtime.agent.hardware.tools import ToolError
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL
from runtime.agent.models.look import NoLook
from runtime.agent.models.names import hub_name
from runtime.agent.tasks.checks import CheckFailed, checked_env
from runtime.agent.tasks.volumes import Fence, VolumeRejected
from runtime.protocol.engines import AUTO
from runtime.protocol.paths import is_within, target_name
from runtime.protocol.reasons import Reason
from runtime.protocol.tasks import AssignedGpu, HealthProbe, TaskSpec, Volume

if TYPE_CHECKING:
    from runtime.agent.settings import AgentSettings
    from runtime.protocol.heartbeat import DiscoveredModel


@dataclass
class Router:
    """``present``: whether exactly this reference is on the engine. ``look``: the models at a path, read now.
    ``known``: the newest scan, for tasks that name a model by its name; None: not known."""

    settings: AgentSettings
    present: Callable[[str], bool]
    look: Callable[[str], list[DiscoveredModel]]
    known: Callable[[], Optional[list[DiscoveredModel]]]

    def route(self, spec: TaskSpec, cards: Sequence[AssignedGpu], fence: Fence) -> TaskSpec:
        """The task as it runs; unchanged when it has an image. Raises CheckFailed, and what ``present`` raises."""
        if not needs_route(spec) or spec.model is None:
            return spec
        options = _options(spec)
        path = os.path.normpath(spec.model) if spec.model.startswith("/") else self._path_of(spec.model)
        model = self._model_at(path, fence)
        template = self._engine(spec, model, cards)
        return routed(spec, model, template, options, len(cards))

    def _path_of(self, name: str) -> str:
        known = self.known()
        if known is None:
            raise CheckFailed(Reason.START_FAILED, f"model {name!r}: this node's models are not known now")
        named = [model for model in known if model.name == name and model.path is not None and model.source != "engine"]
        whole = [model for model in named if model.state != "incomplete"] or named
        paths = {model.path for model in whole}
        if not paths:
            raise CheckFailed(Reason.PROFILE_REJECTED, f"no model named {name!r} was found on this node")
        if len(paths) > 1:
            several = ", ".join(sorted(str(path) for path in paths)[:5])
            raise CheckFailed(
                Reason.PROFILE_REJECTED, f"several models are named {name!r}: name one by path: {several}"
            )
        return str(paths.pop())

    def _model_at(self, path: str, fence: Fence) -> DiscoveredModel:
        """The model at a path, once the fence lets the task see it."""
        models: list[DiscoveredModel] = []
        refused: Optional[NoLook] = None
        try:
            # The child looks first: what hangs must not hang a worker, and the fence would enter it. What it saw is
            # told only when the fence has agreed.
            if any(is_within(path, os.path.normpath(allowed)) for allowed in self.settings.volumes_allow):
                models = self.look(path)
        except ToolError as error:
            raise CheckFailed(Reason.START_FAILED, str(error)) from None
        except NoLook as error:
            refused = error
        try:
            fence.admit(Volume(host=path, container=path))
        except VolumeRejected as error:
            raise CheckFailed(Reason.VOLUME_REJECTED, f"model: {error}") from None
        if refused is not None:
            raise CheckFailed(Reason.VOLUME_REJECTED, f"model: {refused}")
        return picked(path, models)

    def _engine(self, spec: TaskSpec, model: DiscoveredModel, cards: Sequence[AssignedGpu]) -> Template:
        form = model.format or ""
        candidates = routes_of(self.settings.engine_priorities).get(form, ())
        if spec.engine != AUTO:
            candidates = tuple(template for template in candidates if template.name == spec.engine)
            if not candidates:
                raise CheckFailed(
                    Reason.PROFILE_REJECTED, f"engine {spec.engine} does not serve {form} models on this node"
                )
        if not candidates:
            raise CheckFailed(Reason.PROFILE_REJECTED, f"{model.path}: no engine serves {form} models on this node")
        vendors = {card.vendor for card in cards} - {None, VIRTUAL}
        fitting = [one for one in candidates if one.own or vendors <= {one.kind.vendor}]
        if not fitting:
            raise CheckFailed(
                Reason.PROFILE_REJECTED,
                f"no engine for {form} models runs on cards of {', '.join(sorted(map(str, vendors)))}; "
                "engine_priorities may name an image that does",
            )
        for template in fitting:
            if self.present(template.image):
                return template
        wanted = ", ".join(f"{template.image} ({template.name})" for template in fitting)
        raise CheckFailed(
            Reason.IMAGE_NOT_FOUND, f"no engine for {form} models is on this node; it would take one of {wanted}"
        )


def _options(spec: TaskSpec) -> Options:
    try:
        return read_options(spec.profile)
    except OptionRefused as error:
        raise CheckFailed(Reason.PROFILE_REJECTED, str(error)) from None


def picked(path: str, models: Sequence[DiscoveredModel]) -> DiscoveredModel:
    """The one model that a path means: the folder or file itself, else the only one in the folder. Pure."""
    exact = [model for model in models if model.path == path]
    found = exact or list(models)
    if not found:
        raise CheckFailed(Reason.PROFILE_REJECTED, f"{path}: no model of a known form is there")
    if len(found) > 1:
        several = ", ".join(sorted(str(model.path) for model in found)[:5])
        raise CheckFailed(Reason.PROFILE_REJECTED, f"{path}: several models are there, name one of them: {several}")
    if found[0].state == "incomplete":
        raise CheckFailed(Reason.PROFILE_REJECTED, f"{path}: the model is not whole: {found[0].reason}")
    return found[0]


def routed(spec: TaskSpec, model: DiscoveredModel, template: Template, options: Options, cards: int) -> TaskSpec:
    """The task with the engine's image and program. What the task itself says of its program stands. Pure."""
    assert model.path is not None
    inside, volumes = _seen_inside(model, spec.volumes)
    first = spec.ports[0].container if spec.ports else None
    port = options.port or first or (spec.health.port if spec.health is not None else None) or template.port
    try:
        program = template.program(Launch(inside, model.name, port, cards, options))
    except OptionRefused as error:
        raise CheckFailed(Reason.PROFILE_REJECTED, str(error)) from None
    own = spec.command is not None or spec.entrypoint is not None
    env, _ = checked_env(spec.env)
    return replace(
        spec,
        image=template.image,
        entrypoint=spec.entrypoint if own else program.entrypoint,
        command=spec.command if own else program.command,
        env={**program.env, **env} if program.env else spec.env,
        volumes=volumes,
        health=spec.health or HealthProbe("http", port, template.health),
    )


def _seen_inside(model: DiscoveredModel, volumes: list[Volume]) -> tuple[str, list[Volume]]:
    """The model's path in the container, and the volumes that show it there: one of the task's own, else its home
    under its own path, read only. The home of a hub's snapshot is the repository, since its files are links."""
    path = str(model.path)
    for volume in volumes:
        if is_within(path, volume.host):
            return target_name(volume.container).rstrip("/") + path[len(volume.host.rstrip("/")) :], volumes
    folder = path if not _is_file(model) else os.path.dirname(path)  # noqa: PTH120
    hub = hub_name(folder)
    home = hub[1] if hub is not None else folder
    return path, [*volumes, Volume(host=home, container=home)]


def _is_file(model: DiscoveredModel) -> bool:
    return model.path is not None and model.path.endswith((".gguf", ".safetensors", ".onnx", ".bin", ".pt", ".pth",
                                                            ".engine", ".plan", ".trt"))  # fmt: skip
