"""Megatron-LM: a tracker file beside folders of iterations.

``latest_checkpointed_iteration.txt`` holds a number, or ``release`` for weights without a training state; it is
written when every rank has saved (``megatron/training/checkpointing.py``). ``iter_0000100`` holds either a folder
for every model-parallel rank, ``mp_rank_TT[_PPP][_EEE]`` (tensor, pipeline, expert) with ``model_optim_rng.pt`` and,
with the distributed optimizer, ``distrib_optim.pt``; or a distributed checkpoint: ``.metadata`` and its files, with
``metadata.json`` and ``common.pt`` where megatron.core wrote it.
"""

from __future__ import annotations

import re
from typing import Optional

from runtime.agent.checkpoints import pytorch
from runtime.agent.checkpoints.files import read_json, whole
from runtime.agent.checkpoints.folder import Folder
from runtime.agent.checkpoints.names import first_gap, shown
from runtime.agent.checkpoints.verdict import Incomplete, Pointed

NAME = "megatron"
TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
RANK = re.compile(r"mp_rank_([0-9]{2,6})(?:_([0-9]{3,6}))?(?:_([0-9]{3,6}))?")

_NUMBER = re.compile(r"[0-9]{1,18}")
_ITERATION = re.compile(r"iter_([0-9]{7,18})")
_MODEL = ("model_optim_rng.pt", "model_rng.pt")
_OPTIMIZER = ("distrib_optim.pt", "optim.pt")
_CONFIG, _COMMON = "metadata.json", "common.pt"


def look(root: Folder) -> Pointed:
    """What the tracker names, and nothing else: no other iteration is known to have been saved by all ranks."""
    if TRACKER not in root.kinds:
        return Pointed()
    iterations = {name: int(found[1]) for name in root.folders() for found in [_ITERATION.fullmatch(name)] if found}
    claimed = frozenset([*iterations, RELEASE])
    try:
        step, name = _tracked(root.line(TRACKER))
    except Incomplete as lack:
        return Pointed(rejected={TRACKER: str(lack)}, claimed=claimed)
    newer = sorted(
        (other for other in iterations if iterations[other] > step), key=iterations.__getitem__, reverse=True
    )
    rejected = dict.fromkeys(newer, f"{TRACKER} names {name}: not all ranks had saved this one")
    if name not in root.kinds:
        rejected[TRACKER] = f"names {name}, and there is no such folder"
        return Pointed(rejected=rejected, claimed=claimed)
    try:
        inside = root.sub(name)
        _judge(inside)
        inside.settle()
        root.settle()
    except Incomplete as lack:
        return Pointed(rejected={**rejected, name: str(lack)}, claimed=claimed)
    return Pointed(name, step, rejected, claimed)


def _tracked(text: str) -> tuple[int, str]:
    if text == RELEASE:
        return 0, RELEASE
    if _NUMBER.fullmatch(text) is None:
        raise Incomplete(f"holds neither a number nor {RELEASE!r}")
    return int(text), f"iter_{int(text):07d}"


def _judge(folder: Folder) -> None:
    ranks = {name: _rank(name) for name in folder.kinds if RANK.fullmatch(name)}
    if ranks:
        _judge_ranks(folder, ranks)
    elif pytorch.METADATA in folder.kinds or _CONFIG in folder.kinds:
        _judge_distributed(folder)
    else:
        raise Incomplete("there is neither a rank's folder (mp_rank_00) nor a distributed checkpoint in it")


def _rank(name: str) -> tuple[int, ...]:
    found = RANK.fullmatch(name)
    assert found is not None
    return tuple(int(number) for number in found.groups() if number is not None)


def _judge_ranks(folder: Folder, ranks: dict[str, tuple[int, ...]]) -> None:
    if len({len(rank) for rank in ranks.values()}) != 1:
        raise Incomplete("its ranks' folders are those of several layouts")
    gap = first_gap(ranks.values())
    if gap is not None:
        raise Incomplete(f"mp_rank_{gap[0]:02d}{''.join(f'_{number:03d}' for number in gap[1:])} is missing")
    optimizers = {name: _one_of(folder.sub(name), _OPTIMIZER) for name in ranks}
    for name in sorted(ranks):
        inside = folder.sub(name)
        model, optimizer = _one_of(inside, _MODEL), optimizers[name]
        if model is None:
            raise Incomplete(f"{name}/{_MODEL[0]} is missing")
        whole(folder, f"{name}/{model}")
        if optimizer is not None:
            whole(folder, f"{name}/{optimizer}")
        elif any(optimizers.values()):
            raise Incomplete(f"{name}/{_OPTIMIZER[0]} is missing, and other ranks have one")


def _one_of(folder: Folder, names: tuple[str, ...]) -> Optional[str]:
    return next((name for name in names if name in folder.kinds), None)


def _judge_distributed(folder: Folder) -> None:
    if _CONFIG in folder.kinds:
        config = read_json(folder, _CONFIG)
        backend = config.get("sharded_backend") if isinstance(config, dict) else None
        if backend not in ("torch_dist", "fsdp_dtensor", "torch_dcp"):
            raise Incomplete(f"nothing proves a distributed checkpoint of the kind {shown(str(backend))} complete")
        if config.get("common_backend") == "torch":
            whole(folder, _COMMON)
    pytorch.judge(folder)
