"""``GET /openapi.json``: the contract as a document, made from the protocol's dataclasses."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import flask
from pydantic import TypeAdapter

from runtime.protocol import routes
from runtime.protocol.build import this_build
from runtime.protocol.problems import CODES, MEDIA_TYPE
from runtime.server.api import contract
from runtime.server.api.contract.operation import (
    AGENT,
    ALWAYS,
    AS_AGENT,
    AS_OPERATOR,
    EITHER,
    OPERATOR,
    WITH_BODY,
    Operation,
)
from runtime.server.validation import adapter

blueprint = flask.Blueprint("openapi", __name__)

REFERENCE = "#/components/schemas/{model}"
JSON = "application/json"


@blueprint.get("/openapi.json")
def openapi() -> flask.Response:
    return flask.jsonify(document())


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document of this release."""
    shapes, definitions = _schemas()
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for operation in contract.OPERATIONS:
        paths[operation.path][operation.method] = _operation(operation, shapes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HeteroFleet",
            "version": this_build().version,
            "description": "GPU work on a fleet of machines that nobody can dial into.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(paths),
        "components": {
            "schemas": {**definitions, "Problem": _PROBLEM},
            "securitySchemes": {
                "systemKey": {"type": "apiKey", "in": "header", "name": routes.HEADER_API_KEY},
                "operatorToken": {"type": "http", "scheme": "bearer"},
            },
            "headers": {
                routes.HEADER_CONTROL_PLANE: {"schema": {"type": "string"}, "description": "which database answers"},
                routes.HEADER_REVISION: {"schema": {"type": "string"}, "description": "its newest committed change"},
            },
        },
    }


def codes_of(operation: Operation) -> dict[int, list[str]]:
    """Status -> the problem codes that the operation may answer with."""
    codes = [*ALWAYS, *operation.codes]
    if operation.who == AGENT:
        codes += AS_AGENT
    elif operation.who == OPERATOR:
        codes += AS_OPERATOR
    elif operation.who == EITHER:
        codes += (*AS_AGENT, *AS_OPERATOR)
    if operation.method in ("post", "put", "delete"):
        codes += WITH_BODY
    found: dict[int, set[str]] = defaultdict(set)
    for code in codes:
        for status in CODES[code]:
            found[status].add(code)
    return {status: sorted(found[status]) for status in sorted(found)}


def _schemas() -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """A schema for every body and answer, and the definitions that they share."""
    classes = {
        shape
        for operation in contract.OPERATIONS
        for shape in (operation.body, *operation.answers.values())
        if isinstance(shape, type)
    }
    inputs = [(cls, "validation", adapter(cls)) for cls in sorted(classes, key=lambda cls: cls.__name__)]
    by_key, shared = TypeAdapter.json_schemas(inputs, ref_template=REFERENCE)  # type: ignore[arg-type]
    shapes = {cls: schema for (cls, _), schema in by_key.items()}
    return shapes, shared.get("$defs", {})


def _operation(operation: Operation, shapes: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "operationId": _name(operation),
        "summary": operation.summary,
        "security": [{name: []} for name in operation.who],
        "parameters": _parameters(operation),
        "responses": _responses(operation, shapes),
    }
    if operation.body is not None:
        result["requestBody"] = {
            "required": operation.body_required,
            "content": {JSON: {"schema": shapes[operation.body]}},
        }
    return result


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "{id}" in operation.path:
        found.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    if operation.who == AGENT and operation.path != routes.PREFLIGHT:
        found += [
            {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
            for name in (routes.HEADER_NODE, routes.HEADER_INSTANCE)
        ]
    for parameter in operation.parameters:
        shown: dict[str, Any] = {
            "name": parameter.name,
            "in": parameter.where,
            "required": parameter.required,
            "schema": parameter.schema,
        }
        if parameter.text:
            shown["description"] = parameter.text
        found.append(shown)
    return found


def _responses(operation: Operation, shapes: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    headers = {
        name: {"$ref": f"#/components/headers/{name}"} for name in (routes.HEADER_CONTROL_PLANE, routes.HEADER_REVISION)
    }
    found: dict[str, Any] = {}
    for status, shape in operation.answers.items():
        answer: dict[str, Any] = {"description": _PHRASES[status], "headers": headers}
        if isinstance(shape, str):
            answer["content"] = {shape: {"schema": {"type": "string"}}}
        elif shape is not None:
            answer["content"] = {JSON: {"schema": shapes[shape] if isinstance(shape, type) else shape}}
        found[str(status)] = answer
    for status, codes in codes_of(operation).items():
        found[str(status)] = {
            "description": ", ".join(codes),
            "headers": headers,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


def _name(operation: Operation) -> str:
    words = operation.path.removeprefix(routes.API).strip("/").replace("{", "").replace("}", "")
    return f"{operation.method}_" + "_".join(words.replace(".", "/").replace("-", "/").split("/"))


_PHRASES = {200: "done", 201: "made", 202: "asked for", 204: "done", 206: "a part", 304: "not changed"}

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457. Members beyond these depend on the code.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": sorted(CODES)},
        "control_plane_id": {"type": ["string", "null"]},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "found", "wanted"],
                "properties": {name: {"type": "string"} for name in ("path", "found", "wanted")},
            },
        },
    },
}
