"""The OpenAPI document of the routes: made from the same table that the server goes by."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from weir.admin.routing import Route

_REFUSAL = "Refusal"


class Refusal(msgspec.Struct):
    """Why a call was refused, and what can be done."""

    reason: str


def document(routes: Sequence[Route], *, title: str, version: str) -> dict[str, Any]:
    """The whole document."""
    types = [t for route in routes for t in (route.body, route.answer) if t is not None]
    schemas, components = msgspec.json.schema_components(
        [*types, Refusal], ref_template="#/components/schemas/{name}"
    )
    named = dict(zip(map(id, types), schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, named)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{route.path}",
        "tags": [route.tag or "admin"],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in route.parameters
        ]
        + [
            {"name": q.name, "in": "query", "description": q.summary, "schema": msgspec.json.schema(q.type)}
            for q in route.query
        ],
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        content = {"application/json": {"schema": schemas[id(route.body)]}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    return operation


def _responses(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    refusal = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_REFUSAL}"}}}
    answers: dict[str, Any] = {}
    if route.answer is None:
        answers["204"] = {"description": "done"}
    else:
        content = {"application/json": {"schema": schemas[id(route.answer)]}}
        answers["200"] = {"description": "the answer", "content": content}
    always = {400: "not understood", 401: "not authenticated", 403: "not authorised", 503: "not available now"}
    for status, why in {**always, **route.refusals}.items():
        answers[str(status)] = {"description": why or HTTPStatus(status).phrase, "content": refusal}
    return answers
