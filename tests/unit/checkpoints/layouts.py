"""Checkpoints as the frameworks lay them out, byte for byte as far as a reader can tell, without the frameworks.

Archives are those of ``torch.save`` (a stored zip with ``data.pkl``, ``version`` and one member a tensor), weights are
safetensors with their header, ``.metadata`` is a pickle of objects whose classes have the names that torch gives them.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TENSOR = bytes(range(64))


def torch_archive(name: str = "archive", **state: Any) -> bytes:
    """What ``torch.save(state, file)`` leaves."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{name}/data.pkl", pickle.dumps(state, protocol=2))
        archive.writestr(f"{name}/byteorder", "little")
        archive.writestr(f"{name}/data/0", TENSOR)
        archive.writestr(f"{name}/version", "3\n")
    return buffer.getvalue()


def safetensors() -> bytes:
    header = {"__metadata__": {"format": "pt"}}
    header["lm_head.weight"] = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, len(TENSOR)]}  # type: ignore[dict-item]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + TENSOR


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


# Megatron-LM


def megatron(root: Path, step: int, ranks: tuple[str, ...] = ("00", "01"), *, optimizer: bool = True) -> Path:
    """One folder a rank: ``00`` without pipeline, ``00_001`` with."""
    folder = root / f"iter_{step:07d}"
    for rank in ranks:
        put(folder / f"mp_rank_{rank}" / "model_optim_rng.pt", torch_archive("model_optim_rng", iteration=step))
        if optimizer:
            put(folder / f"mp_rank_{rank}" / "distrib_optim.pt", torch_archive("distrib_optim"))
    return folder


def megatron_distributed(root: Path, step: int) -> Path:
    """``--ckpt-format torch_dist``."""
    folder = root / f"iter_{step:07d}"
    config = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    put(folder / "metadata.json", json.dumps({**config, "common_backend_version": 1}))
    put(folder / "common.pt", torch_archive("common", iteration=step))
    distributed(folder)
    return folder


def tracker(root: Path, text: str) -> None:
    put(root / "latest_checkpointed_iteration.txt", text)


# DeepSpeed


def deepspeed(root: Path, step: int, *, data: int = 2, model: int = 1, stage: int = 2, prefix: str = "bf16_") -> Path:
    """One tag of ``data`` x ``model`` ranks."""
    folder = root / f"global_step{step}"
    for rank in range(model):
        if stage < 3:
            put(folder / f"mp_rank_{rank:02d}_model_states.pt", torch_archive(dp_world_size=data))
        for replica in range(data):
            name = f"zero_pp_rank_{replica}_mp_rank_{rank:02d}"
            if stage == 3:
                put(folder / f"{name}_model_states.pt", torch_archive(dp_world_size=data))
            put(folder / f"{prefix}{name}_optim_states.pt", torch_archive(ds_version="0.16"))
    put(root / "zero_to_fp32.py", "#!/usr/bin/env python\n")
    return folder


def pipeline(root: Path, step: int, *, layers: int = 3, model: int = 2) -> Path:
    folder = deepspeed(root, step, data=1, model=model)
    for layer in range(layers):
        for rank in range(model):
            put(folder / f"layer_{layer:02d}-model_{rank:02d}-model_states.pt", torch_archive())
    return folder


def experts(root: Path, step: int) -> Path:
    folder = root / f"global_step{step}"
    put(folder / "mp_rank_00_model_states.pt", torch_archive())
    for expert in range(2):
        put(folder / f"layer_0_expert_{expert}_mp_rank_00_model_states.pt", torch_archive())
        put(folder / f"expp_rank_{expert}_mp_rank_00_optim_states.pt", torch_archive())
    return folder


def latest(root: Path, text: str) -> None:
    put(root / "latest", text)


# TensorFlow


def tensorflow(root: Path, step: int, *, shards: int = 2, prefix: str = "model.ckpt") -> str:
    name = f"{prefix}-{step}"
    magic = bytes.fromhex("57fb808b247547db")  # an SSTable's footer ends so
    put(root / f"{name}.index", b"\0" * 40 + magic)
    for shard in range(shards):
        put(root / f"{name}.data-{shard:05d}-of-{shards:05d}", TENSOR)
    return name


def state(root: Path, newest: str, *others: str) -> None:
    lines = [f'model_checkpoint_path: "{newest}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in (*others, newest)]
    lines += ["all_model_checkpoint_timestamps: 1732924800.25" for _ in (*others, newest)]
    put(root / "checkpoint", "\n".join([*lines, "last_preserved_timestamp: 1732924799.5"]) + "\n")


# PyTorch Distributed Checkpoint


def distributed(folder: Path, ranks: int = 2, protocol: int = 4) -> Path:
    """``torch.distributed.checkpoint.save``: each rank's file with its pieces, and ``.metadata`` for all of them."""
    for rank in range(ranks):
        put(folder / f"__{rank}_0.distcp", torch_archive() * 2)
    put(folder / ".metadata", metadata([f"__{rank}_0.distcp" for rank in range(ranks)], protocol))
    return folder


def metadata(files: list[str], protocol: int = 4, *, tensors: int = 3) -> bytes:
    """The pickle: ``tensors`` pieces in each file, one after the other."""
    length = len(torch_archive()) * 2 // tensors
    with _torch() as torch:
        made = torch.Metadata(
            state_dict_metadata={
                f"layers.{number}.weight": torch.TensorStorageMetadata(
                    properties=torch.TensorProperties(dtype=torch.float32),
                    size=torch.Size([2 * tensors, 4]),
                    chunks=[torch.ChunkStorageMetadata(offsets=torch.Size([0, 0]), sizes=torch.Size([2, 4]))],
                )
                for number in range(tensors)
            },
            planner_data={"model.layers": ("model", "layers", 0, 2.5, True, None, b"\0")},
            storage_data={
                torch.MetadataIndex(fqn=f"layers.{number}.weight", offset=torch.Size([0, 0]), index=place):
                    torch.StorageInfo(relative_path=file, offset=number * length, length=length)
                for place, file in enumerate(files)
                for number in range(tensors)
            },
            storage_meta=torch.StorageMeta(checkpoint_id="/ck", save_id="b0a5", load_id=None, modules=[]),
        )  # fmt: skip
        return pickle.dumps(made, protocol=protocol)


@contextlib.contextmanager
def _torch() -> Iterator[types.SimpleNamespace]:
    """Classes that pickle like torch's: same modules, same names, attributes set by a dict."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"}
    made: dict[str, Any] = {}

    def module(name: str) -> types.ModuleType:
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
        return sys.modules[name]

    def shape(where: str, name: str, key: str | None = None) -> None:
        kind = type(name, (_Attributes,), {"__module__": where, "__qualname__": name})
        setattr(module(where), name, kind)
        made[key or name] = kind

    for parent in ("torch", "torch.distributed", "torch.distributed.checkpoint"):
        module(parent)
    for name in ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "MetadataIndex", "StorageMeta",
                 "TensorProperties"):  # fmt: skip
        shape("torch.distributed.checkpoint.metadata", name)
    shape("torch.distributed.checkpoint.filesystem", "_StorageInfo", "StorageInfo")
    size = type("Size", (tuple,), {"__module__": "torch", "__reduce__": lambda self: (size, (tuple(self),))})
    dtype = type("dtype", (), {"__module__": "torch", "__reduce__": lambda self: "float32"})
    made["Size"], made["float32"] = size, dtype()
    setattr(sys.modules["torch"], "Size", size)  # noqa: B010 (a module that is none of ours)
    setattr(sys.modules["torch"], "float32", made["float32"])  # noqa: B010
    try:
        yield types.SimpleNamespace(**made)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
            del sys.modules[name]
        sys.modules.update(before)


class _Attributes:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


# Transformers


def transformers(root: Path, step: int, *, shards: int = 1, ranks: int = 1, name: str = "") -> Path:
    folder = root / (name or f"checkpoint-{step}")
    if shards == 1:
        put(folder / "model.safetensors", safetensors())
    else:
        files = [f"model-{number + 1:05d}-of-{shards:05d}.safetensors" for number in range(shards)]
        for file in files:
            put(folder / file, safetensors())
        weights = {f"model.layers.{number}.weight": file for number, file in enumerate(files)}
        put(folder / "model.safetensors.index.json",
            json.dumps({"metadata": {"total_size": 64 * shards}, "weight_map": weights}))  # fmt: skip
    beside(folder, step, ranks=ranks)
    put(folder / "optimizer.pt", torch_archive("optimizer", state={}, param_groups=[]))
    return folder


def beside(folder: Path, step: int, *, ranks: int = 1) -> None:
    """What the Trainer writes beside weights and optimizer."""
    put(folder / "config.json", '{"model_type": "llama"}')
    put(folder / "scheduler.pt", torch_archive("scheduler", last_epoch=step))
    put(folder / "training_args.bin", torch_archive("training_args"))
    for rank in range(ranks):
        put(folder / ("rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"), torch_archive("rng_state"))
    history = [{"epoch": 0.1, "grad_norm": float("nan"), "learning_rate": 5e-05, "loss": 2.5, "step": 10}]
    state = {"best_metric": None, "epoch": 0.5, "eval_steps": 500, "global_step": step, "is_world_process_zero": True,
             "log_history": history, "max_steps": 90000, "num_train_epochs": 3, "total_flos": 1.2e17,
             "stateful_callbacks": {"TrainerControl": {"args": {"should_save": True}, "attributes": {}}}}  # fmt: skip
    put(folder / "trainer_state.json", json.dumps(state, indent=2, sort_keys=True) + "\n")


def fully_sharded(root: Path, step: int) -> Path:
    """FSDP with a sharded state: two distributed checkpoints inside."""
    folder = root / f"checkpoint-{step}"
    beside(folder, step, ranks=2)
    distributed(folder / "pytorch_model_fsdp_0")
    distributed(folder / "optimizer_0")
    return folder


def with_deepspeed(root: Path, step: int) -> Path:
    folder = root / f"checkpoint-{step}"
    beside(folder, step, ranks=2)
    deepspeed(folder, step, stage=3)
    latest(folder, f"global_step{step}")
    return folder


# The marker


def marked(root: Path, step: int, *, name: str = "", files: dict[str, bytes] | None = None) -> Path:
    folder = root / (name or f"step_{step}")
    contents = files if files is not None else {"weights.bin": TENSOR, "optim/rank0.bin": TENSOR * 2}
    for path, data in contents.items():
        put(folder / path, data)
    entries = [{"path": path, "size": len(data)} for path, data in contents.items()]
    put(folder / "HETEROFLEET_COMPLETE.json", json.dumps({"step": step, "name": folder.name, "files": entries}))
    return folder
