"""The OpenAPI document and the application's routes are the same thing, both ways."""

from __future__ import annotations

import re

from openapi_spec_validator import validate

from runtime.protocol.problems import CODES
from runtime.server.api import contract, openapi
from runtime.server.app import assemble
from tests.integration.server_tasks.conftest import Plane

PAGES = re.compile(r"/(ui|web|static)(/|$)|^/$")
"""What people look at in a browser is no part of the API's document."""


def routes(plane: Plane) -> set[tuple[str, str]]:
    """(method, path) of every route of the application, in the document's spelling."""
    found: set[tuple[str, str]] = set()
    for rule in assemble(plane.parts).url_map.iter_rules():
        paths = [rule.rule]
        choices = re.search(r"<any\(([^)]*)\):[a-z_]+>", rule.rule)
        if choices:
            paths = [rule.rule.replace(choices.group(0), word.strip()) for word in choices.group(1).split(",")]
        for path in paths:
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                found.add((method.lower(), re.sub(r"<[^>]+>", "{id}", path)))
    return found


def test_every_route_is_described_and_every_description_is_served(plane: Plane) -> None:
    described = {(operation.method, operation.path) for operation in contract.OPERATIONS}
    served = {(method, path) for method, path in routes(plane) if not PAGES.search(path) or path in contract_paths()}
    assert served == described


def contract_paths() -> set[str]:
    return {operation.path for operation in contract.OPERATIONS}


def test_the_document_is_valid_and_served_without_a_token(plane: Plane) -> None:
    status, document = plane.call("GET", "/openapi.json", token="")
    assert status == 200
    validate(document)
    assert set(document["paths"]) == contract_paths()
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


def test_every_problem_code_is_in_the_document() -> None:
    described = {
        code for operation in contract.OPERATIONS for codes in openapi.codes_of(operation).values() for code in codes
    }
    general = {"route_not_found", "method_not_allowed", "too_many_requests"}
    assert set(CODES) - described <= general
