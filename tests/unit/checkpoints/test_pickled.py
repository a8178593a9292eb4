"""A pickle is followed, never run: whatever is in it, and wherever it was torn."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.agent.checkpoints.pickled import states_with
from tests.unit.checkpoints import layouts as made

FILES = [f"__{rank}_0.distcp" for rank in range(3)]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("small", [False, True], ids=["as written", "optimised"])
def test_every_piece_is_seen_with_its_file_and_place(protocol: int, small: bool) -> None:
    data = made.metadata(FILES, protocol)
    states = states_with(pickletools.optimize(data) if small else data, "relative_path")
    length = states[0]["length"]
    wanted = [
        {"relative_path": file, "offset": number * length, "length": length} for file in FILES for number in range(3)
    ]
    assert states == wanted


def test_a_torn_pickle_is_none_wherever_it_was_torn() -> None:
    data = made.metadata(FILES[:1], 4)
    for size in range(len(data)):
        with pytest.raises(ValueError):
            states_with(data[:size], "relative_path")


class Payload:
    """Opens a file when somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_in_it_is_called(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "called"
    data = pickle.dumps({"relative_path": "a", "x": Payload(trap)}, protocol)
    assert states_with(data, "relative_path")[0]["relative_path"] == "a"
    assert not trap.exists()
    pickle.loads(data)
    assert trap.exists(), "the payload is a real one"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04.",
        b"\x80\x04NN.",  # two objects
        b"\x80\x04(N.",  # an open mark
        b"\x80\x040.",  # takes from an empty stack
        b"\x80\x04h\x05.",  # what was never stored
        b"\x80\x04X\xff\xff\xff\xff.",  # a text longer than the file
        b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        b"\x80\x04X\x01\x00\x00\x00\xff.",  # no UTF-8
        b"\x80\x04ctorch\n.",  # a name without its end
        b"I" + b"9" * 100_000 + b"\n.",  # numbers as text are protocol 0's
        b"\x80\x04\x82\x01.",  # another program's registry of extensions
        b"\x80\x04Pid\n.",
        b"\x80\x05\x97.",
        b"\x80\x04\xfe.",
    ],
    ids=repr,
)
def test_what_is_no_pickle_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        states_with(data, "relative_path")


def test_a_store_far_up_costs_nothing() -> None:
    """CPython's own reader makes room for all the places below."""
    assert states_with(b"\x80\x04Nr\xff\xff\xff\xff.", "relative_path") == []


def test_a_number_of_many_bytes_is_not_worked_out() -> None:
    data = b"\x80\x04}(\x8c\x01a\x8a\x09" + b"\xff" * 8 + b"\x01u."
    assert states_with(data, "a")[0]["a"] not in (0, 1, -1)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_pickle_or_are_refused(data: bytes) -> None:
    try:
        assert isinstance(states_with(data, "relative_path"), list)
    except ValueError:
        pass


@given(st.integers(0, 2000), st.integers(0, 255))
def test_one_byte_changed_is_still_followed_or_refused(place: int, value: int) -> None:
    data = bytearray(WHOLE)
    data[place % len(data)] = value
    try:
        states = states_with(bytes(data), "relative_path")
    except ValueError:
        return
    assert all("relative_path" in state for state in states)


WHOLE = made.metadata(FILES[:2], 2)
