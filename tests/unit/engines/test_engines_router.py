"""The engine router: a model and no image become an image and a program, or a sentence that says why not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.engines.options import OptionRefused, Options, read_options
from runtime.agent.engines.route import carried, needs_route
from runtime.agent.engines.router import Router, picked, routed
from runtime.agent.engines.templates import TEMPLATES, routes_of
from runtime.agent.hardware.tools import ToolError
from runtime.agent.models.look import NoLook
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.checks import CheckFailed
from runtime.agent.tasks.volumes import Fence
from runtime.protocol.heartbeat import DiscoveredModel
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Driver, Kind
from runtime.protocol.tasks import AssignedGpu, HealthProbe, PortMapping, TaskSpec, Volume

IMAGES = {template.name: template.image for template in TEMPLATES}
NVIDIA, ASCEND = AssignedGpu("GPU-1", vendor="nvidia"), AssignedGpu("NPU-1", vendor="ascend")


def task(model: str, **more: Any) -> TaskSpec:
    return TaskSpec("t", kind=Kind.INFERENCE, model=model, **more)


def model_at(path: str, form: str = "safetensors", state: str = "complete", **more: Any) -> DiscoveredModel:
    return DiscoveredModel(Path(path).name, path, form, state=state, **more)


class Bench:
    """A node with a folder, models in it, and images."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "m").mkdir()
        self.path = str(root / "m")
        self.found: Any = [model_at(self.path)]
        self.known: Optional[list[DiscoveredModel]] = []
        self.images = set(IMAGES.values())
        self.priorities: dict[str, list[str]] = {}

    def route(self, spec: TaskSpec, *cards: AssignedGpu) -> TaskSpec:
        def look(path: str) -> list[DiscoveredModel]:
            assert path.startswith(f"{self.root}/"), "what the fence refuses is not looked at"
            if isinstance(self.found, Exception):
                raise self.found
            return list(self.found)

        settings = AgentSettings(engine_priorities=self.priorities, volumes_allow=[str(self.root)])
        router = Router(settings, lambda image: image in self.images, look, lambda: self.known)
        return router.route(spec, cards, Fence([str(self.root)]))

    def refusal(self, spec: TaskSpec, *cards: AssignedGpu) -> tuple[Reason, str]:
        with pytest.raises(CheckFailed) as caught:
            self.route(spec, *cards)
        return caught.value.reason, caught.value.text


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_task_with_an_image_is_left_alone(bench: Bench) -> None:
    for spec in (task(bench.path, image="busybox"), TaskSpec("t"), task(bench.path, driver=Driver.PROCESS)):
        assert not needs_route(spec)
        assert bench.route(spec) is spec


@pytest.mark.parametrize(
    ("form", "here", "cards", "engine"),
    [
        ("safetensors", ["vllm", "sglang", "tgi"], [NVIDIA], "vllm"),
        ("safetensors", ["tgi", "sglang"], [NVIDIA], "sglang"),
        ("safetensors", ["tgi", "lmdeploy"], [NVIDIA], "lmdeploy"),
        ("safetensors", ["vllm", "mindie"], [ASCEND], "mindie"),
        ("safetensors", ["vllm", "mindie"], [], "vllm"),
        ("safetensors", ["vllm"], [AssignedGpu("virtual-0", vendor="virtual")], "vllm"),
        ("pytorch", ["sglang"], [NVIDIA], "sglang"),
        ("gguf", ["vllm", "llama.cpp"], [NVIDIA], "llama.cpp"),
    ],
)
def test_the_best_engine_that_is_here(
    bench: Bench, form: str, here: list[str], cards: list[AssignedGpu], engine: str
) -> None:
    bench.found = [model_at(bench.path, form)]
    bench.images = {IMAGES[name] for name in here}
    assert bench.route(task(bench.path), *cards).image == IMAGES[engine]


def test_the_settings_order_counts_and_is_read_anew(bench: Bench) -> None:
    bench.priorities = {"safetensors": ["tgi", "vllm"]}
    assert bench.route(task(bench.path)).image == IMAGES["tgi"]
    bench.images.discard(IMAGES["tgi"])
    assert bench.route(task(bench.path)).image == IMAGES["vllm"]
    bench.priorities = {"safetensors": ["vllm=10.0.0.5:5000/vllm-ascend:1"]}
    bench.images.add("10.0.0.5:5000/vllm-ascend:1")
    assert bench.route(task(bench.path), ASCEND).image == "10.0.0.5:5000/vllm-ascend:1"


@pytest.mark.parametrize(
    ("change", "spec", "cards", "reason", "words"),
    [
        ({"images": set()}, {}, [], Reason.IMAGE_NOT_FOUND, "vllm/vllm-openai:latest (vllm)"),
        ({"images": {"10.0.0.5:5000/vllm/vllm-openai:latest"}}, {}, [], Reason.IMAGE_NOT_FOUND, "no engine"),
        ({}, {"engine": "llama.cpp"}, [], Reason.PROFILE_REJECTED, "llama.cpp does not serve safetensors"),
        ({"images": {IMAGES["vllm"]}}, {"engine": "sglang"}, [], Reason.IMAGE_NOT_FOUND, "lmsysorg/sglang:latest"),
        ({}, {"engine": "vllm"}, [ASCEND], Reason.PROFILE_REJECTED, "cards of ascend"),
        ({"found": []}, {}, [], Reason.PROFILE_REJECTED, "no model of a known form"),
        ({"found": [model_at("/a"), model_at("/b")]}, {}, [], Reason.PROFILE_REJECTED, "several models"),
        ({"found": ToolError("it did not answer in 15 s")}, {}, [], Reason.START_FAILED, "did not answer"),
        ({"found": NoLook("/x: Permission denied")}, {}, [], Reason.VOLUME_REJECTED, "Permission denied"),
        ({}, {"profile": {"tensor_paralel": 2}}, [], Reason.PROFILE_REJECTED, "tensor_parallel"),
        ({}, {"profile": {"memory_fraction": 2}}, [], Reason.PROFILE_REJECTED, "at most 1"),
        ({}, {"model": "some-name"}, [], Reason.PROFILE_REJECTED, "no model named 'some-name'"),
        ({"known": None}, {"model": "some-name"}, [], Reason.START_FAILED, "not known now"),
        ({}, {"model": "/etc"}, [], Reason.VOLUME_REJECTED, "/etc"),
        ({}, {"model": "/data/../etc"}, [], Reason.VOLUME_REJECTED, "/etc"),
    ],
)
def test_a_refusal_says_which_fact_led_to_it(
    bench: Bench, change: dict[str, Any], spec: dict[str, Any], cards: list[AssignedGpu], reason: Reason, words: str
) -> None:
    for name, value in change.items():
        setattr(bench, name, value)
    found, text = bench.refusal(task(**{"model": bench.path, **spec}), *cards)
    assert found is reason
    assert words in text


@pytest.mark.case("FC-040")
def test_an_incomplete_model_is_not_offered(bench: Bench) -> None:
    words = "model-00002-of-00003.safetensors is missing"
    bench.found = [model_at(bench.path, state="incomplete", reason=words)]
    reason, text = bench.refusal(task(bench.path))
    assert reason is Reason.PROFILE_REJECTED
    assert words in text


def test_a_model_by_its_name(bench: Bench) -> None:
    bench.known = [
        DiscoveredModel("org/m", bench.path, "safetensors", source="cache", state="complete"),
        DiscoveredModel("org/m", "/served", source="engine", state="complete"),
        DiscoveredModel("two", "/a", "gguf"),
        DiscoveredModel("two", "/b", "gguf"),
    ]
    assert bench.route(task("org/m")).image == IMAGES["vllm"]
    assert "several models are named 'two'" in bench.refusal(task("two"))[1]


def test_picked() -> None:
    inside = [model_at("/m/a.gguf", "gguf")]
    assert picked("/m", inside) is inside[0]
    both = [model_at("/m"), model_at("/m/a.gguf", "gguf")]
    assert picked("/m", both) is both[0]
    assert picked("/m/a.gguf", both) is both[1]


def test_the_routed_task() -> None:
    template = routes_of({})["safetensors"][0]
    found = routed(task("/data/m", env={"A": "b"}), model_at("/data/m"), template, Options(), 2)
    assert found.image == "vllm/vllm-openai:latest"
    assert found.entrypoint == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert found.command == [
        *("--model", "/data/m", "--served-model-name", "m", "--host", "0.0.0.0", "--port", "8000"),
        *("--tensor-parallel-size", "2"),
    ]
    assert found.volumes == [Volume("/data/m", "/data/m", read_only=True)]
    assert found.health == HealthProbe("http", 8000, "/health")
    assert found.env == {"A": "b"}


def test_what_the_task_says_of_its_program_stands() -> None:
    template = routes_of({})["safetensors"][0]
    own = task("/data/m", command=["serve"], ports=[PortMapping(9000)], health=HealthProbe("tcp", 9000))
    found = routed(own, model_at("/data/m"), template, Options(), 0)
    assert (found.command, found.entrypoint, found.health) == (["serve"], None, own.health)
    port = routed(dataclasses.replace(own, command=None), model_at("/data/m"), template, Options(), 0)
    assert "9000" in (port.command or [])


@pytest.mark.parametrize(
    ("path", "volumes", "inside", "added"),
    [
        ("/data/m", [], "/data/m", "/data/m"),
        ("/data/q/a-00001-of-00002.gguf", [], "/data/q/a-00001-of-00002.gguf", "/data/q"),
        ("/hub/models--o--m/snapshots/1", [], "/hub/models--o--m/snapshots/1", "/hub/models--o--m"),
        ("/data/m", [Volume("/data", "/models/")], "/models/m", None),
        ("/data/m", [Volume("/data/m", "/here")], "/here", None),
        ("/data/m", [Volume("/data/mm", "/x")], "/data/m", "/data/m"),
    ],
)
def test_the_model_is_seen_in_the_container(
    path: str, volumes: list[Volume], inside: str, added: Optional[str]
) -> None:
    form = "gguf" if path.endswith("gguf") else "safetensors"
    template = routes_of({})[form][0]
    found = routed(task(path, volumes=volumes), model_at(path, form), template, Options(), 0)
    assert found.command is not None
    assert found.command[1] == inside
    assert [volume.host for volume in found.volumes[len(volumes) :]] == ([] if added is None else [added])
    assert all(volume.read_only for volume in found.volumes)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_every_engine_gets_model_name_port_and_cards(template: Any) -> None:
    options = Options(max_model_len=4096, tensor_parallel=None if template.name == "llama.cpp" else 4)
    found = routed(task("/data/m"), model_at("/data/m"), template, options, 4)
    words = [*(found.entrypoint or ()), *(found.command or ())]
    assert "/data/m" in words
    assert str(template.port) in words
    assert "4096" in words
    assert "4" in words or template.name == "llama.cpp"
    assert found.health == HealthProbe("http", template.port, template.health)


def test_an_option_that_an_engine_lacks_is_refused() -> None:
    by_name = {template.name: template for template in TEMPLATES}
    for name, options in (("tgi", Options(served_model_name="x")), ("llama.cpp", Options(tensor_parallel=2)),
                          ("mindie", Options(args=("--x",)))):  # fmt: skip
        with pytest.raises(CheckFailed, match=name):
            routed(task("/data/m"), model_at("/data/m"), by_name[name], options, 1)


@pytest.mark.parametrize(
    ("profile", "wanted"),
    [
        ({}, Options()),
        ({"args": ["--enforce-eager"], "port": 80}, Options(args=("--enforce-eager",), port=80)),
        ({"memory_fraction": 0.5, "tensor_parallel": 8}, Options(memory_fraction=0.5, tensor_parallel=8)),
        ({"args": "--x"}, None),
        ({"port": "80"}, None),
        ({"port": True}, None),
        ({"tensor_parallel": 0}, None),
        ({"served_model_name": ""}, None),
        ({"image": "x"}, None),
    ],
)
def test_profiles(profile: dict[str, Any], wanted: Optional[Options]) -> None:
    if wanted is not None:
        assert read_options(profile) == wanted
        return
    with pytest.raises(OptionRefused, match="profile"):
        read_options(profile)


def test_a_route_is_kept_over_a_restart() -> None:
    """The server knows the task as it was sent; the container was made by what the node added."""
    sent = task("/data/m")
    made = routed(sent, model_at("/data/m"), TEMPLATES[0], Options(), 1)
    assert carried(sent, made) == made
    assert carried(sent, sent) is sent
    own = dataclasses.replace(sent, image="busybox")
    assert carried(own, made) is own
