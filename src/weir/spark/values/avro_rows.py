"""Rows as Arrow gives them, made into what fastavro writes: by the schema, since a row does not tell a map without
entries from a list, nor which member of a union it has."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

Convert = Callable[[Any], Any]

#: What errors call the whole of it.
_ROW = "the row"
#: Unions of these are one column, of the wider type.
_NUMBERS = ({"int", "long"}, {"float", "double"})


def for_avro(schema: Any) -> Convert:
    """For a schema as fastavro has parsed it. ValueError names the part of a row that does not fit."""
    return _of(schema, _ROW, {})


def _of(schema: Any, path: str, named: dict[str, Any]) -> Convert:
    if isinstance(schema, list):
        return _union(schema, path, named)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    if schema["type"] == "null":
        return _as_it_is
    if "name" in schema:
        named[schema["name"]] = schema
    return _there(_converted(schema, path, named), path)


def _converted(schema: Any, path: str, named: dict[str, Any]) -> Convert:
    """Of a value that is there."""
    match schema["type"]:
        case "record":
            before = "" if path == _ROW else f"{path}."
            parts = {one["name"]: _of(one["type"], before + one["name"], named) for one in schema["fields"]}
            return lambda row: {name: parts[name](value) for name, value in row.items()}
        case "array":
            item = _of(schema["items"], f"an item of {path}", named)
            return lambda values: [item(value) for value in values]
        case "map":
            entry = _of(schema["values"], f"an entry of {path}", named)
            return lambda pairs: {key: entry(value) for key, value in _pairs(pairs)}
        case "enum":
            return lambda value: _symbol(value, schema["symbols"], path)
        case "string" if schema.get("logicalType") == "uuid":
            return lambda value: _uuid(value, path)
    return _as_it_is


def _union(schema: list[Any], path: str, named: dict[str, Any]) -> Convert:
    """A column of its only type, or a struct of its members, of which one is given."""
    members = [one for one in schema if one != "null"]
    convert = [_of(one, path, named) for one in members]
    names = {one if isinstance(one, str) else one["type"] for one in members}
    if len(members) == 1 or any(names <= numbers for numbers in _NUMBERS):
        found = convert[0] if members else _as_it_is
    else:

        def found(value: Any) -> Any:
            given = [
                (at, value[f"member{at}"]) for at in range(len(members)) if value.get(f"member{at}") is not None
            ]
            if len(given) > 1:
                raise ValueError(f"{path} has several members of its union")
            if not given:
                return _null(schema, path)
            at, one = given[0]
            branch, made = members[at], convert[at](one)
            # Two records may have the same fields; their names tell them apart.
            full = branch if isinstance(branch, str) else branch.get("name")
            return (full, made) if full in named and named[full]["type"] == "record" else made

    return lambda value: _null(schema, path) if value is None else found(value)


def _null(schema: list[Any], path: str) -> None:
    if "null" not in schema:
        raise ValueError(f"{path} must not be null")


def _as_it_is(value: Any) -> Any:
    return value


def _there(convert: Convert, path: str) -> Convert:
    def found(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{path} must not be null")
        return convert(value)

    return found


def _pairs(value: Any) -> Any:
    """Arrow gives maps as lists of pairs."""
    return value.items() if isinstance(value, Mapping) else value


def _symbol(value: Any, symbols: list[str], path: str) -> Any:
    if value not in symbols:
        raise ValueError(f"{path} is {value!r}, and none of {', '.join(symbols)}")
    return value


def _uuid(value: Any, path: str) -> str:
    try:
        return str(UUID(str(value)))
    except ValueError:
        raise ValueError(f"{path} is {value!r}, which is no UUID") from None
