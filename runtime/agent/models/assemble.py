"""From the files of one folder to the models in it. Pure: the files were looked at before.

A folder with ``config.json``, an index of shards or one set of weights with a generic name is one model, named after
the folder; any other weights file is a model by itself. A gguf file always is. Of several sets in a folder that is a
model the one that engines load counts: safetensors before PyTorch, the indexed one first, a whole one before all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple, Optional

from runtime.agent.models.integrity import COMPLETE, INCOMPLETE, UNKNOWN, Verdict
from runtime.agent.models.names import (
    ADAPTER,
    CONFIG,
    INDEX,
    PART,
    PIPELINE,
    hub_name,
    is_generic,
    kind_of,
    part_of,
    parts_of_set,
    set_of,
)
from runtime.protocol.engines import FORMATS, GGUF, ONNX, PYTORCH, SAFETENSORS, TENSORRT

NOT_YET = Verdict(UNKNOWN, "was not looked into yet")
NAMED_AT_MOST = 5
"""Bad files that a reason names; of more it gives the number."""

_ORDER = (SAFETENSORS, PYTORCH, TENSORRT, ONNX)


class File(NamedTuple):
    """One file of interest: its kind, its bytes, and the verdict on it (None: not looked into yet)."""

    kind: str
    size: int
    verdict: Optional[Verdict]


@dataclass(frozen=True)
class Model:
    """One model. ``path`` is below the root that was scanned ("" is the root itself); ``size`` in bytes."""

    name: str
    path: str
    format: str
    size: int
    source: str
    state: str
    reason: Optional[str] = None


@dataclass
class _Set:
    """Weights that are loaded together."""

    format: str
    names: list[str]
    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    indexed: bool = False

    @property
    def state(self) -> str:
        return INCOMPLETE if self.faults else UNKNOWN if self.doubts else COMPLETE


def models_in(folder: str, files: Mapping[str, File], outside: Mapping[str, int]) -> list[Model]:
    """The models of one folder (its path below the root). ``outside``: bytes of further files that were named by
    others of this folder, where they are there."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in sorted(files):
        kinds[files[name].kind].append(name)
    if ADAPTER in kinds and CONFIG not in kinds:
        return []
    sets = _sets(files, kinds, outside)
    found = [_single(folder, one, files) for one in sets if one.format == GGUF]
    rest = [one for one in sets if one.format != GGUF]
    if rest and _is_model(kinds, rest):
        found.append(_whole(folder, _chosen(rest, files), files, kinds))
    else:
        found += [_single(folder, one, files) for one in rest]
    return found + _only_parts(folder, files, kinds, sets)


def _sets(files: Mapping[str, File], kinds: Mapping[str, list[str]], outside: Mapping[str, int]) -> list[_Set]:
    found: list[_Set] = []
    taken: set[str] = set()
    for name in kinds.get(INDEX, ()):
        verdict = files[name].verdict or NOT_YET
        shards = [shard for shard, _ in verdict.needs]
        one = _Set(PYTORCH if ".bin." in name.lower() else SAFETENSORS, shards, indexed=True)
        _note(one, name, verdict)
        one.faults += [f"{shard} is missing" for shard in shards if shard not in files and shard not in outside]
        taken.update(shards)
        found.append(one)
    groups: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for kind in FORMATS:
        for name in kinds.get(kind, ()):
            if name not in taken:
                groups[(kind, *set_of(name))].append(name)
    for (kind, _, total), names in groups.items():
        one = _Set(kind, names)
        if total > 1:
            one.faults += [f"{part} is missing" for part in parts_of_set(names[0]) if part not in files]
        found.append(one)
    for one in found:
        _judge(one, files, kinds, outside)
    return found


def _judge(one: _Set, files: Mapping[str, File], kinds: Mapping[str, list[str]], outside: Mapping[str, int]) -> None:
    for name in one.names:
        if name not in files:
            continue
        verdict = files[name].verdict or NOT_YET
        _note(one, name, verdict)
        for other, least in verdict.needs:
            size = files[other].size if other in files else outside.get(other)
            if size is None:
                one.faults.append(f"{other} is missing")
            elif size < least:
                one.faults.append(f"{other} is cut off: {size} of {least} bytes")
    one.faults += [f"{name} is still being written" for name in kinds.get(PART, ()) if part_of(name) in one.names]


def _note(one: _Set, name: str, verdict: Verdict) -> None:
    if verdict.state == INCOMPLETE:
        one.faults.append(f"{name} {verdict.reason}")
    elif verdict.state == UNKNOWN:
        one.doubts.append(f"{name} {verdict.reason}")


def _is_model(kinds: Mapping[str, list[str]], sets: list[_Set]) -> bool:
    if CONFIG in kinds or PIPELINE in kinds or any(one.indexed for one in sets):
        return True
    return len(sets) == 1 and (len(sets[0].names) > 1 or is_generic(sets[0].names[0]))


def _chosen(sets: list[_Set], files: Mapping[str, File]) -> _Set:
    """The weights that an engine would load from the folder."""

    def rank(one: _Set) -> tuple[bool, int, bool, bool, int]:
        plain = any(is_generic(name) for name in one.names)
        return one.state == INCOMPLETE, _ORDER.index(one.format), not one.indexed, not plain, -_size(one, files)

    return min(sets, key=rank)


def _size(one: _Set, files: Mapping[str, File]) -> int:
    return sum(files[name].size for name in one.names if name in files)


def _whole(folder: str, one: _Set, files: Mapping[str, File], kinds: Mapping[str, list[str]]) -> Model:
    """The model that a folder is."""
    for name in kinds.get(CONFIG, ()):
        verdict = files[name].verdict or NOT_YET
        _note(one, name, verdict)
        if one.format == TENSORRT:
            one.faults += [f"{rank} is missing" for rank, _ in verdict.needs if rank not in files]
    parts = [name for name in kinds.get(PART, ()) if part_of(name) not in files and part_of(name) not in one.names]
    one.faults += [f"{name} is still being written" for name in parts]
    hub = hub_name(folder)
    if hub is not None:
        return _model(one, hub[0], folder, _size(one, files), "cache")
    return _model(one, folder, folder, _size(one, files), "scan")


def _single(folder: str, one: _Set, files: Mapping[str, File]) -> Model:
    """A file, or a set of them, that is a model by itself: named by its first part, as engines want it."""
    first = one.names[0]
    stem = set_of(first)[0].rpartition(".")[0]
    hub = hub_name(folder)
    name = f"{hub[0]}/{stem}" if hub is not None else str(PurePosixPath(folder) / stem)
    path = str(PurePosixPath(folder) / first)
    return _model(one, name, path, _size(one, files), "scan" if hub is None else "cache")


def _only_parts(
    folder: str, files: Mapping[str, File], kinds: Mapping[str, list[str]], sets: Iterable[_Set]
) -> list[Model]:
    """What is being downloaded where nothing of it is there yet under its own name."""
    if sets:
        return []
    found = []
    for name in kinds.get(PART, ()):
        base = part_of(name) or name
        one = _Set(kind_of(base) or SAFETENSORS, [name], [f"{name} is still being written"])
        found.append(_model(one, str(PurePosixPath(folder) / base.rpartition(".")[0]),
                            str(PurePosixPath(folder) / base), files[name].size, "scan"))  # fmt: skip
    return found


def _model(one: _Set, name: str, path: str, size: int, source: str) -> Model:
    words = one.faults or one.doubts
    reason = "; ".join(words[:NAMED_AT_MOST])
    if len(words) > NAMED_AT_MOST:
        reason += f"; and {len(words) - NAMED_AT_MOST} more"
    return Model(name, path, one.format, size, source, one.state, reason or None)
