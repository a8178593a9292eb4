"""The second pass over an instruction as sent: what no type says, and whether the node has the card. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Union

from runtime.protocol.instructions import FileRequest, ImageRequest, SliceRequest
from runtime.protocol.names import ImageReferenceError, parse_image_reference
from runtime.protocol.paths import WANTED, path_fault
from runtime.protocol.problems import Fault
from runtime.server.services.node_view import NodeView

Request = Union[SliceRequest, ImageRequest, FileRequest]

CARDS_OF = {"nvidia-mig": "nvidia", "hygon-hami": "hygon"}
"""How a card is cut -> whose cards are cut so."""
ONLY_WITH = (("url", "fetch"), ("sha256", "fetch"), ("lines", "tail"))
"""Members of a file request that say something with one operation alone."""


def faults(request: Request, view: NodeView | None) -> list[Fault]:
    """Everything that is wrong with ``request``. ``view``: its node as it is known now; None: not at all."""
    if isinstance(request, SliceRequest):
        return [*_slice(request), *_card(request, view)]
    return list(_image(request) if isinstance(request, ImageRequest) else _file(request))


def _slice(request: SliceRequest) -> Iterator[Fault]:
    if request.op == "create":
        if not request.profiles:
            yield Fault("profiles", "nothing", "at least one {name, count} with op create")
        if request.instances:
            yield Fault("instances", f"a list of {len(request.instances)}", "none with op create")
    else:
        if not request.instances:
            yield Fault("instances", "nothing", "at least one {gi_id, ci_id} with op destroy: only what is named goes")
        if request.profiles:
            yield Fault("profiles", f"a list of {len(request.profiles)}", "none with op destroy")


def _card(request: SliceRequest, view: NodeView | None) -> Iterator[Fault]:
    if view is None or not view.cards_known:
        return  # the node looks again itself
    card = next((gpu for gpu in view.gpus if gpu.uuid == request.gpu_uuid), None)
    if card is None:
        yield Fault("gpu_uuid", repr(request.gpu_uuid[:80]), f"a card of node {request.node_id}")
    elif card.parent_uuid is not None:
        yield Fault("gpu_uuid", f"{request.gpu_uuid!r}, a slice", f"a whole card, as its own {card.parent_uuid!r}")
    elif card.vendor != CARDS_OF[request.vendor]:
        wanted = f"a card of {CARDS_OF[request.vendor]} with vendor {request.vendor}"
        yield Fault("gpu_uuid", f"{request.gpu_uuid!r}, a card of {card.vendor}", wanted)


def _image(request: ImageRequest) -> Iterator[Fault]:
    try:
        parse_image_reference(request.image)
    except ImageReferenceError as error:
        yield Fault("image", repr(request.image), f"[registry/]repository[:tag][@digest]; {error}")


def _file(request: FileRequest) -> Iterator[Fault]:
    words = path_fault(request.path) or ("has '..' in it" if ".." in request.path.split("/") else None)
    if words is not None:
        yield Fault("path", f"a path that {words}: {request.path[:80]!a}", WANTED)
    if request.op == "fetch" and request.sha256 is None:
        yield Fault("sha256", "nothing", "the file's sha256 with op fetch")
    if request.url is not None and request.op == "fetch" and not request.url.startswith(("http://", "https://")):
        yield Fault("url", "another scheme", "an address that begins with http:// or https://")
    for name, op in ONLY_WITH:
        if getattr(request, name) is not None and request.op != op:
            yield Fault(name, f"a value with op {request.op}", f"none, or op {op}")
