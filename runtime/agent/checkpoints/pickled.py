"""What a pickle refers to, without unpickling it: nothing is imported, called or built.

A pickle is a program for a small stack machine. Here that program is followed with symbols in place of objects: texts
and small numbers stay what they are, everything else is one opaque thing. That is enough to see which attributes the
pickled objects have, and nothing in the file can make it do more than read on. Opcodes are those of protocols 2 to 5
(Python's ``pickletools``); what only protocol 0 or foreign registries use is refused.
"""

from __future__ import annotations

from typing import Any

OPAQUE = object()

_TEXT = {0x58: 4, 0x8C: 1, 0x8D: 8}  # BINUNICODE and its short and long form: the size of the length before it
_BYTES = {0x42: 4, 0x43: 1, 0x8E: 8, 0x96: 8, 0x54: 4, 0x55: 1, 0x8B: 4}  # the same for bytes, LONG4 among them
_NUMBERS = {0x4B: 1, 0x4D: 2, 0x4A: 4}  # BININT1, BININT2, BININT
_SKIPPED = {0x80: 1, 0x95: 8}  # PROTO, FRAME
_NOTHING = frozenset(b"N]})\x88\x89\x8f")  # None, empty containers, True, False
_CLOSED = frozenset(b"tlo\x91")  # TUPLE, LIST, OBJ, FROZENSET: all since the mark become one
_ADDED = frozenset(b"e\x90")  # APPENDS, ADDITEMS: all since the mark go into what is below it
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_INTO = {0x61: 1, 0x52: 1, 0x81: 1, 0x92: 2, 0x62: 1}  # APPEND, REDUCE, NEWOBJ, NEWOBJ_EX, BUILD: so many go in
_LONG1, _FLOAT, _GLOBAL, _STACK_GLOBAL = 0x8A, 0x47, 0x63, 0x93
_MARK, _POP, _POP_MARK, _DUP, _STOP = 0x28, 0x30, 0x31, 0x32, 0x2E
_PUT, _LONG_PUT, _MEMOIZE, _GET, _LONG_GET = 0x71, 0x72, 0x94, 0x68, 0x6A
_SET_ITEM, _SET_ITEMS, _DICT = 0x73, 0x75, 0x64
_LONGEST_NUMBER = 8

State = dict[str, Any]


def states_with(data: bytes, name: str) -> list[State]:
    """Every group of attributes (name and value) that were set together, ``name`` among them, in the pickle ``data``.

    Values are texts, numbers or OPAQUE. Raises ValueError when the pickle is cut off or is none.
    """
    try:
        return _Walk(data, name).run()
    except (IndexError, KeyError, UnicodeDecodeError):
        raise ValueError("not a whole pickle") from None


class _Walk:
    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._at = 0
        self._name = name
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._found: list[State] = []

    def run(self) -> list[State]:
        data = self._data
        while True:
            code = data[self._at]
            self._at += 1
            if code == _STOP:
                if len(self._stack) != 1 or self._marks:
                    raise ValueError("a pickle of no object")
                return self._found
            if not (self._push(code) or self._keep(code) or self._change(code)):
                raise ValueError(f"opcode {code:#04x} is not followed")

    def _push(self, code: int) -> bool:
        """Opcodes that put something new on the stack."""
        push = self._stack.append
        if code in _NOTHING:
            push(OPAQUE)
        elif code in _TEXT:
            push(str(self._take(self._length(_TEXT[code])), "utf-8", "surrogatepass"))
        elif code in _NUMBERS:
            push(int.from_bytes(self._take(_NUMBERS[code]), "little", signed=code == 0x4A))
        elif code == _LONG1:
            number = self._take(self._length(1))
            push(int.from_bytes(number, "little", signed=True) if len(number) <= _LONGEST_NUMBER else OPAQUE)
        elif code in _BYTES:
            self._take(self._length(_BYTES[code]))
            push(OPAQUE)
        elif code == _FLOAT:
            self._take(8)
            push(OPAQUE)
        elif code == _GLOBAL:
            for _ in range(2):
                self._at = self._data.index(b"\n", self._at) + 1
            push(OPAQUE)
        elif code in _SKIPPED:
            self._take(_SKIPPED[code])
        else:
            return False
        return True

    def _keep(self, code: int) -> bool:
        """Opcodes of the memo and of the stack itself."""
        stack = self._stack
        if code == _MEMOIZE:
            self._memo[len(self._memo)] = stack[-1]
        elif code in (_PUT, _LONG_PUT):
            self._memo[self._length(1 if code == _PUT else 4)] = stack[-1]
        elif code in (_GET, _LONG_GET):
            stack.append(self._memo[self._length(1 if code == _GET else 4)])
        elif code == _MARK:
            self._marks.append(stack)
            self._stack = []
        elif code == _POP and stack:
            stack.pop()
        elif code in (_POP, _POP_MARK):
            self._since_mark()
        elif code == _DUP:
            stack.append(stack[-1])
        else:
            return False
        return True

    def _change(self, code: int) -> bool:
        """Opcodes that make one thing of several."""
        if code in _TUPLES:
            self._pop(_TUPLES[code])
            self._stack.append(OPAQUE)
        elif code in _INTO:
            self._pop(_INTO[code])
            self._stack[-1] = OPAQUE
        elif code == _STACK_GLOBAL:
            self._pop(2)
            self._stack.append(OPAQUE)
        elif code in _CLOSED:
            self._since_mark()
            self._stack.append(OPAQUE)
        elif code in _ADDED:
            self._since_mark()
            self._stack[-1] = OPAQUE
        elif code == _SET_ITEM:
            self._note(self._pop(2))
        elif code == _SET_ITEMS:
            self._note(self._since_mark())
        elif code == _DICT:
            self._note(self._since_mark())
            self._stack.append(OPAQUE)
        else:
            return False
        return True

    def _note(self, items: list[Any]) -> None:
        if self._name in items[::2]:
            self._found.append({key: value for key, value in zip(items[::2], items[1::2]) if isinstance(key, str)})

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _length(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise IndexError
        taken = self._data[self._at : end]
        self._at = end
        return taken
