"""Hugging Face Transformers: ``checkpoint-500`` as its Trainer writes it.

``trainer_state.json`` comes last (``src/transformers/trainer.py``), with ``global_step``. Weights are one file, or an
index with ``weight_map`` and the shards that it names; an adapter's own; FSDP's as accelerate writes them
(``pytorch_model_fsdp.bin``, or the folder ``pytorch_model_fsdp_0``); or with DeepSpeed a tag inside. The optimizer is
``optimizer.pt``, for FSDP ``optimizer.bin`` or the folder ``optimizer_0``, for DeepSpeed the tag. ``scheduler.pt`` and
``rng_state.pth``, or ``rng_state_N.pth`` for each rank, lie beside it.
"""

from __future__ import annotations

import re
from typing import Any, Callable

from runtime.agent.checkpoints import deepspeed, pytorch
from runtime.agent.checkpoints.files import is_count, read_json, whole
from runtime.agent.checkpoints.folder import Folder
from runtime.agent.checkpoints.names import first_gap, is_plain
from runtime.agent.checkpoints.verdict import Incomplete

NAME = "transformers"
STATE = "trainer_state.json"
SCHEDULER = "scheduler.pt"
CHECKPOINT = re.compile(r"checkpoint-[0-9]+")

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin",
            "pytorch_model_fsdp.bin")  # fmt: skip
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
_BESIDE = (SCHEDULER, "scaler.pt", "rng_state.pth", "training_args.bin")
_SHARD = re.compile(r"(?:model|pytorch_model)-[0-9]{5}-of-[0-9]{5}\.(?:safetensors|bin)")
_FSDP_WEIGHTS, _FSDP_OPTIMIZER = re.compile(r"pytorch_model_fsdp_[0-9]+"), re.compile(r"optimizer_[0-9]+")
_RANK_STATE = re.compile(r"rng_state_([0-9]{1,6})\.pth")


def recognises(folder: Folder) -> bool:
    return STATE in folder.kinds or any(
        name in _INDEXES or name in _WEIGHTS or _SHARD.fullmatch(name) for name in folder.kinds
    )


def judge(folder: Folder, step: int, others_have: Callable[[str], bool]) -> None:
    """Raises Incomplete. ``others_have(name)``: whether a checkpoint beside this one holds such a file."""
    names = folder.kinds
    if not names:
        raise Incomplete("is empty")
    if STATE not in names:
        raise Incomplete(f"{STATE} is missing")
    said = _global_step(folder)
    if said != step:
        raise Incomplete(f"{STATE} says step {said}, the folder's name says {step}")
    for name in _BESIDE:
        if name in names:
            whole(folder, name)
    ranks = {(int(found[1]),): name for name in names for found in [_RANK_STATE.fullmatch(name)] if found}
    gap = first_gap(ranks) if ranks else None
    if gap is not None:
        raise Incomplete(f"rng_state_{gap[0]}.pth is missing")
    for name in sorted(ranks.values()):
        whole(folder, name)
    if deepspeed.nested(folder):
        _weights(folder)  # where they were gathered, too; training goes on from the tag
        deepspeed.judge_nested(folder)
        return
    if not _weights(folder):
        raise Incomplete("there are no weights in it")
    if not _whole_of(folder, _OPTIMIZERS, _FSDP_OPTIMIZER):
        raise Incomplete(f"the optimizer's state ({_OPTIMIZERS[0]}) is missing")
    if SCHEDULER not in names and others_have(SCHEDULER):
        raise Incomplete(f"{SCHEDULER} is missing, and other checkpoints have it")


def _global_step(folder: Folder) -> int:
    state = read_json(folder, STATE, object_pairs_hook=_only_step)
    step = state.get("global_step") if isinstance(state, dict) else None
    if not isinstance(step, int) or not is_count(step):
        raise Incomplete(f"{STATE} has no global_step")
    return step


def _only_step(pairs: list[tuple[str, Any]]) -> Any:
    """Of each object no more than that: the history of a long run is large."""
    return {name: value for name, value in pairs if name == "global_step"}


def _weights(folder: Folder) -> bool:
    """Whether there are any; every form that is there has to be whole."""
    indexed = False
    for name in _INDEXES:
        if name in folder.kinds:
            _sharded(folder, name)
            indexed = True
    if not indexed and any(_SHARD.fullmatch(name) for name in folder.kinds):
        raise Incomplete("the index of its weights is missing: nothing says which shards there have to be")
    return _whole_of(folder, _WEIGHTS, _FSDP_WEIGHTS) or indexed


def _sharded(folder: Folder, index: str) -> None:
    value = read_json(folder, index)
    shards = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise Incomplete(f"{index} names no shards")
    for shard in sorted({shard if isinstance(shard, str) else "" for shard in shards.values()}):
        if not is_plain(shard):
            raise Incomplete(f"{index} names a shard that is not in its own folder")
        whole(folder, shard)


def _whole_of(folder: Folder, files: tuple[str, ...], inner: re.Pattern[str]) -> bool:
    """Whether there is one of these files, or a distributed checkpoint in a folder of that name."""
    found = False
    for name, kind in folder.kinds.items():
        if name in files:
            whole(folder, name)
            found = True
        elif kind == "folder" and inner.fullmatch(name):
            pytorch.judge(folder.sub(name))
            found = True
    return found
