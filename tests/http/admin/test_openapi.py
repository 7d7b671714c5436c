"""The OpenAPI document: every route is in it, and its schemas are whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.serving import Server

UNLISTED = {
    "/metrics",  # docs/metrics.md
    "/openapi.json",
    "/",  # a page
    "/window/{path}",  # its files
    "/v1/responses/{response_id}/cancel",  # nothing runs in the background: it is refused
    "/embedding",  # llama-server's older form of /v1/embeddings
    "/embeddings",
    # Second names of what is listed
    "/v1/compress",
    "/completions",
    "/models",
    "/models/{model}",
    "/messages",
    "/messages/count_tokens",
    "/v1/health",
    "/chat/completions",
    "/chat/completions/input_tokens",
    "/rerank",
    "/reranking",
    "/v1/reranking",
    "/v2/rerank",
    "/responses",
    "/responses/input_tokens",
    "/responses/{response_id}",
    "/responses/{response_id}/input_items",
    "/responses/{response_id}/cancel",
}


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/openapi.json", timeout=120).json()
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_route_is_listed(server: Server, document: dict[str, Any]) -> None:
    routes = {
        (route.method.lower(), re.sub(r":[^}]*\}", "}", route.resource.canonical))
        for route in server.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    listed = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert {route for route in routes if route[1] not in UNLISTED} == listed
    assert {path for _, path in routes} >= UNLISTED


def test_what_is_referred_to_is_there(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert found
    prefix = "#/components/schemas/"
    assert all(name.startswith(prefix) for name in found)
    assert {name.removeprefix(prefix) for name in found} <= set(document["components"]["schemas"])
    assert "$defs" not in str(document)


def test_each_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_paths_name_their_parameters(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path))


def test_slots_take_an_action_and_for_some_a_body(document: dict[str, Any]) -> None:
    operation = document["paths"]["/slots/{id}"]["post"]
    (action,) = [one for one in operation["parameters"] if one["in"] == "query"]
    assert (action["name"], action["required"]) == ("action", True)
    assert action["schema"] == {"enum": ["save", "restore", "erase"]}
    assert operation["requestBody"]["required"] is False
    shapes = operation["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert ["n_saved" in shape["required"] for shape in shapes] == [True, False, False]
    infill = document["paths"]["/infill"]["post"]
    assert infill["requestBody"]["required"] is True
    assert infill["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
