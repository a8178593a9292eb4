"""Which engines are here: by their images' references, letter for letter, and by what running ones answer."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest

from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.engines.running import Server, host_path, models_of, ports_of
from runtime.agent.engines.served import Served, ServedModel, read_served
from runtime.agent.engines.templates import TEMPLATES, entry_fault, routes_of, templates_in
from runtime.agent.engines.watch import EVERY_BEATS, EngineWatch, engines_in, version_of
from runtime.protocol.engines import ENGINES, FORMATS
from runtime.protocol.heartbeat import DiscoveredModel, Engine
from runtime.protocol.tasks import HealthProbe, PortMapping, TaskSpec, Volume

SGLANG = "lmsysorg/sglang:latest"


@pytest.mark.parametrize(
    ("images", "found"),
    [
        ([SGLANG], ["sglang"]),
        (["10.0.0.5:5000/lmsysorg/sglang:latest"], []),
        (["lmsysorg/sglang:latest-cu12", "lmsysorg/sglang:v0.5", "Lmsysorg/sglang:latest", "lmsysorg/sglang"], []),
        (["docker.io/lmsysorg/sglang:latest", "x/lmsysorg/sglang:latest"], []),
        ([f"lmsysorg/sglang@sha256:{'a' * 64}"], []),
        (["vllm/vllm-openai:latest", SGLANG, "busybox:1"], ["sglang", "vllm"]),
        ([], []),
    ],
)
def test_an_engine_is_here_by_its_reference_alone(images: list[str], found: list[str]) -> None:
    templates = templates_in(routes_of({}))
    assert [engine.name for engine in engines_in(images, templates)] == found


def test_a_site_names_its_own_image() -> None:
    own = "10.0.0.5:5000/mirror/vllm-openai:v0.9.1"
    templates = templates_in(routes_of({"safetensors": [f"vllm={own}", "sglang"], "gguf": ["llama.cpp"]}))
    assert engines_in([own, "vllm/vllm-openai:v0.9.1"], templates) == [Engine("vllm", "v0.9.1", own, "image")]


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.9.1", "v0.9.1"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("10.0.0.5:5000/vllm", None),
        (f"a/b:1.2@sha256:{'0' * 64}", "1.2"),
    ],
)
def test_a_version_is_read_from_a_tag_that_has_one(image: str, version: Optional[str]) -> None:
    assert version_of(image) == version


def test_every_engine_has_one_template_and_a_place_in_the_order() -> None:
    assert [template.kind for template in TEMPLATES] == list(ENGINES)
    routes = routes_of({})
    assert set(routes) == set(FORMATS)
    for kind in ENGINES:
        for form in FORMATS:
            assert (kind.name in [template.name for template in routes[form]]) == (form in kind.formats)


@pytest.mark.parametrize(
    ("form", "entry", "words"),
    [
        ("gguf", "llama.cpp", None),
        ("safetensors", "vllm=10.0.0.5:5000/vllm:1", None),
        ("gguf", "vllm", "one of llama.cpp"),
        ("safetensors", "vLLM", "one of vllm, sglang"),
        ("safetensors", "vllm=Not An Image", "image reference"),
        ("onnx", "vllm", "nothing"),
    ],
)
def test_priorities_are_checked(form: str, entry: str, words: Optional[str]) -> None:
    found = entry_fault(form, entry)
    assert found is None if words is None else words in (found or "")


def answer(*rows: Any, **more: Any) -> str:
    return json.dumps({"object": "list", "data": list(rows), **more})


@pytest.mark.parametrize(
    ("text", "served"),
    [
        (
            answer({"id": "m", "owned_by": "vllm", "root": "/m", "max_model_len": 2048, "permission": [{"id": "p"}]}),
            Served((ServedModel("m", 2048, "/m"),), "vllm"),
        ),
        (
            answer({"id": "q", "owned_by": "llamacpp", "meta": {"n_ctx": 4096}}, models=[{"name": "q", "model": "q"}]),
            Served((ServedModel("q", 4096),), "llamacpp"),
        ),
        (
            answer({"id": "base", "owned_by": "vllm"}, {"id": "lora", "owned_by": "vllm", "parent": "base"}),
            Served((ServedModel("base"), ServedModel("lora")), "vllm"),
        ),
        (answer({"id": "a", "owned_by": "x"}, {"id": "a", "owned_by": "y"}), Served((ServedModel("a"),))),
        (answer({"id": 7}, "m", {"name": "n"}, {"id": ""}, {"id": "a", "max_model_len": True}),
         Served((ServedModel("a"),))),
        (answer(), Served(())),
    ],
)  # fmt: skip
def test_what_an_engine_serves(text: str, served: Served) -> None:
    assert read_served(text) == served


@pytest.mark.parametrize("text", ["", "<html>", "[]", "null", '{"models": []}', '{"data": {}}', "[" * 100_000, "7"])
def test_what_is_no_list_of_models(text: str) -> None:
    with pytest.raises(ValueError):
        read_served(text)


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/models/x", "/data/models/x"),
        ("/models/x/", "/data/models/x"),
        ("/models/deep/y", "/fast/y"),
        ("/elsewhere/x", None),
        ("org/x", None),
        (None, None),
    ],
)
def test_a_served_model_lies_where_the_tasks_volume_says(root: Optional[str], path: Optional[str]) -> None:
    volumes = [Volume("/data/models", "/models"), Volume("/fast", "/models/deep/")]
    assert host_path(ServedModel("m", None, root), volumes) == path
    [model] = models_of(Served((ServedModel("m", None, root),)), volumes)
    assert (model.name, model.path, model.source, model.state) == ("m", path, "engine", "complete")


def test_where_an_engine_is_asked() -> None:
    probe, ports = HealthProbe("http", 8000), [PortMapping(9000), PortMapping(9001)]
    assert ports_of(TaskSpec("t", health=probe, ports=ports)) == (8000,)
    assert ports_of(TaskSpec("t", ports=ports)) == (9000, 9001)
    assert ports_of(TaskSpec("t")) == ()


class World:
    """What the watch sees."""

    def __init__(self) -> None:
        self.images: Any = [SGLANG]
        self.servers: list[Server] = []
        self.answers: dict[str, Optional[list[DiscoveredModel]]] = {}
        self.asked: list[str] = []
        self.watch = EngineWatch({}, self._list, lambda: self.servers, read=self._read)

    def _list(self) -> list[str]:
        if isinstance(self.images, Exception):
            raise self.images
        return list(self.images)

    def _read(self, server: Server) -> Optional[list[DiscoveredModel]]:
        self.asked.append(server.name)
        return self.answers.get(server.name)

    def engines(self) -> Optional[list[str]]:
        found = self.watch.snapshot().engines
        return None if found is None else [engine.name for engine in found]

    def served(self) -> list[str]:
        return [model.name for model in self.watch.snapshot().served]


def server(name: str, ready: Optional[bool]) -> Server:
    return Server(name, (8000,), ready, (), lambda: "127.0.0.1")


def test_each_probe_replaces_what_was_found_before() -> None:
    world = World()
    assert world.engines() is None
    world.watch.round()
    assert world.engines() == ["sglang"]
    world.images = ["vllm/vllm-openai:latest"]
    for _ in range(EVERY_BEATS - 1):
        world.watch.round()
        assert world.engines() == ["sglang"]
    world.watch.round()
    assert world.engines() == ["vllm"]


def test_images_that_cannot_be_listed_are_unknown_and_asked_for_with_the_next_beat() -> None:
    world = World()
    world.images = EngineUnavailable("docker does not answer")
    world.watch.round()
    assert world.engines() is None
    world.images = [SGLANG]
    world.watch.round()
    assert world.engines() == ["sglang"]
    world.images = EngineUnavailable("docker does not answer")
    for _ in range(EVERY_BEATS):
        world.watch.round()
    assert world.engines() is None, "what was there is not known to be there now"


def test_a_task_is_asked_when_it_is_ready_and_then_with_each_probe() -> None:
    world = World()
    world.answers = {"a": [DiscoveredModel("m", source="engine")]}
    world.servers = [server("a", False)]
    world.watch.round()
    assert (world.asked, world.served()) == ([], [])
    world.servers = [server("a", True)]
    world.watch.round()
    assert (world.asked, world.served()) == (["a"], ["m"])
    world.watch.round()
    assert world.asked == ["a"]
    world.answers = {}  # it does not answer for once: what it said last is not taken back
    for _ in range(EVERY_BEATS):
        world.watch.round()
    assert world.asked == ["a", "a"]
    assert world.served() == ["m"]
    world.servers = []
    world.watch.round()
    assert world.served() == []
