"""What is wrong with a YAML file, said without quoting it: the line at fault may hold a key or a token.

The reader itself is the caller's (YAML is not in the standard library).
"""

from __future__ import annotations

import re

# Words such as '<scalar>' and single signs are the reader's own; anything longer is taken from the file.
_TAKEN_FROM_THE_FILE = re.compile(r""" (?:'[^'<][^']+'|"[^"<][^"]+")""")


def yaml_fault(error: Exception) -> tuple[str, str]:
    """(``:LINE:COLUMN``, what is wrong) of what PyYAML or the decoding raised; no place where none is known."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
    words = getattr(error, "problem", None) or getattr(error, "reason", None) or "text that is not YAML"
    return place, _TAKEN_FROM_THE_FILE.sub("", str(words))
