"""Avro schemas: reading definitions, and whether data written with one can be read with another.

The rules are the Avro specification's, as Pulsar's broker applies them: names of records do not matter (a renamed
class still reads), names of enums and fixeds do, and symbols of enums are not compared, since a missing one only
fails on the datum that has it.
"""

import json
from dataclasses import dataclass
from typing import Any

from weir.model.errors import InvalidSchemaError

#: How deep a definition may nest.
_MAX_DEPTH = 100

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A definition whose names are all full ones, and the named types in it."""

    root: Any
    named: dict[str, Any]

    def resolve(self, schema: Any) -> Any:
        """The definition behind a reference."""
        return self.named.get(schema, schema) if isinstance(schema, str) else schema

    def canonical(self) -> str:
        """Equal for definitions that differ only in layout and documentation."""
        return json.dumps(_without_docs(self.root), sort_keys=True)


def parse_avro(data: bytes) -> AvroSchema:
    """InvalidSchemaError if it is not an Avro definition. Defaults need not fit their types: clients send such."""
    import fastavro.schema  # 50 ms; loaded with the first schema

    try:
        definition = json.loads(data)
        _check_depth(definition)
        named: dict[str, Any] = {}
        root = fastavro.schema.parse_schema(
            definition, named, _write_hint=False, _force=True, _ignore_default_error=True
        )
    except (
        fastavro.schema.SchemaParseException,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as bad:
        raise InvalidSchemaError(f"this is not an Avro schema: {_short(bad)}") from None
    for name, schema in named.items():
        _check_fields(name, schema)
    return AvroSchema(root, named)


def _short(bad: BaseException) -> str:
    return f"{type(bad).__name__}: {bad}"[:300]


def _check_depth(definition: Any) -> None:
    level, depth = [definition], 0
    while level:
        depth += 1
        if depth > 3 * _MAX_DEPTH:  # a type within a type is up to three levels of JSON
            raise InvalidSchemaError(f"a schema nests at most {_MAX_DEPTH} types")
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]


def _check_fields(name: str, schema: Any) -> None:
    fields = [field["name"] for field in schema.get("fields", ())]
    if len(dict.fromkeys(fields)) != len(fields):
        raise InvalidSchemaError(f"record {name} has two fields of one name")


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_docs(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # "doc" documents only where a type or a field is defined; a default may hold anything.
    return {
        key: value if key == "default" else _without_docs(value) for key, value in schema.items() if key != "doc"
    }


def unreadable(reader: AvroSchema, writer: AvroSchema) -> str | None:
    """Why the reader cannot read what the writer wrote, or None if it can."""
    try:
        return _Reading(reader, writer).run()
    except RecursionError:
        raise InvalidSchemaError("the schema's types refer to one another too deeply") from None


class _Reading:
    """One comparison. Records may contain themselves, so a pair of records is taken as readable until shown
    otherwise; then everything is looked at once more without that belief."""

    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader = reader
        self._writer = writer
        self._failed: dict[tuple[str, str], str] = {}
        self._believed: dict[tuple[str, str], None] = {}

    def run(self) -> str | None:
        while True:
            failed = len(self._failed)
            self._believed = {}
            problem = self._problem(self._reader.root, self._writer.root, "")
            if len(self._failed) == failed:
                return problem

    def _problem(self, reader: Any, writer: Any, at: str) -> str | None:
        reader, writer = self._reader.resolve(reader), self._writer.resolve(writer)
        if isinstance(writer, list) or isinstance(reader, list):
            return self._union_problem(reader, writer, at)
        reads, writes = _kind(reader), _kind(writer)
        if reads == writes:
            return self._part_problem(reader, writer, at)
        return None if reads in _PROMOTIONS.get(writes, ()) else f"{_at(at)}: {writes} cannot be read as {reads}"

    def _union_problem(self, reader: Any, writer: Any, at: str) -> str | None:
        """Every branch that may have been written must be readable, each by some branch of the reader."""
        if isinstance(writer, list):
            problems = (self._problem(reader, branch, at) for branch in writer)
            return next((problem for problem in problems if problem is not None), None)
        if any(self._problem(branch, writer, at) is None for branch in reader):
            return None
        return f"{_at(at)}: no branch of the reader's union takes {_kind(writer)}"

    def _part_problem(self, reader: Any, writer: Any, at: str) -> str | None:
        """Of two types of one kind."""
        match _kind(reader):
            case "record":
                return self._record_problem(reader, writer, at)
            case "array":
                return self._problem(reader["items"], writer["items"], f"{at}[]")
            case "map":
                return self._problem(reader["values"], writer["values"], f"{at}{{}}")
            case "enum" | "fixed":
                return _named_problem(reader, writer, at)
        return None

    def _record_problem(self, reader: Any, writer: Any, at: str) -> str | None:
        pair = (reader["name"], writer["name"])
        if pair in self._failed:
            return self._failed[pair]
        if pair in self._believed:
            return None
        self._believed[pair] = None
        problem = self._fields_problem(reader, writer, at)
        if problem is not None:
            self._failed[pair] = problem
        return problem

    def _fields_problem(self, reader: Any, writer: Any, at: str) -> str | None:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            place = f"{at}.{field['name']}" if at else field["name"]
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            if source is None:
                if "default" not in field:
                    return f"{place} is new and has no default"
                continue
            problem = self._problem(field["type"], source["type"], place)
            if problem is not None:
                return problem
        return None


def _at(place: str) -> str:
    return place or "the schema"


def _kind(schema: Any) -> str:
    """record, enum, array, ..., or a primitive type's name."""
    if isinstance(schema, str):
        return schema
    kind = schema["type"]
    if isinstance(kind, dict):
        return _kind(kind)
    return "record" if kind == "error" else str(kind)


def _named_problem(reader: Any, writer: Any, at: str) -> str | None:
    own = reader["name"].rpartition(".")[2]
    aliases = [alias.rpartition(".")[2] for alias in reader.get("aliases", ())]
    if writer["name"].rpartition(".")[2] not in (own, *aliases):
        return f"{_at(at)}: {writer['name']} is not {reader['name']}"
    if _kind(reader) == "fixed" and reader["size"] != writer["size"]:
        return f"{_at(at)}: fixed {own} has another size"
    return None
