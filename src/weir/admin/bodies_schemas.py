"""Bodies of schemas, with Pulsar's field names."""

from typing import Literal

from msgspec import Struct, field

from weir.admin.bodies import Properties
from weir.admin.bodies_policies import Strategy

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
