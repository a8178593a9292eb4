"""Whether one file is whole, by its own header alone."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.agent.models import integrity, onnx
from runtime.agent.models.integrity import COMPLETE, INCOMPLETE, UNKNOWN, look
from runtime.agent.models.names import CONFIG, INDEX, kind_of
from runtime.protocol.engines import GGUF, ONNX, PYTORCH, SAFETENSORS, TENSORRT
from tests import model_files as files


def verdict(tmp_path: Path, data: bytes, kind: str) -> tuple[str, str | None]:
    path = tmp_path / "file"
    path.write_bytes(data)
    found = look(str(path), kind)
    return found.state, found.reason


WHOLE = files.safetensors()


@pytest.mark.case("FC-039")
@pytest.mark.parametrize(
    ("data", "state", "words"),
    [
        (WHOLE, COMPLETE, None),
        (WHOLE[:-1], INCOMPLETE, f"is cut off: {len(WHOLE) - 1} of {len(WHOLE)} bytes"),
        (WHOLE[:7], INCOMPLETE, "is cut off in its header"),
        (b"", INCOMPLETE, "is empty"),
        (struct.pack("<Q", 10_000) + WHOLE[8:], INCOMPLETE, "is cut off in its header"),
        (struct.pack("<Q", 1 << 60) + WHOLE[8:], INCOMPLETE, "claims a header of 1152921504606846976 bytes"),
        (WHOLE + b"more", INCOMPLETE, "where its header tells of"),
        (struct.pack("<Q", 8) + b"not json" + b"\0" * 9, INCOMPLETE, "has a header that cannot be read"),
    ],
)
def test_safetensors(tmp_path: Path, data: bytes, state: str, words: str | None) -> None:
    found, reason = verdict(tmp_path, data, SAFETENSORS)
    assert found == state
    assert reason is None if words is None else words in (reason or "")


@pytest.mark.case("FC-039")
def test_only_headers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 4 GiB costs no more than a small one: it is mostly a hole here, and only its header is touched."""
    size = 4 << 30
    path = tmp_path / "big.safetensors"
    with path.open("wb") as file:
        header = f'{{"t":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}'.encode()
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    taken: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: taken.append(count) or pread(fd, count, at))
    assert look(str(path), SAFETENSORS).state == COMPLETE
    assert sum(taken) < 4096


def test_every_cut_of_a_gguf_file_is_seen(tmp_path: Path) -> None:
    whole = files.gguf()
    assert verdict(tmp_path, whole, GGUF) == (COMPLETE, None)
    for length in range(1, len(whole)):
        state, reason = verdict(tmp_path, whole[:length], GGUF)
        assert state == INCOMPLETE, length
        assert "cut off" in (reason or "") or "one hole" in (reason or "")


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (b"GGML" + files.gguf()[4:], INCOMPLETE),
        (b"GGUF" + struct.pack("<I", 1) + files.gguf()[8:], UNKNOWN),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1), UNKNOWN),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99), INCOMPLETE),
    ],
)
def test_odd_gguf_files(tmp_path: Path, data: bytes, state: str) -> None:
    assert verdict(tmp_path, data, GGUF)[0] == state


def test_a_gguf_file_with_a_large_vocabulary_is_read_to_its_end(tmp_path: Path) -> None:
    whole = files.gguf(words=150_000)
    assert len(whole) > 1 << 20
    assert verdict(tmp_path, whole, GGUF)[0] == COMPLETE
    assert verdict(tmp_path, whole[:-1], GGUF)[0] == INCOMPLETE


def test_pytorch(tmp_path: Path) -> None:
    whole = files.pytorch()
    assert verdict(tmp_path, whole, PYTORCH) == (COMPLETE, None)
    assert verdict(tmp_path, whole[:-30], PYTORCH)[0] == INCOMPLETE
    state, reason = verdict(tmp_path, b"\x80\x02\x8a\nl\xfc\x9c", PYTORCH)
    assert (state, "old form" in (reason or "")) == (UNKNOWN, True)


def test_onnx(tmp_path: Path) -> None:
    whole = files.onnx()
    assert verdict(tmp_path, whole, ONNX) == (COMPLETE, None)
    for length in range(1, len(whole)):
        assert verdict(tmp_path, whole[:length], ONNX)[0] == INCOMPLETE, length
    assert verdict(tmp_path, b"<html>no model here</html>", ONNX)[0] == INCOMPLETE


def test_onnx_names_the_files_with_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(files.onnx("model.onnx_data", 5000))
    assert look(str(path), ONNX) == (COMPLETE, None, (("model.onnx_data", 5000),))
    path.write_bytes(files.onnx("../../etc/shadow", 5000))
    assert look(str(path), ONNX).state == INCOMPLETE


def test_a_graph_without_end_is_not_walked_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "FIELDS_LIMIT", 5)
    path = tmp_path / "model.onnx"
    path.write_bytes(files.onnx("model.onnx_data", 5000))
    assert look(str(path), ONNX).needs == ()


@pytest.mark.case("FC-040")
@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "x.safetensors"}}', COMPLETE),
        ('{"weight_map": {}}', INCOMPLETE),
        ('{"weight_map": {"a": "../x.safetensors"}}', INCOMPLETE),
        ('{"weight_map": {"a": 7}}', INCOMPLETE),
        ('{"weight_map": ', INCOMPLETE),
        ("[]", INCOMPLETE),
        ("[" * 200_000, INCOMPLETE),
    ],
)
def test_an_index_of_shards(tmp_path: Path, text: str, state: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    found = look(str(path), INDEX)
    assert found.state == state
    if state == COMPLETE:
        assert found.needs == (("x.safetensors", 1), ("y.safetensors", 1))


@pytest.mark.parametrize("world", [2, "2", True, 0, 10**9, None])
def test_the_ranks_of_an_engine(tmp_path: Path, world: object) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"pretrained_config": {"mapping": {"world_size": world}}}))
    needs = look(str(path), CONFIG).needs
    assert needs == ((("rank0.engine", 1), ("rank1.engine", 1)) if world == 2 else ())


def test_what_is_no_plain_file_is_not_opened_for_long(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert look(str(tmp_path / "pipe"), SAFETENSORS).state == UNKNOWN
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 20)
    assert "one hole" in (look(str(tmp_path / "hole"), SAFETENSORS).reason or "")
    assert look(str(_file(tmp_path / "a.plan")), TENSORRT) == (
        UNKNOWN,
        "is of a form that says nothing of its own length",
        (),
    )
    with pytest.raises(FileNotFoundError):
        integrity.look(str(tmp_path / "nowhere"), GGUF)


def _file(path: Path) -> Path:
    path.write_bytes(b"ftrt" + b"\1" * 60)
    return path


@given(
    kind=st.sampled_from([SAFETENSORS, GGUF, ONNX, PYTORCH, INDEX, CONFIG]),
    whole=st.sampled_from([files.safetensors(), files.gguf(), files.onnx("x.data", 9), files.pytorch(), b'{"a": 1}']),
    changes=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=12)), max_size=6),
)
def test_no_content_is_more_than_a_verdict(kind: str, whole: bytes, changes: list[tuple[int, bytes]]) -> None:
    """Bytes changed, put in and cut off anywhere: never an error, never a claim about another folder."""
    for at, data in changes:
        whole = whole[:at] + data + whole[at + len(data) // 2 :]
    with tempfile.NamedTemporaryFile() as file:
        file.write(whole)
        file.flush()
        found = look(file.name, kind)
    assert found.state in (COMPLETE, INCOMPLETE, UNKNOWN)
    assert (found.reason is None) == (found.state == COMPLETE)
    assert all(not name.startswith("/") and ".." not in name.split("/") for name, _ in found.needs)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.safetensors", SAFETENSORS),
        ("MODEL.SafeTensors", SAFETENSORS),
        ("qwen3-8b-Q4_K_M.gguf", GGUF),
        ("mmproj-model-f16.gguf", None),
        ("model.onnx", ONNX),
        ("model.onnx_data", None),
        ("rank0.engine", TENSORRT),
        ("model.plan", TENSORRT),
        ("pytorch_model-00001-of-00002.bin", PYTORCH),
        ("pytorch_model.bin", PYTORCH),
        ("tokenizer.bin", None),
        ("consolidated.00.pth", PYTORCH),
        ("optimizer.pt", None),
        ("rng_state_0.pth", None),
        ("model.safetensors.index.json", INDEX),
        ("config.json", CONFIG),
        ("model.safetensors.part", "part"),
        ("notes.txt.part", None),
        (".safetensors", None),
        ("README.md", None),
    ],
)
def test_what_a_name_says(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind
