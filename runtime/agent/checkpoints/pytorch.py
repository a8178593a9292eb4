"""PyTorch Distributed Checkpoint: a folder with ``.metadata`` and the files that it refers to.

The coordinator writes ``.metadata`` last, beside it first and then renamed (``torch/distributed/checkpoint/
filesystem.py``): a pickle whose ``storage_data`` says for every piece in which file (``relative_path``), from where
(``offset``) and how long (``length``) it lies. Files are usually called ``__RANK_N.distcp``.
"""

from __future__ import annotations

from runtime.agent.checkpoints.files import count_of
from runtime.agent.checkpoints.folder import MIB, Folder
from runtime.agent.checkpoints.pickled import states_with
from runtime.agent.checkpoints.verdict import Incomplete

NAME = "pytorch"
METADATA = ".metadata"
METADATA_LIMIT = 64 * MIB
SUFFIX = ".distcp"


def recognises(folder: Folder) -> bool:
    return METADATA in folder.kinds


def judge(folder: Folder) -> None:
    """Raises Incomplete. The format itself knows no training step: only the folder's name may tell it."""
    if METADATA not in folder.kinds:
        raise Incomplete(_without_metadata(folder))
    try:
        states = states_with(folder.read(METADATA, METADATA_LIMIT), "relative_path")
    except ValueError:
        raise Incomplete(f"{METADATA} cannot be read: it is no whole pickle") from None
    needed: dict[str, int] = {}
    for state in states:
        path, offset, length = state["relative_path"], state.get("offset"), state.get("length")
        if not isinstance(path, str):
            raise Incomplete(f"{METADATA} refers to something that is not a file's name")
        end = count_of(offset) + count_of(length)
        needed[path] = max(needed.get(path, 0), end)
    if not needed:
        raise Incomplete(f"{METADATA} refers to no file")
    for path, end in needed.items():
        size = folder.size(path)
        if size < end:
            raise Incomplete(f"{path} is cut off: {size} of {end} bytes")


def _without_metadata(folder: Folder) -> str:
    if f"{METADATA}.tmp" in folder.kinds:
        return f"{METADATA} is missing: the save was not finished ({METADATA}.tmp is there)"
    return f"{METADATA} is missing: it is written when all files are there"
