"""How each engine is started: its image, its port, and its words for what a task wants.

The flags are those of the engines' own help texts. An image counts only under exactly the reference that stands here
or in ``engine_priorities`` (``NAME=IMAGE``): sites pin versions and keep mirrors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from runtime.agent.engines.mindie import mindie_program
from runtime.agent.engines.options import Launch, Program
from runtime.protocol.engines import FORMATS, GGUF, PYTORCH, SAFETENSORS, EngineKind, engine_kind
from runtime.protocol.names import ImageReferenceError, parse_image_reference

ALL_LAYERS = "999"


@dataclass(frozen=True)
class Template:
    """One engine. ``head`` comes before the model's path; ``flags``: option of a profile -> the engine's flag.
    ``own``: the image is a site's own, so nothing is known of the cards that it was built for."""

    kind: EngineKind
    image: str
    port: int
    health: str
    head: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    entrypoint: Optional[tuple[str, ...]] = None
    own: bool = False

    @property
    def name(self) -> str:
        return self.kind.name

    def program(self, launch: Launch) -> Program:
        """The program of a container. Raises OptionRefused for an option that the engine does not have."""
        if self.name == "mindie":
            return mindie_program(launch)
        words = [*self.head, launch.model]
        for option, value in launch.settings(self.name, self.flags).items():
            words += [self.flags[option], value]
        if launch.cards:
            words += self.extra
        return Program(list(self.entrypoint) if self.entrypoint else None, [*words, *launch.args])


def _kind(name: str) -> EngineKind:
    kind = engine_kind(name)
    assert kind is not None
    return kind


TEMPLATES: tuple[Template, ...] = (
    Template(
        _kind("vllm"),
        "vllm/vllm-openai:latest",
        8000,
        "/health",
        ("--model",),
        {
            "served_model_name": "--served-model-name",
            "host": "--host",
            "port": "--port",
            "tensor_parallel": "--tensor-parallel-size",
            "max_model_len": "--max-model-len",
            "memory_fraction": "--gpu-memory-utilization",
        },
        # Images before and after `vllm serve` have other entrypoints; this one is in both.
        entrypoint=("python3", "-m", "vllm.entrypoints.openai.api_server"),
    ),
    Template(
        _kind("sglang"),
        "lmsysorg/sglang:latest",
        30000,
        "/health",
        ("python3", "-m", "sglang.launch_server", "--model-path"),
        {
            "served_model_name": "--served-model-name",
            "host": "--host",
            "port": "--port",
            "tensor_parallel": "--tp-size",
            "max_model_len": "--context-length",
            "memory_fraction": "--mem-fraction-static",
        },
    ),
    Template(
        _kind("llama.cpp"),
        "ghcr.io/ggml-org/llama.cpp:server-cuda",
        8080,
        "/health",
        ("-m",),
        {"served_model_name": "--alias", "host": "--host", "port": "--port", "max_model_len": "--ctx-size"},
        ("-ngl", ALL_LAYERS),
    ),
    Template(
        _kind("tgi"),
        "ghcr.io/huggingface/text-generation-inference:latest",
        80,
        "/health",
        ("--model-id",),
        {
            "host": "--hostname",
            "port": "--port",
            "tensor_parallel": "--num-shard",
            "max_model_len": "--max-total-tokens",
            "memory_fraction": "--cuda-memory-fraction",
        },
    ),
    Template(_kind("mindie"), "swr.cn-south-1.myhuaweicloud.com/ascendhub/mindie:latest", 1025, "/v1/models"),
    Template(
        _kind("lmdeploy"),
        "openmmlab/lmdeploy:latest",
        23333,
        "/health",
        ("lmdeploy", "serve", "api_server"),
        {
            "served_model_name": "--model-name",
            "host": "--server-name",
            "port": "--server-port",
            "tensor_parallel": "--tp",
            "max_model_len": "--session-len",
            "memory_fraction": "--cache-max-entry-count",
        },
    ),
)

BEST_FIRST: dict[str, tuple[str, ...]] = {
    SAFETENSORS: ("vllm", "sglang", "mindie", "lmdeploy", "tgi"),
    PYTORCH: ("vllm", "sglang", "lmdeploy", "tgi"),
    GGUF: ("llama.cpp",),
}


def routes_of(priorities: Mapping[str, Sequence[str]]) -> dict[str, tuple[Template, ...]]:
    """Format -> engines, best first: as the settings say, else :data:`BEST_FIRST`."""
    return {
        form: tuple(_template(entry) for entry in priorities.get(form, BEST_FIRST.get(form, ()))) for form in FORMATS
    }


def templates_in(routes: Mapping[str, Sequence[Template]]) -> list[Template]:
    """Every engine that a route can lead to, each image once."""
    found = {(template.name, template.image): template for row in routes.values() for template in row}
    return [found[key] for key in sorted(found)]


def entry_fault(form: str, entry: Any) -> Optional[str]:
    """What an entry of ``engine_priorities`` should be, when it is not; None when it is right."""
    name, equals, image = str(entry).partition("=")
    kind = engine_kind(name)
    serving = [template.name for template in TEMPLATES if form in template.kind.formats]
    if not serving:
        return "nothing: no engine that is known serves this format"
    if kind is None or form not in kind.formats:
        return f"one of {', '.join(serving)}, or NAME=IMAGE with one of these names"
    if equals:
        try:
            parse_image_reference(image)
        except ImageReferenceError as error:
            return f"NAME=IMAGE with an image reference: {error}"
    return None


def _template(entry: str) -> Template:
    name, equals, image = entry.partition("=")
    found = next(template for template in TEMPLATES if template.name == name)
    return replace(found, image=image, own=True) if equals else found
