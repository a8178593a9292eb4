"""DeepSpeed: a file ``latest`` beside folders (tags), of which it names one.

``latest`` is written when every rank has saved (``deepspeed/runtime/engine.py``). In a tag are

- ``mp_rank_MM_model_states.pt`` for every model-parallel rank, or with ZeRO-3
  ``zero_pp_rank_N_mp_rank_MM_model_states.pt`` for every data-parallel one, too;
- ``[bf16_]zero_pp_rank_N_mp_rank_MM_optim_states.pt`` for each of both;
- of a pipeline ``layer_LL-model_MM-model_states.pt``;
- of a mixture of experts ``layer_L_expert_E_mp_rank_MM_model_states.pt`` and
  ``expp_rank_N_mp_rank_MM_optim_states.pt``.

A folder that several ranks wrote is whole when the ranks leave no gap and model and optimizer shards are of the same
ranks: of the same data- and model-parallel ones with ZeRO-3, of the same model-parallel ones else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Optional

from runtime.agent.checkpoints.files import whole
from runtime.agent.checkpoints.folder import Folder
from runtime.agent.checkpoints.names import first_gap, is_plain, said, step_of, unfinished
from runtime.agent.checkpoints.verdict import Incomplete, Pointed

NAME = "deepspeed"
LATEST = "latest"

_MODEL = re.compile(r"mp_rank_([0-9]{2,6})_model_states\.pt")
_ZERO_MODEL = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{2,6})_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?(?:zero_pp|expp)_rank_([0-9]{1,6})_mp_rank_([0-9]{2,6})_optim_states\.pt")
_LAYER = re.compile(r"(layer_[0-9]{2,6})-model_([0-9]{2,6})-model_states\.pt")
SHARD = re.compile(r".*_(?:model|optim)_states\.pt")

Ranks = dict[tuple[int, ...], str]


def look(root: Folder) -> Pointed:
    """What ``latest`` names; when that is incomplete, the next lower tag that is not; nothing when it names nothing."""
    if root.kinds.get(LATEST) not in ("file", "link"):
        return Pointed()
    tags = {
        name: step for name in root.folders() for step in [step_of(name)] if step is not None and _is_tag(root, name)
    }
    claimed = set(tags)
    rejected: dict[str, str] = {}
    try:
        latest = root.line(LATEST)
        if not is_plain(latest):
            raise Incomplete("is not the plain name of something beside it")
        if root.kinds.get(latest) != "folder":
            raise Incomplete(f"names {said(latest)}, and there is no such folder")
        if not tags and not _is_tag(root, latest) and root.sub(latest).kinds:
            return Pointed()  # a pointer of somebody else
        claimed.add(latest)
        if unfinished(latest):
            raise Incomplete("names a save that was not finished")
    except Incomplete as lack:
        return Pointed(rejected={LATEST: str(lack)} if claimed else {}, claimed=frozenset(claimed))
    start = step_of(latest)
    newer = [name for name in tags if start is not None and tags[name] > start]
    for name in sorted(newer, key=tags.__getitem__, reverse=True):
        rejected[name] = f"{LATEST} names {said(latest)}: not all ranks had saved this one"
    lower = [name for name in tags if start is not None and tags[name] < start]
    for name in (latest, *sorted(lower, key=tags.__getitem__, reverse=True)):
        missing = _lack(root, name)
        if missing is None:
            return Pointed(name, step_of(name), rejected, frozenset(claimed))
        rejected[name] = missing
    return Pointed(rejected=rejected, claimed=frozenset(claimed))


def nested(folder: Folder) -> bool:
    """Whether a folder of another framework keeps its training state the DeepSpeed way."""
    return folder.kinds.get(LATEST) == "file"


def judge_nested(folder: Folder) -> None:
    """``latest`` in the folder names a complete tag in it. Raises Incomplete."""
    tag = folder.line(LATEST)
    if not is_plain(tag) or folder.kinds.get(tag) != "folder":
        raise Incomplete(f"{LATEST} names no folder beside it")
    judge(folder.sub(tag), tag)


def judge(folder: Folder, words: str) -> None:
    """One tag. Raises Incomplete."""
    names = folder.kinds
    models, zero_models, optimizers = _ranks(_MODEL, names), _ranks(_ZERO_MODEL, names), _ranks(_OPTIMIZER, names)
    shards = zero_models or models
    for what, ranks in (("model", shards), ("optimizer", optimizers)):
        if not ranks:
            raise Incomplete(f"{words} has no {what} shard" if names else f"{words} is empty")
        gap = first_gap(ranks)
        if gap is not None:
            raise Incomplete(f"the {what} shard of {_words(gap)} is missing")
    wanted = set(optimizers) if zero_models else {(rank[-1],) for rank in optimizers}
    if set(shards) != wanted:
        odd = min(set(shards) ^ wanted)
        other = "optimizer" if odd in shards else "model"
        raise Incomplete(
            f"{len(shards)} model and {len(optimizers)} optimizer shards do not fit: {_words(odd)} has no {other} shard"
        )
    _judge_layers(names)
    for name in sorted(name for name in names if SHARD.fullmatch(name)):
        whole(folder, name)


def _lack(root: Folder, name: str) -> Optional[str]:
    try:
        inside = root.sub(name)
        judge(inside, "it")
        inside.settle()
        root.settle()
    except Incomplete as lack:
        return str(lack)
    return None


def _is_tag(root: Folder, name: str) -> bool:
    try:
        return any(SHARD.fullmatch(inner) for inner in root.sub(name).kinds)
    except Incomplete:
        return False


def _ranks(pattern: re.Pattern[str], names: dict[str, str]) -> Ranks:
    found = ((pattern.fullmatch(name), name) for name in names)
    return {tuple(int(number) for number in match.groups()): name for match, name in found if match}


def _judge_layers(names: dict[str, str]) -> None:
    layers: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name in names:
        found = _LAYER.fullmatch(name)
        if found:
            layers[found[1]].add((int(found[2]),))
    everywhere = set().union(*layers.values()) if layers else set()
    for layer, ranks in sorted(layers.items()):
        if ranks != everywhere:
            raise Incomplete(f"the shard of {layer} of model rank {min(everywhere - ranks)[0]} is missing")


def _words(rank: tuple[int, ...]) -> str:
    return f"data rank {rank[0]}, model rank {rank[1]}" if len(rank) == 2 else f"model rank {rank[0]}"
