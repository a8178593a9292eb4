"""The second pass over an instruction as sent: one row per fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.protocol.hardware import Gpu
from runtime.protocol.instructions import REQUEST_OF, Channel
from runtime.protocol.nodes import NodeState
from runtime.server.services.instruction_check import faults
from runtime.server.services.node_view import NodeView
from runtime.server.validation import parse

SUM = "0" * 64
GOOD: dict[str, dict[str, Any]] = {
    "slice": {"vendor": "nvidia-mig", "op": "create", "gpu_uuid": "GPU-1", "profiles": [{"name": "1g.10gb"}]},
    "image": {"op": "pull", "image": "registry:5000/app:1"},
    "file": {"op": "tail", "path": "/data/x", "lines": 5},
}
DESTROY = {"op": "destroy", "profiles": [], "instances": [{"gi_id": 7}]}
FETCH = {"op": "fetch", "lines": None, "sha256": SUM}
CARDS = (
    Gpu(uuid="GPU-1", vendor="nvidia"),
    Gpu(uuid="MIG-1", vendor="nvidia", parent_uuid="GPU-1", profile="1g.10gb"),
    Gpu(uuid="DCU-1", vendor="hygon"),
)


def found(channel: str, body: dict[str, Any], view: NodeView | None) -> list[tuple[str, str]]:
    sent = json.dumps({"node_id": "gpu-a", **GOOD[channel], **body}).encode()
    shape: Any = REQUEST_OF[Channel(channel)]
    request = parse(shape, sent, code="invalid_task", forbid_unknown=True)
    return [(fault.path, fault.wanted) for fault in faults(request, view)]


def seen(cards: tuple[Gpu, ...] = CARDS, known: bool = True) -> NodeView:
    return NodeView("gpu-a", NodeState.ONLINE, gpus=cards, cards_known=known)


@pytest.mark.parametrize(
    ("channel", "body"),
    [
        ("slice", {}),
        ("slice", DESTROY),
        ("slice", {"vendor": "hygon-hami", "gpu_uuid": "DCU-1"}),
        ("image", {}),
        ("image", {"image": "app", "match": "repository"}),
        ("image", {"image": f"app@sha256:{SUM}"}),
        ("file", {}),
        ("file", {"op": "list", "lines": None}),
        ("file", FETCH),
        ("file", {**FETCH, "url": "https://host/x"}),
    ],
)
def test_what_a_node_can_do_is_taken(channel: str, body: dict[str, Any]) -> None:
    assert found(channel, body, seen()) == []


@pytest.mark.parametrize(
    ("channel", "body", "path", "wanted"),
    [
        ("slice", {"profiles": []}, "profiles", "at least one"),
        ("slice", {"instances": [{"gi_id": 7}]}, "instances", "none with op create"),
        ("slice", {**DESTROY, "instances": []}, "instances", "at least one"),
        ("slice", {**DESTROY, "profiles": [{"name": "1g.10gb"}]}, "profiles", "none with op destroy"),
        ("slice", {"gpu_uuid": "GPU-9"}, "gpu_uuid", "a card of node gpu-a"),
        ("slice", {"gpu_uuid": "MIG-1"}, "gpu_uuid", "its own 'GPU-1'"),
        ("slice", {"gpu_uuid": "DCU-1"}, "gpu_uuid", "a card of nvidia"),
        ("slice", {"vendor": "hygon-hami"}, "gpu_uuid", "a card of hygon"),
        ("image", {"image": "UPPER/case"}, "image", "lower-case"),
        ("image", {"image": "host:5000/app:ta g"}, "image", "tag"),
        ("file", {"path": "data/x"}, "path", "an absolute path"),
        ("file", {"path": "/data/../etc/x"}, "path", "without '..'"),
        ("file", {**FETCH, "sha256": None}, "sha256", "with op fetch"),
        ("file", {**FETCH, "url": "ftp://host/x"}, "url", "http"),
        ("file", {"url": "https://host/x"}, "url", "op fetch"),
        ("file", {"sha256": SUM}, "sha256", "op fetch"),
        ("file", {"op": "stat"}, "lines", "op tail"),
    ],
)
def test_what_no_node_can_do_is_named_by_path(channel: str, body: dict[str, Any], path: str, wanted: str) -> None:
    ((where, words),) = found(channel, body, seen())
    assert where == path and wanted in words


@pytest.mark.parametrize(
    ("view", "wrong"), [(None, []), (seen((), False), []), (seen(()), [("gpu_uuid", "a card of node gpu-a")])]
)
def test_a_card_is_missed_only_where_the_nodes_cards_are_known(
    view: NodeView | None, wrong: list[tuple[str, str]]
) -> None:
    assert found("slice", {}, view) == wrong
