"""Nodes and cards over HTTP."""

from __future__ import annotations

from collections import Counter

import flask

from runtime.protocol import routes
from runtime.protocol.build import DEV
from runtime.protocol.codec import encode
from runtime.protocol.nodes import (
    BuildLedger,
    BuildUse,
    CardList,
    CordonRequest,
    DrainRequest,
    NodeList,
    UncordonRequest,
)
from runtime.server import validation
from runtime.server.auth import operator, parts
from runtime.server.services import node_actions, node_why, nodes

blueprint = flask.Blueprint("nodes", __name__)


@blueprint.get(routes.NODES)
def listed() -> flask.Response:
    operator()
    return flask.jsonify(encode(NodeList(nodes.read_nodes(parts().db, parts().presence))))


@blueprint.get(f"{routes.NODES}/<node_id>")
def shown(node_id: str) -> flask.Response:
    operator()
    return _node(node_id)


@blueprint.delete(f"{routes.NODES}/<node_id>")
def deleted(node_id: str) -> tuple[str, int]:
    who = operator("admin")
    node_actions.delete(parts().db, parts().presence, node_id, who.name)
    return "", 204


@blueprint.post(f"{routes.NODES}/<node_id>/cordon")
def cordoned(node_id: str) -> flask.Response:
    who = operator("admin")
    raw = flask.request.get_data() or b"{}"
    request = validation.parse(CordonRequest, raw, code="invalid_task", forbid_unknown=True)
    node_actions.cordon(parts().db, parts().presence, node_id, request, who.name)
    return _node(node_id)


@blueprint.post(f"{routes.NODES}/<node_id>/uncordon")
def uncordoned(node_id: str) -> flask.Response:
    who = operator("admin")
    raw = flask.request.get_data() or b"{}"
    request = validation.parse(UncordonRequest, raw, code="invalid_task", forbid_unknown=True)
    node_actions.uncordon(parts().db, parts().presence, node_id, request, who.name)
    return _node(node_id)


@blueprint.post(f"{routes.NODES}/<node_id>/drain")
def drained(node_id: str) -> flask.Response:
    who = operator("admin")
    raw = flask.request.get_data() or b"{}"
    request = validation.parse(DrainRequest, raw, code="invalid_task", forbid_unknown=True)
    node_actions.drain(parts().db, parts().presence, node_id, request, who.name)
    return _node(node_id)


@blueprint.post(f"{routes.NODES}/<node_id>/release")
def released(node_id: str) -> flask.Response:
    who = operator("admin")
    node_actions.release(parts().db, parts().presence, node_id, who.name)
    return _node(node_id)


@blueprint.get(routes.GPUS)
def cards() -> flask.Response:
    operator()
    return flask.jsonify(encode(CardList(nodes.read_cards(parts().db, parts().presence))))


@blueprint.get(f"{routes.GPUS}/<uuid>")
def card(uuid: str) -> flask.Response:
    operator()
    return flask.jsonify(encode(nodes.read_card(parts().db, parts().presence, uuid)))


@blueprint.get(f"{routes.NODES}/<node_id>/why")
def why_node(node_id: str) -> flask.Response:
    operator()
    with parts().db.read() as connection:
        found = node_why.of_node(connection, node_id, parts().presence, parts().settings.mps_max)
    return flask.jsonify(encode(found))


@blueprint.get(f"{routes.GPUS}/<uuid>/why")
def why_card(uuid: str) -> flask.Response:
    operator()
    with parts().db.read() as connection:
        found = node_why.of_card(connection, uuid, parts().presence, parts().settings.mps_max)
    return flask.jsonify(encode(found))


@blueprint.get(f"{routes.GPUS}/<uuid>/history")
def card_history(uuid: str) -> flask.Response:
    operator()
    history = parts().history
    if not history.knows(uuid):
        nodes.read_card(parts().db, parts().presence, uuid)  # a card that never measured anything has no points
    return flask.jsonify(encode(history.read(uuid)))


@blueprint.get(routes.BUILDS)
def builds() -> flask.Response:
    """Which build how many nodes run; dirty and development builds are flagged."""
    operator()
    found = Counter(
        (node.agent.version, node.agent.commit, node.agent.built_at, node.agent.dirty)
        for node in nodes.read_nodes(parts().db, parts().presence)
        if node.agent is not None
    )
    ledger = [
        BuildUse(version, commit, built_at, dirty, bool(dirty) or version == DEV.version, count)
        for (version, commit, built_at, dirty), count in found.most_common()
    ]
    return flask.jsonify(encode(BuildLedger(ledger)))


def _node(node_id: str) -> flask.Response:
    return flask.jsonify(encode(nodes.read_node(parts().db, parts().presence, node_id)))
