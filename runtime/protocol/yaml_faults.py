"""Reading YAML that people write: what is wrong is said without quoting it, since the line at fault may hold a key
or a token, and a key that is given twice is a fault.

The reader itself is the caller's (YAML is not in the standard library).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Optional

# Words such as '<scalar>' and single signs are the reader's own; anything longer is taken from the file.
_TAKEN_FROM_THE_FILE = re.compile(r""" (?:'[^'<][^']+'|"[^"<][^"]+")""")


@dataclass(frozen=True)
class YamlFault:
    """``words`` say what is wrong; ``line`` and ``column`` count from 1, None where no place is known."""

    words: str
    line: Optional[int] = None
    column: Optional[int] = None

    @property
    def place(self) -> str:
        """``:LINE:COLUMN``, to go on after the file's name; empty where no place is known."""
        return "" if self.line is None else f":{self.line}:{self.column}"


def yaml_fault(error: Exception) -> YamlFault:
    """The fault behind what PyYAML or the decoding raised."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = getattr(error, "problem", None) or getattr(error, "reason", None) or "text that is not YAML"
    shown = _TAKEN_FROM_THE_FILE.sub("", str(words))
    return YamlFault(shown) if mark is None else YamlFault(shown, mark.line + 1, mark.column + 1)


def unique_keys(yaml: Any) -> Any:
    """The safe loader of PyYAML (the module is handed over) that refuses a key given twice.

    YAML's own way is to take the last in silence. For ``yaml.load(text, Loader=...)``.
    """

    class UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:str" and key_node.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key_node.value} is given twice", problem_mark=key_node.start_mark
                    )
                seen.add(key_node.value if isinstance(key_node.value, str) else id(key_node))
            return super().construct_mapping(node, deep=deep)

    return UniqueKeys
