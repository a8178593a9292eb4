"""TensorFlow: a file ``checkpoint`` that names prefixes, and for each prefix an index and data shards.

The state file is a text protocol buffer (``CheckpointState``), replaced as a whole after each save
(``tensorflow/python/checkpoint/checkpoint_management.py``): ``model_checkpoint_path`` is the newest, every
``all_model_checkpoint_paths`` one that is kept; paths are relative to the folder, or absolute as the training program
saw it. A prefix ``model.ckpt-100`` has ``model.ckpt-100.index`` and ``model.ckpt-100.data-00000-of-00002`` and so on.
"""

from __future__ import annotations

import re
from typing import Optional

from runtime.agent.checkpoints.files import whole
from runtime.agent.checkpoints.folder import MIB, Folder
from runtime.agent.checkpoints.names import is_plain, step_of
from runtime.agent.checkpoints.verdict import Incomplete, Pointed

NAME = "tensorflow"
STATE = "checkpoint"
STATE_LIMIT = MIB

_FIELD = re.compile(rb"""\s*([a-z_]+)\s*:\s*(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)'|([-+0-9.eE]+|inf|nan))""")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_DATA = re.compile(r"\.data-([0-9]{5})-of-([0-9]{5})")


def look(root: Folder, seen_as: str) -> Pointed:
    """The newest that the state file names and whose files are all there, from its newest downwards."""
    if root.kinds.get(STATE) not in ("file", "link"):
        return Pointed()
    try:
        newest, *others = _named(root.read(STATE, STATE_LIMIT), seen_as)
    except Incomplete as lack:
        return Pointed(rejected={STATE: str(lack)})
    start = step_of(newest)
    steps = {name: step for name in others for step in [step_of(name)] if step is not None and step < (start or 0)}
    rejected: dict[str, str] = {}
    for name in (newest, *sorted(steps, key=steps.__getitem__, reverse=True)):
        try:
            _judge(root, name)
            root.settle()
            return Pointed(name, step_of(name), rejected)
        except Incomplete as lack:
            rejected[name] = str(lack)
    return Pointed(rejected=rejected)


def _judge(root: Folder, prefix: str) -> None:
    whole(root, f"{prefix}.index")
    shards = [found for name in root.kinds if name.startswith(prefix)
              for found in [_DATA.fullmatch(name, len(prefix))] if found]  # fmt: skip
    counts = {int(found[2]) for found in shards}
    if not counts:
        raise Incomplete(f"there is no data file of {prefix}")
    if len(counts) > 1:
        raise Incomplete("its data files are those of several saves, with different counts")
    for number in range(counts.pop()):
        # However high the count is said to be: the first one that is missing ends it.
        whole(root, f"{prefix}.data-{number:05d}-of-{shards[0][2]}")


def _named(text: bytes, seen_as: str) -> list[str]:
    """The prefixes that a state file names, the newest first. Raises Incomplete."""
    newest: Optional[str] = None
    others = []
    rest = text.rstrip()
    at = 0
    while at < len(rest):
        field = _FIELD.match(rest, at)
        if field is None:
            raise Incomplete("cannot be read: it is no whole state of TensorFlow")
        at = field.end()
        value = field[2] if field[2] is not None else field[3]
        if value is None:
            continue
        if field[1] == b"model_checkpoint_path":
            newest = _prefix(value, seen_as)
        elif field[1] == b"all_model_checkpoint_paths":
            try:
                others.append(_prefix(value, seen_as))
            except Incomplete:
                continue  # one that was kept elsewhere
    if newest is None:
        raise Incomplete("names no checkpoint")
    return [newest, *(name for name in others if name != newest)]


def _prefix(escaped: bytes, seen_as: str) -> str:
    path = _ESCAPE.sub(_unescaped, escaped).decode("utf-8", "surrogateescape")
    base = seen_as.rstrip("/") + "/"
    if seen_as and path.startswith(base):
        path = path[len(base) :]
    path = path[2:] if path.startswith("./") else path
    if not is_plain(path):
        raise Incomplete("names a checkpoint that is not in its own folder")
    return path


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found[1]:
        return bytes([int(found[1], 8) & 0xFF])
    if found[2]:
        return bytes([int(found[2], 16)])
    return _LETTERS.get(found[3], found[3])
