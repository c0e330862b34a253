"""Schemas of topics: get, post, delete, ask whether one would do.

Bodies of schemas, with Pulsar's field names.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Literal

from msgspec import Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_TOPIC, CONFLICT, V2, Properties, topic_of
from weir.admin.policies import Strategy
from weir.broker.api.schemas import SchemaData, version_bytes, version_number
from weir.model.errors import IncompatibleSchemaError, InvalidSchemaError
from weir.model.policies import SchemaCompatibility
from weir.model.registry import StoredSchema
from weir.model.topics import TopicName
from weir.rest.routes import Call, Route

SchemaType = Literal[
    "NONE",
    "BYTES",
    "STRING",
    "JSON",
    "PROTOBUF",
    "PROTOBUF_NATIVE",
    "AVRO",
    "BOOLEAN",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FLOAT",
    "DOUBLE",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "INSTANT",
    "LOCAL_DATE",
    "LOCAL_TIME",
    "LOCAL_DATE_TIME",
    "KEY_VALUE",
]


class PostSchemaPayload(Struct):
    type: SchemaType
    schema: str = ""
    properties: Properties = field(default_factory=dict)


class PostSchemaResponse(Struct):
    version: int


class GetSchemaResponse(Struct):
    version: int
    type: str
    timestamp: int
    data: str
    properties: Properties = field(default_factory=dict)


class GetAllVersionsSchemaResponse(Struct):
    getSchemaResponses: list[GetSchemaResponse]


class IsCompatibilityResponse(Struct):
    """`compatibility` is what newer servers call it."""

    isCompatibility: bool
    schemaCompatibilityStrategy: Strategy
    compatibility: bool = False


_BASE = f"{V2}/schemas/{{tenant}}/{{namespace}}/{{topic}}"
_TAG = "schemas"
_BAD = {422: "the schema's definition cannot be read", **ABOUT_TOPIC, **CONFLICT}
#: Definitions that are bytes rather than text; they travel as base64.
_BINARY = ("PROTOBUF_NATIVE", "KEY_VALUE")


class Schemas:
    """A partition's schemas are its topic's, and a topic can have them before it exists."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        one = f"{_BASE}/schema"
        return [
            self._get_route(one, "The latest schema.", self._get),
            self._get_route(f"{one}/{{version}}", "The schema of a version.", self._get),
            Route(
                "GET",
                f"{_BASE}/schemas",
                "Every version.",
                self._all,
                answer=GetAllVersionsSchemaResponse,
                refusals=ABOUT_TOPIC,
                tag=_TAG,
            ),
            Route(
                "POST",
                one,
                "Add a version.",
                self._post,
                body=PostSchemaPayload,
                answer=PostSchemaResponse,
                refusals=_BAD,
                tag=_TAG,
            ),
            Route(
                "DELETE",
                one,
                "From now on it has no schema.",
                self._delete,
                answer=PostSchemaResponse,
                refusals=_BAD,
                tag=_TAG,
            ),
            Route(
                "POST",
                f"{_BASE}/compatibility",
                "Whether a schema could be added.",
                self._check,
                body=PostSchemaPayload,
                answer=IsCompatibilityResponse,
                refusals=_BAD,
                tag=_TAG,
            ),
            Route(
                "POST",
                f"{_BASE}/version",
                "The version that a schema has.",
                self._version,
                body=PostSchemaPayload,
                answer=PostSchemaResponse,
                refusals=_BAD,
                tag=_TAG,
            ),
        ]

    def _get_route(self, path: str, summary: str, action: object) -> Route:
        return Route("GET", path, summary, action, answer=GetSchemaResponse, refusals=ABOUT_TOPIC, tag=_TAG)  # type: ignore[arg-type]

    async def _get(self, call: Call) -> GetSchemaResponse:
        name, version = self._found(call), call.path.get("version")
        return _shown(await self._context.schemas.get(name, None if version is None else version_bytes(version)))

    async def _all(self, call: Call) -> GetAllVersionsSchemaResponse:
        found = await self._context.schemas.versions(self._found(call))
        return GetAllVersionsSchemaResponse([_shown(schema) for schema in found])

    async def _post(self, call: Call) -> PostSchemaResponse:
        name = self._administered(call)
        version = await self._context.schemas.register(name, _schema(call.body), role=call.role)
        return PostSchemaResponse(version_number(version))

    async def _delete(self, call: Call) -> PostSchemaResponse:
        version = await self._context.schemas.delete(self._administered(call), role=call.role)
        return PostSchemaResponse(version_number(version))

    async def _check(self, call: Call) -> IsCompatibilityResponse:
        name = self._administered(call)
        strategy = (
            await self._context.registry.look_policies(name)
        ).schema_compatibility or SchemaCompatibility.FULL
        try:
            await self._context.schemas.check(name, _schema(call.body))
            good = True
        except IncompatibleSchemaError:
            good = False
        return IsCompatibilityResponse(good, strategy.value, good)

    async def _version(self, call: Call) -> PostSchemaResponse:
        version = await self._context.schemas.find_version(self._administered(call), _schema(call.body))
        return PostSchemaResponse(version_number(version))

    def _found(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check_lookup(call.role, name)
        self._context.registry.namespaces.get(name.namespace)
        return name.base

    def _administered(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        self._context.registry.namespaces.get(name.namespace)
        return name.base


def _schema(body: PostSchemaPayload) -> SchemaData:
    if body.type == "NONE":  # Pulsar's other word for it
        return SchemaData("BYTES", b"", properties=body.properties)
    if body.type not in _BINARY:
        return SchemaData(body.type, body.schema.encode(errors="surrogatepass"), properties=body.properties)
    try:
        data = b64decode(body.schema, validate=True)
    except (Base64Error, ValueError):
        data = body.schema.encode(errors="surrogatepass")
    return SchemaData(body.type, data, properties=body.properties)


def _shown(schema: StoredSchema) -> GetSchemaResponse:
    try:
        data = b64encode(schema.data).decode() if schema.type in _BINARY else schema.data.decode()
    except UnicodeDecodeError as bad:
        raise InvalidSchemaError(f"version {schema.version} is not text") from bad
    return GetSchemaResponse(schema.version, schema.type, schema.created_ms, data, dict(schema.properties))
