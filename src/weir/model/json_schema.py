"""JSON Schema as an Avro definition: Pulsar's clients and its registry describe JSON values by Avro records.

What Avro cannot say is refused by its place in the schema, and not left out: the topic's schema would promise less
than the file does.
"""

import re
from collections.abc import Mapping
from typing import Any

from weir.model.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: What says nothing of a value that must hold. `format` is an annotation in JSON Schema, too.
_ANNOTATIONS = frozenset(
    (
        *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
        *("format", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"),
    )
)
_SCALARS = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean", "null": "null"}
_ROOT = "#"
_DEFINED = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
#: Schemas within schemas.
_DEEPEST = 100


def is_json_schema(said: Any) -> bool:
    """Whether a document is a JSON Schema rather than an Avro definition."""
    if not isinstance(said, Mapping):
        return False
    return "$schema" in said or said.get("type") == "object" or bool({"properties", "$defs", "$ref"} & said.keys())


def to_avro(said: Mapping[str, Any]) -> dict[str, Any]:
    """The Avro record of a JSON Schema. ConfigError names the place of what has no translation."""
    found = _Translation(said).of(said, _ROOT, _plain_name(said.get("title")) or "Value")
    if not isinstance(found, dict) or found.get("type") != "record":
        raise _wrong(_ROOT, "the schema is not one of an object with properties")
    return found


class _Translation:
    """One schema: which definitions have their records, and which names are taken."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        #: By reference, the name of the record that it became.
        self._named: dict[str, str] = {}
        self._taken: set[str] = set()
        self._depth = 0

    def of(self, said: Any, at: str, name: str, reference: str = "") -> Any:
        """The Avro type. `name`: of the record or enum that it may become."""
        if not isinstance(said, Mapping):
            raise _wrong(at, "a schema is an object")
        if self._depth >= _DEEPEST:
            raise _wrong(at, f"schemas have at most {_DEEPEST} levels")
        self._depth += 1
        try:
            return self._of(said, at, name, reference)
        finally:
            self._depth -= 1

    def _of(self, said: Mapping[str, Any], at: str, name: str, reference: str) -> Any:
        if "$ref" in said:
            return self._referred(said, at)
        for word in ("anyOf", "oneOf"):
            if word in said:
                return self._choice(said, word, at, name)
        kinds = said.get("type", "object" if "properties" in said else "string" if "enum" in said else None)
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
            raise _wrong(at, "it has no type")
        plain = [kind for kind in kinds if kind != "null"]
        if len(plain) > 1:
            raise _wrong(at, f"a value is of one type, or null, and not {' or '.join(plain)}")
        found = self._typed(
            said, plain[0] if plain else "null", at, name, reference or (at if at == _ROOT else "")
        )
        return ["null", found] if plain and len(kinds) > 1 else found

    def _typed(self, said: Mapping[str, Any], kind: str, at: str, name: str, reference: str) -> Any:
        if "enum" in said:
            return self._enum(said, at, name)
        if kind == "object":
            return self._object(said, at, name, reference)
        if kind == "array":
            _check_words(said, at, {"type", "items"})
            if not isinstance(said.get("items"), Mapping):
                raise _wrong(at, "an array needs items, one schema for all of them")
            return {"type": "array", "items": self.of(said["items"], f"{at}/items", f"{name}Item")}
        if kind not in _SCALARS:
            raise _wrong(at, f"there is no type {kind!r}")
        _check_words(said, at, {"type"})
        return "int" if kind == "integer" and said.get("format") == "int32" else _SCALARS[kind]

    def _object(self, said: Mapping[str, Any], at: str, name: str, reference: str) -> Any:
        _check_words(said, at, {"type", "properties", "required", "additionalProperties"})
        more, properties = said.get("additionalProperties", True), said.get("properties")
        if isinstance(more, Mapping) and not properties:
            return {"type": "map", "values": self.of(more, f"{at}/additionalProperties", f"{name}Value")}
        if isinstance(more, Mapping):
            raise _wrong(at, "an object has properties, or additionalProperties with a schema, and not both")
        if not isinstance(properties, Mapping) or not properties:
            raise _wrong(at, "an object needs properties, or additionalProperties with a schema")
        name = self._take(name)
        if reference:
            self._named[reference] = name
        required = said.get("required", [])
        missing = [one for one in required if one not in properties]
        if missing:
            raise _wrong(at, f"{missing[0]!r} is required and is not among the properties")
        fields = [
            self._field(field, one, f"{at}/properties/{field}", name, needed=field in required)
            for field, one in properties.items()
        ]
        return {"type": "record", "name": name, **_doc(said), "fields": fields}

    def _field(self, field: str, said: Any, at: str, parent: str, *, needed: bool) -> dict[str, Any]:
        if not _NAME.fullmatch(field):
            raise _wrong(at, "a property's name has letters, digits and _, and begins with no digit")
        kind = self.of(said, at, f"{parent}{field[0].upper()}{field[1:]}")
        found: dict[str, Any] = {"name": field, **_doc(said)}
        nullable = isinstance(kind, list) or kind == "null"
        if "default" in said and said["default"] is not None:
            other = [one for one in kind if one != "null"] if isinstance(kind, list) else [kind]
            found["type"] = other[0] if needed and not nullable else [*other, "null"]
            found["default"] = said["default"]
        elif needed and not nullable:
            found["type"] = kind
        else:
            found["type"] = kind if nullable else ["null", kind]
            if not needed or "default" in said:
                found["default"] = None
        return found

    def _enum(self, said: Mapping[str, Any], at: str, name: str) -> Any:
        _check_words(said, at, {"type", "enum"})
        values = said["enum"]
        symbols = [one for one in values if one is not None] if isinstance(values, list) else []
        wrong = next((one for one in symbols if not isinstance(one, str) or not _NAME.fullmatch(one)), None)
        if not symbols or wrong is not None:
            raise _wrong(at, f"an enum has texts of letters, digits and _, and not {wrong!r}")
        found = {"type": "enum", "name": self._take(name), "symbols": list(dict.fromkeys(symbols))}
        return ["null", found] if None in values else found

    def _choice(self, said: Mapping[str, Any], word: str, at: str, name: str) -> Any:
        """One schema or null; Avro's unions say of JSON values no more."""
        _check_words(said, at, {word})
        choices = said[word] if isinstance(said[word], list) else []
        others = [(at_, one) for at_, one in enumerate(choices) if one != {"type": "null"}]
        if len(others) != 1:
            raise _wrong(at, f"{word} is a choice between one schema and null alone")
        found = self.of(others[0][1], f"{at}/{word}/{others[0][0]}", name)
        return found if isinstance(found, list) or len(choices) == 1 else ["null", found]

    def _referred(self, said: Mapping[str, Any], at: str) -> Any:
        _check_words(said, at, {"$ref"})
        reference = said["$ref"]
        if reference in self._named:
            return self._named[reference]
        local = _DEFINED.fullmatch(reference) if isinstance(reference, str) else None
        key = "" if local is None else local[1].replace("~1", "/").replace("~0", "~")
        for where in ("$defs", "definitions"):
            there = self._root.get(where)
            if local is not None and isinstance(there, Mapping) and key in there:
                name = _plain_name(key) or "Value"
                return self.of(there[key], f"#/{where}/{local[1]}", name, reference)
        raise _wrong(at, f"$ref {reference!r} is not a definition of this file (#/$defs/NAME)")

    def _take(self, name: str) -> str:
        found, number = name, 2
        while found in self._taken:
            found, number = f"{name}{number}", number + 1
        self._taken.add(found)
        return found


def _check_words(said: Mapping[str, Any], at: str, known: set[str]) -> None:
    other = sorted(word for word in said if word not in known and word not in _ANNOTATIONS)
    if other:
        raise _wrong(at, f"{', '.join(map(repr, other[:5]))} cannot be said by an Avro definition")


def _doc(said: Any) -> dict[str, str]:
    text = said.get("description") if isinstance(said, Mapping) else None
    return {"doc": text} if isinstance(text, str) else {}


def _plain_name(text: object) -> str:
    """A name that Avro takes, made of a title."""
    words = re.findall(r"[A-Za-z0-9_]+", text) if isinstance(text, str) else []
    found = "".join(word[0].upper() + word[1:] for word in words)
    return found if _NAME.fullmatch(found) else f"_{found}" if found else ""


def _wrong(at: str, what: str) -> ConfigError:
    return ConfigError(
        f"the JSON Schema cannot be a topic's schema: at {at}: {what}",
        hint="Pulsar describes JSON by Avro definitions; leave it out, or upload an Avro definition",
    )
