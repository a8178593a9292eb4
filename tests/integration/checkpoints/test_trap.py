"""Nothing outside the volume is read, opened or even listed, whatever its files say: a trap outside would tell."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.agent.checkpoints import FRAMEWORKS, find_newest
from tests.integration.fence.yard import Alarm
from tests.unit.checkpoints import layouts as made

VOLUME, OUT = "volume", "out"
Way = Callable[[Path, Path], None]
"""Made with the folder of the checkpoints and the folder outside."""


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Path]:
    """``volume/ck`` with whole checkpoints of every framework, and ``out`` with some more, newer ones."""
    for place in (tmp_path / VOLUME / "ck", tmp_path / OUT):
        base = 100 if place.name == "ck" else 900
        made.megatron(place, base)
        made.deepspeed(place, base)
        made.tensorflow(place, base)
        made.distributed(place / f"step-{base}")
        made.transformers(place, base)
        made.marked(place, base)
        made.tracker(place, str(base))
        made.latest(place, f"global_step{base}")
        made.state(place, f"model.ckpt-{base}")
    yield tmp_path


@pytest.fixture
def alarm(ground: Path) -> Iterator[Alarm]:
    """Rings for every folder and file outside."""
    alarm = Alarm([ground / OUT, *sorted((ground / OUT).rglob("*"))])
    yield alarm
    alarm.close()


def pointer(name: str, *texts: str) -> list[Way]:
    return [lambda ck, out, text=text: made.put(ck / name, text.format(out=out)) for text in texts]


def inside(folder: str, name: str, data: Callable[[Path], bytes | str]) -> Way:
    return lambda ck, out: made.put(ck / folder / name, data(out))


def index(way: str) -> Way:
    def do(ck: Path, out: Path) -> None:
        folder = made.transformers(ck, 900)
        made.put(folder / "model.safetensors.index.json", json.dumps({"weight_map": {"a": way.format(out=out)}}))

    return do


def link(name: str, target: str) -> Way:
    def do(ck: Path, out: Path) -> None:
        if (ck / name).exists():
            (ck / name).rename(ck.parent / "moved")
        (ck / name).symlink_to(target.format(out=out))

    return do


WAYS = [
    *pointer("latest", "../../out/global_step900", "{out}/global_step900", "global_step900/../../../out", "out"),
    *pointer("latest_checkpointed_iteration.txt", "../../out/iter_0000900", "{out}", "900"),
    *pointer("checkpoint", 'model_checkpoint_path: "{out}/model.ckpt-900"',
             'model_checkpoint_path: "../../out/model.ckpt-900"',
             'model_checkpoint_path: "\\056\\056/\\056\\056/out/model.ckpt-900"'),
    *(inside("step-900", ".metadata", lambda out, way=way: made.metadata([way.format(out=out)]))
      for way in ("../../../out/step-900/__0_0.distcp", "{out}/step-900/__0_0.distcp", "a/../../../../out/step-900/x")),
    index("../../../out/checkpoint-900/model.safetensors"),
    index("{out}/checkpoint-900/model.safetensors"),
    *(inside("step_900", "HETEROFLEET_COMPLETE.json", lambda out, way=way: json.dumps(
        {"step": 900, "name": way, "files": [{"path": way.format(out=out), "size": 64}]}))
      for way in ("../../../out/step_900/weights.bin", "{out}/step_900/weights.bin")),
    *(link(name, "{out}/" + there) for name, there in (
        ("checkpoint-900", "checkpoint-900"), ("step_900", "step_900"), ("global_step900", "global_step900"),
        ("latest", "latest"), ("checkpoint", "checkpoint"), ("HETEROFLEET_COMPLETE.json", "latest"),
        ("latest_checkpointed_iteration.txt", "latest_checkpointed_iteration.txt"), ("iter_0000900", "iter_0000900"),
        ("model.ckpt-900.index", "model.ckpt-900.index"), ("checkpoint-100/trainer_state.json", "latest"),
        ("checkpoint-100/optimizer.pt", "latest"), ("step-100/.metadata", "latest"),
        ("step-100/__0_0.distcp", "latest"),
        ("step_100/optim", "step_900/optim"), ("iter_0000100/mp_rank_01", "iter_0000900/mp_rank_01"),
        ("global_step100/mp_rank_00_model_states.pt", "latest"))),
    *(link(name, "../../out/" + name) for name in ("checkpoint-900", "latest", "step_900")),
]  # fmt: skip


@pytest.mark.case("FC-037")
@pytest.mark.parametrize("way", WAYS)
def test_no_way_out_of_the_volume_is_taken(ground: Path, alarm: Alarm, way: Way) -> None:
    """``latest`` held ``../../etc``; a link, a pickle, an index and a marker lead out just as well."""
    ck, out = ground / VOLUME / "ck", ground / OUT
    way(ck, out)
    alarm.rung()  # by what the way itself did
    handle = os.open(ground / VOLUME, os.O_PATH)
    try:
        for framework in FRAMEWORKS:
            seen = find_newest(handle, "ck", framework, seen_as="/ck")
            assert seen.found is None or seen.found.step == 100, (framework, seen)
    finally:
        os.close(handle)
    assert alarm.rung() == []


def test_the_trap_is_a_real_one(ground: Path, alarm: Alarm) -> None:
    found = find_newest(str(ground / OUT)).found
    assert found is not None and found.step == 900
    assert alarm.rung()
