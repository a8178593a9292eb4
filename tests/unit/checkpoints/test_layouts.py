"""Each framework's layout: the newest complete checkpoint is chosen, each way to be incomplete has its reason.

Two complete checkpoints, of steps 900 and 1000 (as texts the other way round); then one thing is done to the newer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Optional

import pytest

from runtime.agent.checkpoints import Checkpoint, Look, find_newest
from tests.unit.checkpoints import layouts as made

Damage = tuple[str, Callable[[Path], object], Optional[int], str]
"""What is done in words, doing it, the step that is chosen then, a part of the reason for the newer one."""


def empty(path: str) -> Callable[[Path], object]:
    return lambda root: (root / path).write_bytes(b"")


def gone(path: str) -> Callable[[Path], object]:
    return lambda root: shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()


def cut(path: str, keep: float = 0.5) -> Callable[[Path], object]:
    return lambda root: os.truncate(root / path, int((root / path).stat().st_size * keep))


def hole(path: str) -> Callable[[Path], object]:
    """The name and the size reached the disk before the power went, the content did not."""

    def do(root: Path) -> None:
        size = (root / path).stat().st_size
        (root / path).write_bytes(b"")
        os.truncate(root / path, max(size, 8192))

    return do


def text(path: str, content: str) -> Callable[[Path], object]:
    return lambda root: made.put(root / path, content)


def link(path: str) -> Callable[[Path], object]:
    """Moved away, with a link in its place: whole for all who follow links."""

    def do(root: Path) -> None:
        away = root.parent / "away"
        (root / path).rename(away)
        (root / path).symlink_to(away)

    return do


def look(root: Path, framework: str) -> Look:
    return find_newest(str(root), framework=framework, seen_as="/ck")


def check(root: Path, framework: str, damage: Damage) -> None:
    """With the framework named, and found out."""
    words, do, chosen, reason = damage
    do(root)
    for asked in (framework, "auto"):
        seen = look(root, asked)
        step = seen.found.step if seen.found is not None else None
        assert step == chosen, (words, asked, seen)
        reasons = [f"{one.path}: {one.reason}" for one in seen.rejected]
        assert any(reason in line for line in reasons), (words, asked, reasons)


def chosen(root: Path, framework: str, name: str, step: int = 1000) -> None:
    for asked in (framework, "auto"):
        seen = look(root, asked)
        assert seen.found is not None, seen
        assert (seen.found.path, seen.found.framework, seen.found.step) == (f"/ck/{name}", framework, step), asked
        assert seen.rejected == ()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ck"
    root.mkdir()
    return root


# Megatron-LM

ITER = "iter_0001000"
MEGATRON: list[Damage] = [
    ("a rank's folder is missing", gone(f"{ITER}/mp_rank_00"), None, "mp_rank_00 is missing"),
    ("a rank's folder is empty", gone(f"{ITER}/mp_rank_01/model_optim_rng.pt"), None, "mp_rank_01/model_optim_rng.pt"),
    ("a rank's file is empty", empty(f"{ITER}/mp_rank_01/model_optim_rng.pt"), None, "model_optim_rng.pt is empty"),
    ("a rank's file is cut off", cut(f"{ITER}/mp_rank_01/model_optim_rng.pt"), None, "cut off"),
    ("a rank's file is a hole", hole(f"{ITER}/mp_rank_00/model_optim_rng.pt"), None, "hole"),
    ("a rank has no optimizer", gone(f"{ITER}/mp_rank_01/distrib_optim.pt"), None, "other ranks have one"),
    ("a rank's optimizer is empty", empty(f"{ITER}/mp_rank_01/distrib_optim.pt"), None, "distrib_optim.pt is empty"),
    ("a rank's folder is a link", link(f"{ITER}/mp_rank_01"), None, "links are not followed"),
    ("a rank's folder is a file", lambda root: (gone(f"{ITER}/mp_rank_01")(root),
                                                text(f"{ITER}/mp_rank_01", "x")(root)), None, "is not a folder"),
    ("the iteration is empty", lambda root: [gone(f"{ITER}/mp_rank_0{n}")(root) for n in (0, 1)], None, "neither"),
    ("the iteration is missing", gone(ITER), None, "names iter_0001000, and there is no such folder"),
    ("the iteration is a link", link(ITER), None, "links are not followed"),
    ("the tracker is empty", empty("latest_checkpointed_iteration.txt"), None, "is empty"),
    ("the tracker holds words", text("latest_checkpointed_iteration.txt", "soon"), None, "neither a number"),
    ("the tracker is negative", text("latest_checkpointed_iteration.txt", "-900"), None, "neither a number"),
    ("the tracker leads out", text("latest_checkpointed_iteration.txt", "../../etc"), None, "neither a number"),
    ("the tracker is missing", gone("latest_checkpointed_iteration.txt"), None, "no latest_checkpointed_iteration.txt"),
    ("the tracker is a link", link("latest_checkpointed_iteration.txt"), None, "links are not followed"),
    ("the tracker names the older", text("latest_checkpointed_iteration.txt", "900"), 900, "not all ranks had saved"),
    ("the tracker names a release that is not there", text("latest_checkpointed_iteration.txt", "release"), None,
     "names release"),
]  # fmt: skip


@pytest.mark.parametrize("damage", MEGATRON, ids=lambda damage: damage[0])
def test_megatron_goes_by_its_tracker(root: Path, damage: Damage) -> None:
    made.megatron(root, 900)
    made.megatron(root, 1000)
    made.tracker(root, "1000")
    chosen(root, "megatron", ITER)
    check(root, "megatron", damage)


@pytest.mark.parametrize(
    "ranks",
    [("00",), ("00", "01", "02", "03"), ("00_000", "00_001", "01_000", "01_001"), ("00_000_000", "00_000_001")],
    ids=str,
)
def test_megatron_with_every_form_of_ranks(root: Path, ranks: tuple[str, ...]) -> None:
    made.megatron(root, 1000, ranks, optimizer=False)
    made.tracker(root, "1000\n")
    chosen(root, "megatron", ITER)
    shutil.rmtree(root / ITER / f"mp_rank_{ranks[0]}")
    assert look(root, "megatron").found is None


def test_megatron_s_ranks_are_of_one_layout_and_leave_no_gap_in_any_direction(root: Path) -> None:
    made.megatron(root, 1000, ("00_000", "00_001", "01_000"))
    made.tracker(root, "1000")
    assert "mp_rank_01_001 is missing" in look(root, "megatron").rejected[0].reason
    made.megatron(root, 1000, ("00_000", "00_001", "01_000", "01_001", "00"))
    assert "several layouts" in look(root, "megatron").rejected[0].reason


def test_megatron_s_release_has_no_step(root: Path) -> None:
    made.megatron(root, 1000).rename(root / "release")
    made.tracker(root, "release")
    chosen(root, "megatron", "release", 0)


MEGATRON_DISTRIBUTED: list[Damage] = [
    ("no .metadata", gone(f"{ITER}/.metadata"), None, ".metadata is missing"),
    ("a rank's file is missing", gone(f"{ITER}/__1_0.distcp"), None, "__1_0.distcp is missing"),
    ("the common part is missing", gone(f"{ITER}/common.pt"), None, "common.pt is missing"),
    ("the common part is cut off", cut(f"{ITER}/common.pt"), None, "common.pt is cut off"),
    ("a torn configuration", cut(f"{ITER}/metadata.json"), None, "metadata.json is not valid JSON"),
    ("a form nobody can prove", text(f"{ITER}/metadata.json", '{"sharded_backend": "zarr"}'), None, "kind zarr"),
]


@pytest.mark.parametrize("damage", MEGATRON_DISTRIBUTED, ids=lambda damage: damage[0])
def test_megatron_s_distributed_checkpoints(root: Path, damage: Damage) -> None:
    made.megatron_distributed(root, 900)
    made.megatron_distributed(root, 1000)
    made.tracker(root, "1000")
    chosen(root, "megatron", ITER)
    check(root, "megatron", damage)


# DeepSpeed

TAG = "global_step1000"
OPTIM = f"{TAG}/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
DEEPSPEED: list[Damage] = [
    ("a gap in the optimizer's shards", gone(f"{TAG}/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"), 900,
     "optimizer shard of data rank 0, model rank 0 is missing"),
    ("an optimizer shard is empty", empty(OPTIM), 900, "is empty"),
    ("an optimizer shard is cut off", cut(OPTIM), 900, "cut off"),
    ("an optimizer shard is a hole", hole(OPTIM), 900, "hole"),
    ("an optimizer shard is a link", link(OPTIM), 900, "links are not followed"),
    ("an optimizer shard is a folder", lambda root: (gone(OPTIM)(root), (root / OPTIM).mkdir()), 900, "is a folder"),
    ("no model shard", gone(f"{TAG}/mp_rank_00_model_states.pt"), 900, "no model shard"),
    ("no optimizer shard", lambda root: [gone(f"{TAG}/bf16_zero_pp_rank_{n}_mp_rank_00_optim_states.pt")(root)
                                         for n in (0, 1)], 900, "no optimizer shard"),
    ("a model shard of a rank without optimizer",
     lambda root: made.put(root / TAG / "mp_rank_01_model_states.pt", made.torch_archive()), 900,
     "model rank 1 has no optimizer shard"),
    ("the tag is empty", lambda root: [path.unlink() for path in (root / TAG).iterdir()], 900, "is empty"),
    ("the tag is a link", link(TAG), None, "no such folder"),
    ("latest is missing", gone("latest"), None, "no file latest"),
    ("latest is a link", link("latest"), None, "links are not followed"),
    ("latest names the older", text("latest", "global_step900"), 900, "not all ranks had saved"),
    ("latest names a save under way", text("latest", "global_step1000.tmp"), None, "no such folder"),
    ("what latest names has no number and is torn", lambda root: (
        (root / TAG).rename(root / "best"), (root / "best" / "mp_rank_00_model_states.pt").unlink(),
        text("latest", "best")(root)), None, "no model shard"),
    ("latest is binary", lambda root: (root / "latest").write_bytes(b"\xff\xfe\0"), None, "not the plain name"),
    ("latest is huge", lambda root: os.truncate(root / "latest", 1 << 30), None, "more than are read"),
]  # fmt: skip


@pytest.mark.parametrize("damage", DEEPSPEED, ids=lambda damage: damage[0])
def test_deepspeed_goes_by_latest_and_down_from_there(root: Path, damage: Damage) -> None:
    made.deepspeed(root, 900)
    made.deepspeed(root, 1000)
    made.latest(root, TAG)
    chosen(root, "deepspeed", TAG)
    check(root, "deepspeed", damage)


@pytest.mark.case("FC-037")
@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("global_step300", None),
        ("", None),
        ("../../etc", None),
        ("global_step200/", None),
        ("./global_step200", None),
        ("/ck/global_step200", None),
        (".", None),
        ("..", None),
        ("global_step200\nglobal_step100", None),
        ("global_step200\0", None),
        ("global_step200\n", 200),
        ("global_step200", 200),
    ],
    ids=repr,
)
def test_a_pointer_is_one_plain_name_and_never_a_guess(root: Path, pointer: str, found: Optional[int]) -> None:
    """``latest`` named a folder that was gone, and resuming failed each time; a neighbour was guessed."""
    made.deepspeed(root, 100)
    made.deepspeed(root, 200)
    made.latest(root, pointer)
    for asked in ("deepspeed", "auto"):
        seen = look(root, asked)
        assert (seen.found.step if seen.found is not None else None) == found, seen
        assert found is not None or [one.path for one in seen.rejected][:1] == ["/ck/latest"]


def test_a_pointer_that_is_no_checkpoint_s_name_is_not_repeated(root: Path) -> None:
    made.deepspeed(root, 100)
    made.latest(root, "hf_qPzRtVbNmKlJhGfDsA")
    assert not any("hf_" in one.reason for one in look(root, "deepspeed").rejected)


def test_what_a_pointer_names_needs_no_number(root: Path) -> None:
    """It is the newest because the framework says so, and the only one that may be taken."""
    made.deepspeed(root, 900)
    made.deepspeed(root, 1000).rename(root / "best")
    made.latest(root, "best")
    seen = look(root, "auto").found
    assert seen is not None and (seen.path, seen.step) == ("/ck/best", None)
    made.tensorflow(root, 700)
    for path in root.glob("model.ckpt-700.*"):
        path.rename(root / path.name.replace("-700", ""))
    made.state(root, "model.ckpt")
    seen = look(root, "tensorflow").found
    assert seen is not None and (seen.path, seen.step) == ("/ck/model.ckpt", None)
    made.transformers(root, 5)
    seen = look(root, "auto").found
    assert seen is not None and seen.step == 5


ZERO_3: list[Damage] = [
    ("a model shard is missing", gone(f"{TAG}/zero_pp_rank_1_mp_rank_01_model_states.pt"), 900, "is missing"),
    ("a rank has no optimizer", lambda root: [gone(f"{TAG}/bf16_zero_pp_rank_1_mp_rank_0{n}_optim_states.pt")(root)
                                              for n in (0, 1)], 900, "4 model and 2 optimizer shards do not fit"),
    ("a rank has no model", lambda root: [gone(f"{TAG}/zero_pp_rank_1_mp_rank_0{n}_model_states.pt")(root)
                                          for n in (0, 1)], 900, "2 model and 4 optimizer shards do not fit"),
]  # fmt: skip


@pytest.mark.parametrize("damage", ZERO_3, ids=lambda damage: damage[0])
def test_deepspeed_with_partitioned_weights(root: Path, damage: Damage) -> None:
    made.deepspeed(root, 900, stage=3, model=2)
    made.deepspeed(root, 1000, stage=3, model=2)
    made.latest(root, TAG)
    chosen(root, "deepspeed", TAG)
    check(root, "deepspeed", damage)


@pytest.mark.parametrize(
    ("build", "damage"),
    [
        (made.pipeline, ("a layer's shard", gone(f"{TAG}/layer_01-model_01-model_states.pt"), 900, "layer_01")),
        (
            made.experts,
            ("an expert's shard", empty(f"{TAG}/layer_0_expert_1_mp_rank_00_model_states.pt"), 900, "empty"),
        ),
        (
            made.experts,
            ("an expert's optimizer", gone(f"{TAG}/expp_rank_0_mp_rank_00_optim_states.pt"), 900, "missing"),
        ),
    ],
)
def test_deepspeed_with_pipelines_and_experts(root: Path, build: Callable[..., Path], damage: Damage) -> None:
    build(root, 900)
    build(root, 1000)
    made.latest(root, TAG)
    chosen(root, "deepspeed", TAG)
    check(root, "deepspeed", damage)


# TensorFlow

PREFIX = "model.ckpt-1000"
TENSORFLOW: list[Damage] = [
    ("no index", gone(f"{PREFIX}.index"), 900, f"{PREFIX}.index is missing"),
    ("an empty index", empty(f"{PREFIX}.index"), 900, "is empty"),
    ("a shard is missing", gone(f"{PREFIX}.data-00000-of-00002"), 900, "data-00000-of-00002 is missing"),
    ("the last shard is missing", gone(f"{PREFIX}.data-00001-of-00002"), 900, "data-00001-of-00002 is missing"),
    ("an empty shard", empty(f"{PREFIX}.data-00001-of-00002"), 900, "is empty"),
    ("a shard is a hole", hole(f"{PREFIX}.data-00001-of-00002"), 900, "hole"),
    ("a shard is a link", link(f"{PREFIX}.data-00001-of-00002"), 900, "links are not followed"),
    ("shards of two saves", text(f"{PREFIX}.data-00000-of-00003", "x"), 900, "several saves"),
    ("no shard", lambda root: [gone(f"{PREFIX}.data-0000{n}-of-00002")(root) for n in (0, 1)], 900, "no data file"),
    ("a torn state file", cut("checkpoint", 0.1), None, "no whole state"),
    ("an empty state file", empty("checkpoint"), None, "is empty"),
    ("a state file of something else", text("checkpoint", '{"step": 3}'), None, "no whole state"),
    ("a state file that names nothing", text("checkpoint", "last_preserved_timestamp: 1.5\n"), None, "no checkpoint"),
    ("a state file that leads out", text("checkpoint", 'model_checkpoint_path: "../ck/model.ckpt-900"'), None,
     "not in its own folder"),
    ("a state file that leads elsewhere", text("checkpoint", 'model_checkpoint_path: "/other/model.ckpt-900"'), None,
     "not in its own folder"),
    ("a prefix that is not there", text("checkpoint", 'model_checkpoint_path: "model.ckpt"'), None, "index is missing"),
    ("the state file is a link", link("checkpoint"), None, "links are not followed"),
]  # fmt: skip


@pytest.mark.parametrize("damage", TENSORFLOW, ids=lambda damage: damage[0])
def test_tensorflow_goes_by_its_state_file(root: Path, damage: Damage) -> None:
    older = made.tensorflow(root, 900)
    made.state(root, made.tensorflow(root, 1000), older)
    chosen(root, "tensorflow", PREFIX)
    check(root, "tensorflow", damage)


@pytest.mark.parametrize("name", ["/ck/model.ckpt-1000", "./model.ckpt-1000", r"model\056ckpt-1000"], ids=repr)
def test_tensorflow_s_names_in_every_form(root: Path, name: str) -> None:
    made.tensorflow(root, 1000, shards=1)
    made.put(
        root / "checkpoint", f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "/gone/model.ckpt-9"\n'
    )
    chosen(root, "tensorflow", PREFIX)


# PyTorch

DCP = "step-1000"


def refers(*files: str) -> Callable[[Path], object]:
    return lambda root: (root / DCP / ".metadata").write_bytes(made.metadata(list(files)))


PYTORCH: list[Damage] = [
    ("no .metadata", gone(f"{DCP}/.metadata"), 900, ".metadata is missing"),
    ("a save that did not end", lambda root: (root / DCP / ".metadata").rename(root / DCP / ".metadata.tmp"), 900,
     "the save was not finished"),
    ("an empty .metadata", empty(f"{DCP}/.metadata"), 900, ".metadata is empty"),
    ("a torn .metadata", cut(f"{DCP}/.metadata", 0.99), 900, "no whole pickle"),
    ("a .metadata of something else", text(f"{DCP}/.metadata", "step: 1000\n"), 900, "no whole pickle"),
    (".metadata is a link", link(f"{DCP}/.metadata"), 900, "links are not followed"),
    ("a file is missing", gone(f"{DCP}/__1_0.distcp"), 900, "__1_0.distcp is missing"),
    ("a file is empty", empty(f"{DCP}/__0_0.distcp"), 900, "__0_0.distcp is empty"),
    ("a file is cut off", cut(f"{DCP}/__0_0.distcp", 0.9), 900, "__0_0.distcp is cut off"),
    ("a file is a link", link(f"{DCP}/__0_0.distcp"), 900, "links are not followed"),
    (".metadata leads out", refers("../out.distcp"), 900, "outside its own folder"),
    (".metadata leads elsewhere", refers("/etc/shadow"), 900, "outside its own folder"),
    (".metadata names no file", refers(), 900, "no file"),
]  # fmt: skip


@pytest.mark.parametrize("damage", PYTORCH, ids=lambda damage: damage[0])
def test_pytorch_goes_by_what_its_metadata_refers_to(root: Path, damage: Damage) -> None:
    made.distributed(root / "step-900")
    made.distributed(root / DCP)
    chosen(root, "pytorch", DCP)
    check(root, "pytorch", damage)


# Transformers

CHECKPOINT = "checkpoint-1000"
SHARDED = "model-00002-of-00003.safetensors"


def state(content: str) -> Callable[[Path], object]:
    return text(f"{CHECKPOINT}/trainer_state.json", content)


def index(content: str) -> Callable[[Path], object]:
    return text(f"{CHECKPOINT}/model.safetensors.index.json", content)


TRANSFORMERS: list[Damage] = [
    ("no state file", gone(f"{CHECKPOINT}/trainer_state.json"), 900, "trainer_state.json is missing"),
    ("an empty state file", empty(f"{CHECKPOINT}/trainer_state.json"), 900, "trainer_state.json is empty"),
    ("a torn state file", cut(f"{CHECKPOINT}/trainer_state.json"), 900, "not valid JSON"),
    ("a deep state file", state("[" * 100_000), 900, "not valid JSON"),
    ("the state of another step", state('{"global_step": 990}'), 900, "says step 990"),
    ("a step that is no number", state('{"global_step": true}'), 900, "no global_step"),
    ("a state without a step", state("[1000]"), 900, "no global_step"),
    ("the state file is a link", link(f"{CHECKPOINT}/trainer_state.json"), 900, "links are not followed"),
    ("a shard is missing", gone(f"{CHECKPOINT}/{SHARDED}"), 900, f"{SHARDED} is missing"),
    ("a shard is empty", empty(f"{CHECKPOINT}/{SHARDED}"), 900, f"{SHARDED} is empty"),
    ("a shard is cut off in its data", cut(f"{CHECKPOINT}/{SHARDED}", 0.9), 900, f"{SHARDED} is cut off"),
    ("a shard is cut off in its header", cut(f"{CHECKPOINT}/{SHARDED}", 0.2), 900, f"{SHARDED} is cut off"),
    ("a shard is a hole", hole(f"{CHECKPOINT}/{SHARDED}"), 900, "hole"),
    ("a shard is a link", link(f"{CHECKPOINT}/{SHARDED}"), 900, "links are not followed"),
    ("no index", gone(f"{CHECKPOINT}/model.safetensors.index.json"), 900, "the index of its weights is missing"),
    ("a torn index", cut(f"{CHECKPOINT}/model.safetensors.index.json"), 900, "index.json is not valid JSON"),
    ("an index of nothing", index('{"weight_map": {}}'), 900, "no shards"),
    ("an index that leads out", index('{"weight_map": {"a": "../../x"}}'), 900,
     "not in its own folder"),
    ("an index of numbers", index('{"weight_map": {"a": 1}}'), 900,
     "not in its own folder"),
    ("no optimizer", gone(f"{CHECKPOINT}/optimizer.pt"), 900, "(optimizer.pt) is missing"),
    ("an empty optimizer", empty(f"{CHECKPOINT}/optimizer.pt"), 900, "optimizer.pt is empty"),
    ("a torn optimizer", cut(f"{CHECKPOINT}/optimizer.pt"), 900, "optimizer.pt is cut off"),
    ("no scheduler, which others have", gone(f"{CHECKPOINT}/scheduler.pt"), 900, "scheduler.pt is missing"),
    ("an empty scheduler", empty(f"{CHECKPOINT}/scheduler.pt"), 900, "scheduler.pt is empty"),
    ("a rank's random state is missing", gone(f"{CHECKPOINT}/rng_state_0.pth"), 900, "rng_state_0.pth is missing"),
    ("a rank's random state is empty", empty(f"{CHECKPOINT}/rng_state_1.pth"), 900, "rng_state_1.pth is empty"),
    ("an empty folder", lambda root: [path.unlink() for path in (root / CHECKPOINT).iterdir()], 900, "is empty"),
    ("the folder is a link", link(CHECKPOINT), 900, "links are not followed"),
    ("the folder is still being written", lambda root: (root / CHECKPOINT).rename(root / "tmp-checkpoint-1000"), 900,
     "a save that was not finished"),
]  # fmt: skip


@pytest.mark.parametrize("damage", TRANSFORMERS, ids=lambda damage: damage[0])
def test_transformers_folders_prove_themselves(root: Path, damage: Damage) -> None:
    made.transformers(root, 900, shards=3, ranks=2)
    made.transformers(root, 1000, shards=3, ranks=2)
    chosen(root, "transformers", CHECKPOINT)
    check(root, "transformers", damage)


def test_transformers_without_a_scheduler_anywhere(root: Path) -> None:
    """A run may have none; one that is missing where others have it is lost."""
    for step in (800, 900, 1000):
        (made.transformers(root, step) / "scheduler.pt").unlink()
    chosen(root, "transformers", CHECKPOINT)
    made.put(root / "checkpoint-800" / "scheduler.pt", made.torch_archive())
    assert look(root, "auto").found == Checkpoint("/ck/checkpoint-800", "transformers", 800)


def test_transformers_shards_of_the_older_kind(root: Path) -> None:
    folder = made.transformers(root, 1000, shards=3)
    for file in sorted(folder.glob("model-*")):
        file.rename(folder / f"pytorch_{file.stem}.bin")
    map_of = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    (folder / "model.safetensors.index.json").unlink()
    files = {name: f"pytorch_{Path(file).stem}.bin" for name, file in map_of.items()}
    made.put(folder / "pytorch_model.bin.index.json", json.dumps({"metadata": {}, "weight_map": files}))
    chosen(root, "transformers", CHECKPOINT)
    (folder / "pytorch_model-00003-of-00003.bin").unlink()
    assert "pytorch_model-00003-of-00003.bin is missing" in look(root, "transformers").rejected[0].reason


@pytest.mark.parametrize("file", ["pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin"])
def test_transformers_weights_in_one_file_of_every_name(root: Path, file: str) -> None:
    folder = made.transformers(root, 1000)
    (folder / "model.safetensors").rename(folder / file)
    chosen(root, "transformers", CHECKPOINT)
    (folder / file).unlink()
    assert "no weights" in look(root, "transformers").rejected[0].reason


INNER: list[tuple[Callable[..., Path], Damage]] = [
    (made.fully_sharded, ("weights", gone(f"{CHECKPOINT}/pytorch_model_fsdp_0/__1_0.distcp"), 900,
                          "pytorch_model_fsdp_0/__1_0.distcp is missing")),
    (made.fully_sharded, ("the weights' folder", gone(f"{CHECKPOINT}/pytorch_model_fsdp_0"), 900, "no weights")),
    (made.fully_sharded, ("optimizer", gone(f"{CHECKPOINT}/optimizer_0/.metadata"), 900, ".metadata is missing")),
    (made.with_deepspeed, ("a shard", empty(f"{CHECKPOINT}/{TAG}/zero_pp_rank_1_mp_rank_00_model_states.pt"), 900,
                           "zero_pp_rank_1_mp_rank_00_model_states.pt is empty")),
    (made.with_deepspeed, ("the tag", gone(f"{CHECKPOINT}/{TAG}"), 900, "latest names no folder")),
    (made.with_deepspeed, ("the pointer", text(f"{CHECKPOINT}/latest", "../checkpoint-900/global_step900"), 900,
                           "latest names no folder")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "damage"), INNER, ids=lambda part: part[0] if isinstance(part, tuple) else part.__name__
)
def test_transformers_over_fsdp_and_deepspeed(root: Path, build: Callable[..., Path], damage: Damage) -> None:
    build(root, 900)
    build(root, 1000)
    chosen(root, "transformers", CHECKPOINT)
    check(root, "transformers", damage)


# The marker

STEP = "step_1000"
MARKER = f"{STEP}/HETEROFLEET_COMPLETE.json"


def entry(**members: object) -> str:
    whole = {"step": 1000, "name": STEP, "files": [{"path": "weights.bin", "size": len(made.TENSOR)}]}
    return json.dumps({**whole, **members})


MARKED: list[Damage] = [
    ("a file is missing", gone(f"{STEP}/weights.bin"), 900, "weights.bin is missing"),
    ("a file below is missing", gone(f"{STEP}/optim/rank0.bin"), 900, "optim/rank0.bin is missing"),
    ("a folder below is a link", link(f"{STEP}/optim"), 900, "links are not followed"),
    ("a file is too short", cut(f"{STEP}/weights.bin"), 900, "weights.bin has 32 bytes"),
    ("a file is too long", text(f"{STEP}/weights.bin", "x" * 65), 900, "weights.bin has 65 bytes"),
    ("a torn marker", cut(MARKER), 900, "not valid JSON"),
    ("an empty marker", empty(MARKER), 900, "is empty"),
    ("a marker of no object", text(MARKER, "[]"), 900, "no object"),
    ("no step", text(MARKER, entry(step=None)), 900, "no step"),
    ("a negative step", text(MARKER, entry(step=-5)), 900, "no step"),
    ("a step with a fraction", text(MARKER, entry(step=1000.0)), 900, "no step"),
    ("a step as text", text(MARKER, entry(step="1000")), 900, "no step"),
    ("no name", text(MARKER, entry(name=None)), 900, "no name"),
    ("no files", text(MARKER, entry(files=[])), 900, "names no files"),
    ("a file without a size", text(MARKER, entry(files=[{"path": "weights.bin"}])), 900, "without path and size"),
    ("a file by its name", text(MARKER, entry(files=["weights.bin"])), 900, "without path and size"),
    ("a path that leads out", text(MARKER, entry(files=[{"path": "../x", "size": 1}])), 900, "outside its own folder"),
    ("a path from the root", text(MARKER, entry(files=[{"path": "/etc/passwd", "size": 1}])), 900, "outside"),
    ("a number without end", text(MARKER, '{"step": ' + "9" * 500_000 + "}"), 900, "no step"),
]


@pytest.mark.parametrize("damage", MARKED, ids=lambda damage: damage[0])
def test_a_marker_names_files_with_sizes(root: Path, damage: Damage) -> None:
    made.marked(root, 900)
    made.marked(root, 1000)
    chosen(root, "marker", STEP)
    check(root, "marker", damage)
