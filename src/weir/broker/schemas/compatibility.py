"""Which schemas are well-formed, which are the same, and which may follow which."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import Any

from weir.broker.schemas.avro import parse_avro, unreadable
from weir.broker.schemas.protobuf import parse_protobuf, unparsable
from weir.model.errors import IncompatibleSchemaError, InvalidSchemaError
from weir.model.policies import SchemaCompatibility
from weir.model.registry import StoredSchema

#: Larger ones do not fit into the metadata store.
MAX_SCHEMA_BYTES = 512 * 1024

#: What a topic has whose values are bytes, by an administrator's word; clients do not say it.
BYTES = "BYTES"
#: Types that say that there is no schema, or that the client takes what the topic has.
NO_SCHEMA = ("NONE", BYTES, "AUTO", "AUTO_CONSUME", "AUTO_PUBLISH", "AUTO_PRODUCE")
#: Defined by an Avro definition; PROTOBUF is too, as Pulsar's clients derive one from the message class.
AVRO_DEFINED = ("AVRO", "JSON", "PROTOBUF")
PRIMITIVES = (
    "STRING",
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
)
_PROTOBUF = "PROTOBUF_NATIVE"
_KEY_VALUE = "KEY_VALUE"

_LENGTH = Struct(">i")


@dataclass(frozen=True, slots=True)
class Definition:
    """What of a schema matters here."""

    type: str
    data: bytes
    properties: dict[str, str]


def definition_of(schema: StoredSchema) -> Definition:
    return Definition(schema.type, schema.data, dict(schema.properties))


# --- well-formed ----------------------------------------------------------------------------------------------


def check_valid(schema: Definition) -> None:
    """InvalidSchemaError unless this is a schema of its type."""
    if len(schema.data) > MAX_SCHEMA_BYTES:
        raise InvalidSchemaError(f"a schema has at most {MAX_SCHEMA_BYTES} bytes, not {len(schema.data)}")
    if schema.type in AVRO_DEFINED:
        parsed = parse_avro(schema.data)
        if schema.type == "AVRO" and isinstance(parsed.root, list):
            raise InvalidSchemaError("an AVRO schema cannot be a union", hint="wrap it in a record")
    elif schema.type == _PROTOBUF:
        parse_protobuf(schema.data)
    elif schema.type == _KEY_VALUE:
        for part in split_key_value(schema):
            if part.type == _KEY_VALUE:
                raise InvalidSchemaError("a key or value cannot be a KEY_VALUE itself")
            if part.type not in NO_SCHEMA:
                check_valid(part)
    elif schema.type in (*PRIMITIVES, BYTES):
        if schema.data:
            raise InvalidSchemaError(f"a schema of type {schema.type} has no definition")
    else:
        raise InvalidSchemaError(f"{schema.type[:40]!r} is not a schema type")


def split_key_value(schema: Definition) -> tuple[Definition, Definition]:
    """The schemas of key and value: their definitions lie one after the other, each behind its length (-1 or 0:
    none), and their types and properties are properties of the whole."""
    parts, place = [], 0
    try:
        for name in ("key", "value"):
            (length,) = _LENGTH.unpack_from(schema.data, place)
            start = place + _LENGTH.size
            place = start + max(0, length)
            if length < -1 or place > len(schema.data):
                raise InvalidSchemaError(f"the {name} schema ends too early")
            kind = schema.properties.get(f"{name}.schema.type", "BYTES")
            parts.append(Definition(kind, schema.data[start:place], _nested_properties(schema, name)))
    except error:
        raise InvalidSchemaError("this is not a KEY_VALUE schema: it ends too early") from None
    if place != len(schema.data):
        raise InvalidSchemaError("this is not a KEY_VALUE schema: it goes on behind the value's")
    return parts[0], parts[1]


def _nested_properties(schema: Definition, name: str) -> dict[str, str]:
    text = schema.properties.get(f"{name}.schema.properties") or "{}"
    try:
        found: Any = json.loads(text)
        return {str(key): str(value) for key, value in (found or {}).items()}
    except (ValueError, AttributeError, RecursionError):
        raise InvalidSchemaError(f"the {name} schema's properties are not a JSON object") from None


# --- the same -------------------------------------------------------------------------------------------------


def same(one: Definition, other: Definition) -> bool:
    """Whether both say the same, so that they are one version. Both must be well-formed."""
    if one.type != other.type:
        return False
    if one.type == _KEY_VALUE:
        return all(map(same, split_key_value(one), split_key_value(other)))
    if one.data == other.data:
        return True
    return one.type in AVRO_DEFINED and parse_avro(one.data).canonical() == parse_avro(other.data).canonical()


# --- compatible -----------------------------------------------------------------------------------------------

_LATEST_ONLY = (SchemaCompatibility.BACKWARD, SchemaCompatibility.FORWARD, SchemaCompatibility.FULL)
_NEW_READS_OLD = (
    SchemaCompatibility.BACKWARD,
    SchemaCompatibility.BACKWARD_TRANSITIVE,
    SchemaCompatibility.FULL,
    SchemaCompatibility.FULL_TRANSITIVE,
)
_OLD_READS_NEW = (
    SchemaCompatibility.FORWARD,
    SchemaCompatibility.FORWARD_TRANSITIVE,
    SchemaCompatibility.FULL,
    SchemaCompatibility.FULL_TRANSITIVE,
)


def check_compatible(new: Definition, existing: Sequence[StoredSchema], strategy: SchemaCompatibility) -> None:
    """IncompatibleSchemaError unless the strategy lets `new` follow the existing ones, of which the last is the
    latest. Only those since the last deletion count."""
    if strategy is SchemaCompatibility.UNDEFINED:
        strategy = SchemaCompatibility.FULL
    if not existing or strategy is SchemaCompatibility.ALWAYS_COMPATIBLE:
        return
    if strategy is SchemaCompatibility.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError("the topic takes no other schema than it has")
    against = existing[-1:] if strategy in _LATEST_ONLY else existing
    for old in reversed(against):
        problem = _problem(new, definition_of(old), strategy)
        if problem is not None:
            raise IncompatibleSchemaError(f"not {strategy.value} compatible with version {old.version}: {problem}")


def _problem(new: Definition, old: Definition, strategy: SchemaCompatibility) -> str | None:
    if new.type != old.type:
        return f"its type is {new.type}, not {old.type}"
    if new.type == _KEY_VALUE:
        problems = map(_problem, split_key_value(new), split_key_value(old), (strategy, strategy))
        return next((problem for problem in problems if problem is not None), None)
    if new.data == old.data:
        return None
    if new.type in AVRO_DEFINED:
        return _both_ways(parse_avro(new.data), parse_avro(old.data), unreadable, strategy)
    if new.type == _PROTOBUF:
        return _both_ways(parse_protobuf(new.data), parse_protobuf(old.data), unparsable, strategy)
    return None  # a primitive type is the same as itself


def _both_ways(
    new: Any, old: Any, cannot: Callable[[Any, Any], str | None], strategy: SchemaCompatibility
) -> str | None:
    """`cannot(reader, writer)` says why not."""
    problem = cannot(new, old) if strategy in _NEW_READS_OLD else None
    if problem is None and strategy in _OLD_READS_NEW:
        problem = cannot(old, new)
    return problem
