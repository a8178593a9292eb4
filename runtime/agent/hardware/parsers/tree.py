"""Trees out of indented keys (``nvidia-smi -q`` and its like) and of XML (``-q -x``), with the same names where both
say the same.

XML is read by a few lines here, not by a library: output that was cut off still counts up to the cut, and nothing in
it can refer to anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

_TAG = re.compile(
    r"<(?P<close>/)?(?P<name>[A-Za-z_][\w.:-]*)(?P<attributes>[^<>]*?)(?P<empty>/)?>|(?P<text>[^<]+)|<[^>]*>"
)
_GPU = re.compile(r"GPU\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)")
_ID = re.compile(r"""\bid\s*=\s*["']([^"']*)["']""")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&"))


@dataclass
class Node:
    """``name`` in small letters with underscores (``fb_memory_usage``); ``value`` None for a mere heading."""

    name: str
    value: Optional[str] = None
    children: list[Node] = field(default_factory=list)

    def all(self, *names: str) -> Iterator[Node]:
        """Children with one of these names, in order."""
        return (child for child in self.children if child.name in names)

    def at(self, *path: str) -> Optional[Node]:
        """The first node down a path of names; ``a|b`` takes either at its step, the first one named if both."""
        node: Optional[Node] = self
        for step in path:
            if node is None:
                return None
            found: Optional[Node] = None
            for name in step.split("|"):
                found = found or next(node.all(name), None)
            node = found
        return node

    def text(self, *path: str) -> Optional[str]:
        """The value down a path; None when there is no such node, or it has none."""
        node = self.at(*path)
        return None if node is None else node.value


def name_of(key: str) -> str:
    """``FB Memory Usage`` as XML writes it: ``fb_memory_usage``."""
    return re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")


def from_keys(lines: list[str], heading: re.Pattern[str] = _GPU) -> Node:
    """``Key : Value`` by indentation (tabs count as eight blanks). What ``heading`` matches, such as
    ``GPU 00000000:17:00.0``, is a node ``gpu`` whose value is its first group."""
    root = Node("root")
    stack: list[tuple[int, Node]] = [(-1, root)]
    for line in lines:
        if not line.strip() or line.lstrip().startswith("="):
            continue
        expanded = line.expandtabs(8)
        depth = len(expanded) - len(expanded.lstrip())
        gpu = heading.fullmatch(line.strip())
        line = re.sub(r"\[[^\[\]]*\](?=\s*:)", "", line)  # "[Deprecated: ...]" beside a key
        key, colon, value = line.strip().partition(":")
        if gpu is not None:
            node = Node("gpu", gpu.group(1))
        elif colon:
            node = Node(name_of(key), value.strip())
        else:
            node = Node(name_of(line))
        while stack[-1][0] >= depth:
            stack.pop()
        stack[-1][1].children.append(node)
        stack.append((depth, node))
    return root


def from_xml(text: str) -> Node:
    """Elements as nodes; an ``id`` is an element's value until it has text of its own. What was not closed before
    the end has no value."""
    root = Node("root")
    stack: list[Node] = [root]
    for match in _TAG.finditer(text):
        name = match["name"]
        if match["text"] is not None:
            plain = match["text"].strip()
            if plain and match.end() < len(text):
                for entity, sign in _ENTITIES:
                    plain = plain.replace(entity, sign)
                stack[-1].value = plain
        elif name is None:
            continue
        elif match["close"]:
            names = [node.name for node in stack]
            if name.lower() in names[1:]:
                del stack[len(names) - 1 - names[::-1].index(name.lower()) :]
        else:
            identity = _ID.search(match["attributes"])
            node = Node(name.lower(), None if identity is None else identity.group(1))
            stack[-1].children.append(node)
            if not match["empty"]:
                stack.append(node)
    return root
