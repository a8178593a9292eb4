"""Folders of models: what is found, what is whole, and what a second walk looks at."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.models import walk as walking
from runtime.agent.models.child import CANNOT_NAME, Order, found, obey, told
from runtime.agent.models.memory import Memory
from runtime.agent.models.walk import Budget, Walk, Walked
from tests import model_files as files

LATER_NS = 10_000_000_000
"""Files that a test has just made are settled by then."""


def walk(
    root: Path, memory: Memory | None = None, budget: Budget | None = None, mounts: tuple[str, ...] = ()
) -> Walked:
    return Walk(str(root), memory or Memory(), mounts, budget, now_ns=lambda: time.time_ns() + LATER_NS).run()


def models(walked: Walked) -> dict[str, tuple[str, str, str | None]]:
    """Path -> format, state, reason; no path twice."""
    rows = list(found(walked))
    assert len({(row.path, row.format) for row in rows}) == len(rows)
    return {row.path: (row.format, row.state, row.reason) for row in rows}


def put(path: Path, data: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data or files.safetensors())
    return path


@pytest.mark.case("FC-038")
def test_links_lead_nowhere_and_hide_nothing(tmp_path: Path) -> None:
    put(tmp_path / "a/model.safetensors")
    put(tmp_path / "z/model.safetensors")
    (tmp_path / "a/loop").symlink_to("..")
    (tmp_path / "a/self").symlink_to(".")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "broken.safetensors").symlink_to("nowhere.safetensors")
    (tmp_path / "etc").symlink_to("/etc")
    (tmp_path / "shadow.safetensors").symlink_to("/etc/shadow")
    walked = walk(tmp_path)
    assert models(walked) == {"a": ("safetensors", "complete", None), "z": ("safetensors", "complete", None)}
    assert walked.looked.folders == 3
    assert walked.problems == {}


@pytest.mark.case("FC-039")
def test_files_that_are_cut_off_are_incomplete(tmp_path: Path) -> None:
    whole = files.safetensors()
    for name, data in {"whole": whole, "short": whole[:-1], "seven": whole[:7], "long": b"\xff" * 8 + b"{}"}.items():
        put(tmp_path / name / "model.safetensors", data)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/model.safetensors").touch()
    states = {path: state for path, (_, state, _) in models(walk(tmp_path)).items()}
    assert states == {name: "complete" if name == "whole" else "incomplete"
                      for name in ("whole", "short", "seven", "long", "empty")}  # fmt: skip


@pytest.mark.case("FC-040")
def test_a_missing_and_a_torn_shard_are_named(tmp_path: Path) -> None:
    files.sharded(tmp_path / "gap", 3, missing=(2,))
    torn = files.sharded(tmp_path / "torn", 3)[2]
    torn.write_bytes(files.safetensors()[:-3])
    files.sharded(tmp_path / "whole", 3)
    found_now = models(walk(tmp_path))
    assert found_now["whole"] == ("safetensors", "complete", None)
    assert found_now["gap"] == ("safetensors", "incomplete", "model-00002-of-00003.safetensors is missing")
    assert found_now["torn"][1] == "incomplete"
    assert found_now["torn"][2].startswith("model-00003-of-00003.safetensors is cut off")  # type: ignore[union-attr]
    assert len(found_now) == 3


def test_shards_without_an_index_are_counted_by_their_names(tmp_path: Path) -> None:
    for number in (1, 2, 4):
        put(tmp_path / "q" / f"big-{number:05}-of-00004.gguf", files.gguf())
    assert models(walk(tmp_path)) == {
        "q/big-00001-of-00004.gguf": ("gguf", "incomplete", "big-00003-of-00004.gguf is missing")
    }
    put(tmp_path / "q/big-00003-of-00004.gguf", files.gguf())
    assert models(walk(tmp_path)) == {"q/big-00001-of-00004.gguf": ("gguf", "complete", None)}


def tree(root: Path) -> None:
    """One of each form."""
    put(root / "hf/model.safetensors")
    put(root / "hf/pytorch_model.bin", files.pytorch()[:-30])
    put(root / "hf/config.json", b"{}")
    put(root / "old/pytorch_model.bin", files.pytorch())
    put(root / "llama/consolidated.00.pth", files.pytorch())
    put(root / "llama/consolidated.01.pth", files.pytorch())
    put(root / "gguf/a-Q4.gguf", files.gguf())
    put(root / "gguf/a-Q8.gguf", files.gguf())
    put(root / "gguf/mmproj.gguf", files.gguf())
    put(root / "onnx/model.onnx", files.onnx("model.onnx_data", 100))
    put(root / "onnx/model.onnx_data", b"\1" * 99)
    put(root / "trt/config.json", b'{"pretrained_config": {"mapping": {"world_size": 2}}}')
    put(root / "trt/rank0.engine", b"ftrt....")
    put(root / "repo/1/model.plan", b"ftrt....")
    put(root / "pipe/model_index.json", b"{}")
    put(root / "pipe/unet/config.json", b"{}")
    put(root / "pipe/unet/diffusion_pytorch_model.safetensors")
    put(root / "pipe/vae/config.json", b"{")
    put(root / "pipe/vae/diffusion_pytorch_model.safetensors")
    put(root / "lora/adapter_config.json", b"{}")
    put(root / "lora/adapter_model.safetensors")
    put(root / "loading/model.safetensors.part", b"half")
    put(root / "loras/one.safetensors")
    put(root / "loras/two.safetensors", b"cut")
    put(root / ".snapshot/hf/model.safetensors")
    put(root / "data/train-00000.parquet", b"x")


def test_one_of_each_form(tmp_path: Path) -> None:
    tree(tmp_path)
    assert models(walk(tmp_path)) == {
        "hf": ("safetensors", "complete", None),
        "old": ("pytorch", "complete", None),
        "llama": ("pytorch", "complete", None),
        "gguf/a-Q4.gguf": ("gguf", "complete", None),
        "gguf/a-Q8.gguf": ("gguf", "complete", None),
        "onnx": ("onnx", "incomplete", "model.onnx_data is cut off: 99 of 100 bytes"),
        "trt": ("tensorrt", "incomplete", "rank1.engine is missing"),
        "repo/1": ("tensorrt", "unknown", "model.plan is of a form that says nothing of its own length"),
        "pipe": ("safetensors", "incomplete", "config.json is not valid JSON"),
        "loading/model.safetensors": ("safetensors", "incomplete", "model.safetensors.part is still being written"),
        "loras/one.safetensors": ("safetensors", "complete", None),
        "loras/two.safetensors": ("safetensors", "incomplete", "two.safetensors is cut off in its header"),
    }
    sizes = {row.path: row.size for row in found(walk(tmp_path))}
    assert sizes["llama"] == 2 * len(files.pytorch())
    assert sizes["pipe"] == 2 * len(files.safetensors())


def test_a_hub_cache_is_told_by_its_repositories(tmp_path: Path) -> None:
    snapshot = files.hub_snapshot(
        tmp_path / "hub", "org/thing-7b", {"config.json": b"{}", "model.safetensors": files.safetensors()}
    )
    [model] = found(walk(tmp_path))
    assert (model.name, model.source, model.state) == ("org/thing-7b", "cache", "complete")
    assert model.path == str(snapshot.relative_to(tmp_path))
    blob = (snapshot / "model.safetensors").resolve()
    blob.unlink()
    [model] = found(walk(tmp_path))
    assert (model.state, model.reason) == ("incomplete", "model.safetensors is a link that leads nowhere")


def test_names_that_are_no_text_are_said_and_not_offered(tmp_path: Path) -> None:
    put(tmp_path / os.fsdecode(b"caf\xe9") / "model.safetensors")
    put(tmp_path / "new\nline/model.safetensors")
    put(tmp_path / "模型/model.safetensors")
    answer = obey(Order(str(tmp_path)), Budget(), 2000)
    rows = {path: (state, reason) for _, path, _, _, _, state, reason in answer["models"]}
    assert rows == {
        f"{tmp_path}/caf\\xe9": ("unknown", CANNOT_NAME),
        f"{tmp_path}/new\nline": ("complete", None),
        f"{tmp_path}/模型": ("complete", None),
    }
    assert told("/m", dataclasses.replace(next(iter(found(walk(tmp_path)))), path="", name="")).name == "m"


def test_a_second_walk_lists_and_reads_only_what_changed(tmp_path: Path) -> None:
    tree(tmp_path)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    os.utime(tmp_path, (1e9, 1e9))
    first = walk(tmp_path)
    assert first.looked.listed == first.looked.folders > 10
    second = walk(tmp_path, first.memory)
    assert (second.looked.listed, second.looked.read) == (0, 0)
    assert second.looked.folders == first.looked.folders
    assert models(second) == models(first)

    put(tmp_path / "new/model.safetensors")
    (tmp_path / "gguf/a-Q4.gguf").unlink()
    with (tmp_path / "hf/model.safetensors").open("r+b") as file:
        file.truncate(20)  # in place: its folder looks the same
    third = walk(tmp_path, second.memory)
    assert (third.looked.listed, third.looked.read) == (3, 2)  # the root, new, gguf; one file of new, one of hf
    changed = models(third)
    assert changed["new"] == ("safetensors", "complete", None)
    assert "gguf/a-Q4.gguf" not in changed
    assert changed["hf"][1] == "incomplete"


def test_what_changes_in_the_tick_of_a_look_is_looked_at_again(tmp_path: Path) -> None:
    """The time of a change has steps: a second change in the same one would never be seen."""
    put(tmp_path / "a/model.safetensors", files.safetensors()[:-1])
    young = Walk(str(tmp_path), Memory()).run()
    stamp = (tmp_path / "a/model.safetensors").stat()
    put(tmp_path / "a/model.safetensors", files.safetensors()[:-1].replace(b"\1", b"\2"))
    os.utime(tmp_path / "a/model.safetensors", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    again = Walk(str(tmp_path), young.memory).run()
    assert again.looked.listed == 2
    assert again.looked.read == 1


def test_a_folder_that_went_is_forgotten_with_all_below(tmp_path: Path) -> None:
    put(tmp_path / "a/b/c/model.safetensors")
    put(tmp_path / "z/model.safetensors")
    first = walk(tmp_path)
    (tmp_path / "a").rename(tmp_path.parent / f"{tmp_path.name}-moved")
    second = walk(tmp_path, first.memory)
    assert set(models(second)) == {"z"}
    assert set(second.memory.folders) == {"", "z"}


def test_a_walk_goes_on_where_the_budget_of_the_last_one_ended(tmp_path: Path) -> None:
    for number in range(40):
        put(tmp_path / f"m{number:02}" / "model.safetensors")
    memory, seen, rounds = Memory(), 0, 0
    while True:
        walked = walk(tmp_path, memory, Budget(entries=60))
        memory, rounds = walked.memory, rounds + 1
        assert len(models(walked)) >= seen
        seen = len(models(walked))
        assert walked.looked.folders <= 60
        if not walked.partial:
            break
        assert rounds < 10
    assert seen == 40
    assert rounds > 1


def test_files_that_the_budget_left_are_unknown_and_read_next_time(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path / f"l{number:02}.safetensors")
    ticks = iter(range(10_000))
    first = walk(tmp_path, None, Budget(seconds=10, clock=lambda: next(ticks)))
    states = [state for _, state, _ in models(first).values()]
    assert first.partial
    assert len(states) == 20
    assert "unknown" in states
    assert "complete" in states
    second = walk(tmp_path, first.memory)
    assert not second.partial
    assert {state for _, state, _ in models(second).values()} == {"complete"}
    assert second.looked.read == states.count("unknown")


def test_of_very_many_files_whole_ones_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking a disk for the size of every file in each walk would cost more than all the rest."""
    monkeypatch.setattr(walking, "FEW_FILES", 100)
    for number in range(101):
        put(tmp_path / f"m{number:03}" / "model.safetensors")
    put(tmp_path / "cut" / "model.safetensors", b"cut")
    memory, asked = walk(tmp_path).memory, []
    for _ in range(walking.TURNS):
        walked = walk(tmp_path, memory)
        memory = walked.memory
        asked.append(walked.looked.asked)
        assert len(models(walked)) == 102
    assert sum(asked) == 101 + walking.TURNS, "each whole one once, the other every time"
    assert max(asked) < 50


def test_other_mounts_are_not_entered(tmp_path: Path) -> None:
    put(tmp_path / "here/model.safetensors")
    put(tmp_path / "there/model.safetensors")
    walked = walk(tmp_path, mounts=(f"{tmp_path}/there",))
    assert set(models(walked)) == {"here"}


def test_a_folder_that_cannot_be_looked_at_keeps_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a/deep/model.safetensors")
    put(tmp_path / "z/model.safetensors")
    first = walk(tmp_path)
    stat = os.stat

    def broken(path: Any, **words: Any) -> os.stat_result:
        if str(path) == f"{tmp_path}/a":
            raise PermissionError(13, "Permission denied")
        return stat(path, **words)

    monkeypatch.setattr(os, "stat", broken)
    second = walk(tmp_path, first.memory)
    assert second.problems == {"a": "Permission denied"}
    assert set(models(second)) == {"a/deep", "z"}


class BadEntry:
    """A name whose kind the file system cannot tell."""

    name = "bad"

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        raise OSError(5, "Input/output error")


@pytest.mark.case("FC-038")
def test_one_bad_entry_hides_none_of_its_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a/model.safetensors")
    put(tmp_path / "z/model.safetensors")
    scandir = os.scandir

    @contextlib.contextmanager
    def broken(path: str) -> Iterator[Iterator[Any]]:
        with scandir(path) as entries:
            yield itertools.chain([BadEntry()], (entry for entry in entries if entry.name != BadEntry.name))

    monkeypatch.setattr(os, "scandir", broken)
    walked = walk(tmp_path)
    assert set(models(walked)) == {"a", "z"}
    assert walked.problems == dict.fromkeys(("bad", "a/bad", "z/bad"), "Input/output error")
    assert walk(tmp_path, walked.memory).looked.listed == 3, "it is asked for again"

    # What was a folder when it could be told still counts as one that was seen.
    monkeypatch.undo()
    put(tmp_path / "bad/model.safetensors")
    before = walk(tmp_path)
    assert set(models(before)) == {"a", "z", "bad"}
    monkeypatch.setattr(os, "scandir", broken)
    os.utime(tmp_path)
    assert set(models(walk(tmp_path, before.memory))) == {"a", "z", "bad"}


def test_the_root_itself_is_an_error_of_its_own(tmp_path: Path) -> None:
    assert obey(Order(str(tmp_path / "nowhere")), Budget(), 10)["error"] == 2
    put(tmp_path / "file")
    assert obey(Order(str(tmp_path / "file")), Budget(), 10)["error"] == 20


def test_a_memory_that_cannot_be_used_is_none(tmp_path: Path) -> None:
    put(tmp_path / "m/model.safetensors")
    memory = tmp_path / "memory"
    for text in ("", "{", "[]", '{"form":1,"root":"/other","folders":{},"pending":[],"number":1}', '{"form":1}'):
        memory.write_text(text)
        answer = obey(Order(str(tmp_path / "m"), memory=str(memory)), Budget(), 10)
        assert answer["count"] == 1
        assert answer["looked"]["listed"] == 1


def test_the_cap_keeps_whole_models_first(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path / name / "model.safetensors", files.safetensors()[: 20 if name == "a" else None])
    answer = obey(Order(str(tmp_path)), Budget(), 2)
    assert answer["count"] == 3
    assert [row[5] for row in answer["models"]] == ["complete", "complete"]
