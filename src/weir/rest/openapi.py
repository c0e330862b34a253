"""The OpenAPI document of the routes, generated from the same table that the server uses."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from weir.rest.routes import JSON, PATH_PARAMETERS, PATH_SCHEMAS, Route

_REFUSAL = "Refusal"
#: Error statuses of every call.
_ALWAYS = {
    400: "not understood",
    401: "not authenticated",
    403: "not authorised",
    413: "the request or its answer is too large",
    503: "not available now",
}


class Refusal(msgspec.Struct):
    """The reason for a refused call, and a remedy."""

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
        "parameters": [_path_parameter(name) for name in route.parameters]
        + [
            {"name": q.name, "in": "query", "description": q.summary, "schema": msgspec.json.schema(q.type)}
            for q in route.query
        ],
        "responses": _responses(route, schemas),
    }
    if route.open:
        operation["security"] = []
    if route.body is not None:
        content = {JSON: {"schema": schemas[id(route.body)]}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    known = PATH_PARAMETERS.get(name) or PATH_SCHEMAS.get(name)
    schema = {"type": "string", "minLength": 1} if known is None else msgspec.json.schema(known)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _responses(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    refusal = {JSON: {"schema": {"$ref": f"#/components/schemas/{_REFUSAL}"}}}
    answers: dict[str, Any] = {}
    if route.media != JSON:
        answers["200"] = {"description": "the answer", "content": {route.media: {"schema": {"type": "string"}}}}
    elif route.answer is not None:
        content = {JSON: {"schema": schemas[id(route.answer)]}}
        answers["200"] = {"description": "the answer", "content": content}
    if route.empty or not answers:
        answers["204"] = {"description": "nothing was said about it" if route.empty else "done"}
    if route.creates:
        answers["201"] = {"description": "made anew"}
    for status, why in {**_ALWAYS, **route.refusals}.items():
        if status == HTTPStatus.TEMPORARY_REDIRECT:
            answers[str(status)] = {"description": why, "headers": {"Location": {"schema": {"type": "string"}}}}
        else:
            answers[str(status)] = {"description": why or HTTPStatus(status).phrase, "content": refusal}
    return answers
