"""The OpenAPI document: what each route takes and gives, from the values that the modules with routes list.

A module lists its own routes as OPERATIONS; this file must not know any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

Method = Literal["get", "post", "delete"]

_REFERENCE = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request cannot be served as it is",
    "401": "A key is needed",
    "403": "This name, this page's origin or this key may not do that",
    "404": "There is no such thing",
    "405": "There is no such method here",
    "408": "It took too long",
    "413": "The body is too large",
    "429": "Too many requests wait, or the key has used up its own: Retry-After says when to try again",
    "500": "The server has failed",
    "501": "This model cannot do that",
    "503": "The server stops, or no engine is left",
}


TEXT = {"type": "string"}
NAME = {"type": "string", "minLength": 1}
NUMBER = {"type": "integer"}
COUNT = {"type": "integer", "minimum": 0}


def record(required: Mapping[str, Any], /, **optional: Any) -> dict[str, Any]:
    """The schema of an object."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def listed(items: Any, **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **bounds}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path (`{name}` in it is a parameter)."""

    method: Method
    path: str
    summary: str
    request: type[BaseModel] | None = None
    """What its body is parsed with."""
    response: Mapping[str, Any] | None = None
    """JSON schema (draft 2020-12) of a successful answer that is not streamed."""
    streams: bool = False
    """Whether it answers with server-sent events too, if the body says so."""
    has_answer: bool = True
    """Whether a successful answer has a body; else it is 204."""
    needs_body: bool = True
    """Whether there is nothing that it does without one."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """JSON schemas of what has to stand behind the path's `?`, by name."""


def document(operations: Iterable[Operation], *, version: str) -> dict[str, Any]:
    """OpenAPI 3.1."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "luce serve", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"[^a-z0-9]+", "_", f"{operation.method}{operation.path}".lower()).strip("_"),
        "responses": {
            "200" if operation.has_answer else "204": _success(operation, schemas),
            **_failures(operation.path),
        },
    }
    in_path = dict.fromkeys(re.findall(r"\{(\w+)\}", operation.path), NAME)
    if in_path or operation.query:
        said["parameters"] = [
            {"name": name, "in": place, "required": True, "schema": schema}
            for place, schemas_by_name in (("path", in_path), ("query", operation.query))
            for name, schema in schemas_by_name.items()
        ]
    if operation.request is not None:
        schema = operation.request.model_json_schema(ref_template=_REFERENCE)
        name = operation.request.__name__
        schemas[name] = _without_definitions(schema, schemas)
        content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}}
        said["requestBody"] = {"required": operation.needs_body, "content": content}
    return said


def _success(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.response is not None:
        schema = _without_definitions(dict(operation.response), schemas)
        content["application/json"] = {"schema": schema}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "The answer", **({"content": content} if content else {})}


def _failures(path: str) -> dict[str, Any]:
    schema = _ANTHROPIC_ERROR if path.startswith("/v1/messages") else _OPENAI_ERROR
    content = {"application/json": {"schema": schema}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}


def _without_definitions(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """What a model's schema defines beside itself moves to the document's own schemas."""
    definitions = schema.pop("$defs", {})
    schemas.update({name: _moved(value) for name, value in definitions.items()})
    moved: dict[str, Any] = _moved(schema)
    return moved


def _moved(value: Any) -> Any:
    """The same with references to the document's schemas."""
    if isinstance(value, dict):
        return {
            key: item.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(item, str)
            else _moved(item)
            for key, item in value.items()
        }
    return [_moved(item) for item in value] if isinstance(value, list) else value


_OPENAI_ERROR = record(
    {
        "error": record(
            {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            n_prompt_tokens=NUMBER,
            n_ctx=NUMBER,
        )
    }
)
_ANTHROPIC_ERROR = record(
    {"type": {"const": "error"}, "error": record({"type": TEXT, "message": TEXT}), "request_id": TEXT}
)
