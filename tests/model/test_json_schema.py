"""JSON Schema becomes an Avro definition, or is refused by the place of what Avro cannot say."""

from typing import Any

import pytest
from fastavro import parse_schema

from weir.model.errors import ConfigError
from weir.model.json_schema import is_json_schema, to_avro


def of(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def kinds(schema: dict[str, Any]) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in to_avro(schema)["fields"]}


def test_an_object_is_a_record_whose_optional_properties_may_be_null() -> None:
    schema = of(
        {
            "id": {"type": "integer", "description": "its number"},
            "amount": {"type": "number"},
            "paid": {"type": "boolean", "default": False},
            "note": {"type": ["string", "null"]},
            "small": {"type": "integer", "format": "int32"},
        },
        *("id", "small"),
        title="shop order",
        additionalProperties=False,
        **{"$schema": "https://json-schema.org/draft/2020-12/schema"},
    )
    assert is_json_schema(schema)
    assert to_avro(schema) == {
        "type": "record",
        "name": "ShopOrder",
        "fields": [
            {"name": "id", "doc": "its number", "type": "long"},
            {"name": "amount", "type": ["null", "double"], "default": None},
            {"name": "paid", "type": ["boolean", "null"], "default": False},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "small", "type": "int"},
        ],
    }


def test_objects_arrays_maps_enums_and_references_go_into_each_other() -> None:
    schema = of(
        {
            "state": {"enum": ["new", "paid", None]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
            "from": {"$ref": "#/$defs/address"},
            "to": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
            "parts": {"type": "array", "items": of({"sku": {"type": "string"}}, "sku")},
            "next": {"$ref": "#"},
        },
        *("tags", "labels", "from", "parts"),
        **{"$defs": {"address": of({"city": {"type": "string"}}, "city")}},
    )
    found = kinds(schema)
    assert found["state"] == ["null", {"type": "enum", "name": "ValueState", "symbols": ["new", "paid"]}]
    assert found["tags"] == {"type": "array", "items": "string"}
    assert found["labels"] == {"type": "map", "values": "long"}
    assert (found["from"]["name"], found["to"], found["next"]) == (
        "Address",
        ["null", "Address"],
        ["null", "Value"],
    )
    assert found["parts"]["items"]["name"] == "ValuePartsItem"
    parse_schema(to_avro(schema))  # raises for what is no Avro definition


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"a": {"type": "string", "pattern": "x"}}, "#/properties/a: 'pattern' cannot be said"),
        ({"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "'maximum', 'minimum'"),
        ({"a": {"type": ["string", "integer"]}}, "one type, or null, and not string or integer"),
        ({"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}, "choice between one schema and null"),
        ({"a": {"allOf": [{"type": "string"}]}}, "no type"),
        ({"a": {}}, "#/properties/a: it has no type"),
        ({"a": True}, "a schema is an object"),
        ({"a": {"type": "array"}}, "needs items"),
        ({"a": {"type": "array", "items": [{"type": "string"}]}}, "needs items"),
        ({"a": {"type": "object"}}, "needs properties"),
        ({"a": {"type": "object", "patternProperties": {}}}, "patternProperties"),
        ({"a": {"enum": ["in transit"]}}, "'in transit'"),
        ({"a": {"enum": [1, 2]}}, "an enum has texts"),
        ({"a": {"const": 1}}, "no type"),
        ({"a-b": {"type": "string"}}, "letters, digits and _"),
        ({"a": {"$ref": "https://example.com/x"}}, "not a definition of this file"),
        ({"a": {"$ref": "#/$defs/none"}}, "not a definition of this file"),
        ({"a": {"type": "text"}}, "no type 'text'"),
        ({}, "needs properties"),
    ],
)
def test_what_avro_cannot_say_is_refused_by_its_place(properties: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        to_avro(of(properties))
    assert said in refused.value.what


@pytest.mark.parametrize(
    "definition",
    [
        {"$ref": "#/$defs/a"},
        {"type": "array", "items": {"$ref": "#/$defs/a"}},
        {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
    ],
)
def test_definitions_that_never_end_are_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="levels"):
        to_avro(of({"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": definition}}))


def test_what_is_required_is_there_and_a_schema_is_of_an_object() -> None:
    for schema in (of({"a": {"type": "string"}}, "b"), {"$schema": "x", "type": "string"}):
        with pytest.raises(ConfigError):
            to_avro(schema)
    assert not is_json_schema({"type": "record", "name": "R", "fields": []})
    assert not is_json_schema(["null", "string"])
