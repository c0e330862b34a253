"""Which Avro definitions are well-formed, and which can read what another wrote.

Where fastavro can be asked, its decoder is the judge: what is called readable here must decode there.
"""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.broker.schemas.avro import parse_avro, unreadable
from weir.model.errors import InvalidSchemaError
from weir.testing.kinds import rounds


def schema(definition: Any) -> bytes:
    return json.dumps(definition).encode()


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """Fields as (name, type) or (name, type, default)."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field[0], "type": field[1], **({"default": field[2]} if len(field) > 2 else {})}
            for field in fields
        ],
    }


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


NODE = record(("value", "int"), ("next", ["null", "Node"], None), name="Node")
LONG_NODE = record(("value", "long"), ("next", ["null", "Node"], None), name="Node")

#: reader, writer, whether it reads
TABLE: dict[str, tuple[Any, Any, bool]] = {
    "the same": (record(("a", "int")), record(("a", "int")), True),
    "a field less": (record(), record(("a", "int")), True),
    "a field more without default": (record(("a", "int")), record(), False),
    "a field more with default": (record(("a", "int", 1)), record(), True),
    "a field more with null default": (record(("a", ["null", "int"], None)), record(), True),
    "another name of the record": (record(("a", "int"), name="S"), record(("a", "int")), True),
    "fields in another order": (record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "int")), True),
    "an alias": (
        {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]},
        record(("a", "int")),
        True,
    ),
    "another type": (record(("a", "string")), record(("a", "int")), False),
    "int as long": ("long", "int", True),
    "int as float": ("float", "int", True),
    "int as double": ("double", "int", True),
    "long as float": ("float", "long", True),
    "long as double": ("double", "long", True),
    "float as double": ("double", "float", True),
    "string as bytes": ("bytes", "string", True),
    "bytes as string": ("string", "bytes", True),
    "long as int": ("int", "long", False),
    "double as float": ("float", "double", False),
    "int as boolean": ("boolean", "int", False),
    "null as int": ("int", "null", False),
    "into a union": (["null", "int"], "int", True),
    "promoted into a union": (["null", "long"], "int", True),
    "into a union without it": (["null", "int"], "string", False),
    "out of a union": ("int", ["null", "int"], False),
    "out of a union of one": ("long", ["int"], True),
    "a union that grew": (["null", "int", "string"], ["int", "null"], True),
    "a union that shrank": (["null", "int"], ["null", "int", "string"], False),
    "a record within a union": (["null", record(("a", "int"))], record(("a", "int")), True),
    "another record within a union": (["null", record(("b", "int"))], record(("a", "int")), False),
    "items of arrays": ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
    "items that do not fit": ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, False),
    "values of maps": ({"type": "map", "values": "double"}, {"type": "map", "values": "int"}, True),
    "a map as an array": ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, False),
    "an enum that grew": (enum("a", "b"), enum("a"), True),
    "an enum that shrank": (enum("a"), enum("a", "b"), True),  # fails only on the datum, as in Pulsar
    "another enum": (enum("a", name="X"), enum("a"), False),
    "an enum by alias": (enum("a", name="X", aliases=["E"]), enum("a"), True),
    "a fixed": (fixed(4), fixed(4), True),
    "a fixed of another size": (fixed(4), fixed(5), False),
    "another fixed": (fixed(4, "X"), fixed(4), False),
    "a record within itself": (NODE, NODE, True),
    "a promotion within itself": (LONG_NODE, NODE, True),
    "no promotion within itself": (NODE, LONG_NODE, False),
    "logical types are their base": ("int", {"type": "int", "logicalType": "date"}, True),
    "a type written long": ({"type": "int"}, "int", True),
}


@pytest.mark.parametrize(("reader", "writer", "reads"), TABLE.values(), ids=TABLE)
def test_reading(reader: Any, writer: Any, reads: bool) -> None:
    problem = unreadable(parse_avro(schema(reader)), parse_avro(schema(writer)))
    assert (problem is None) is reads, problem


def test_a_problem_is_named_by_its_place() -> None:
    old = record(("a", record(("b", {"type": "array", "items": "string"}), name="Inner")))
    new = record(("a", record(("b", {"type": "array", "items": "int"}), name="Inner")))
    problem = unreadable(parse_avro(schema(new)), parse_avro(schema(old)))
    assert problem == "a.b[]: string cannot be read as int"


def test_a_pair_of_records_that_fails_later_is_not_believed_elsewhere() -> None:
    # A holds B, and B holds A. While A is believed B passes; then A fails by its other field, and is read by the
    # union's second branch instead. B on its own is still unreadable, since it holds A.
    def both(kind: str) -> dict[str, Any]:
        inner = record(("up", {"type": "array", "items": "A"}), name="B")
        return record(("b", inner), ("other", kind), name="A")

    fallback = record(("b", record(name="Empty")), name="Fallback")
    reader = record(("u", [both("int"), fallback]), ("v", "B"), name="Top")
    writer = record(("u", both("string")), ("v", "B"), name="Top")
    problem = unreadable(parse_avro(schema(reader)), parse_avro(schema(writer)))
    assert problem is not None
    assert problem.endswith("string cannot be read as int")


def test_types_that_share_types_again_and_again_cost_little() -> None:
    fields: list[Any] = [("x0", record(("v", "int"), name="T0"))]
    fields += [(f"x{n}", record(("l", f"T{n - 1}"), ("r", f"T{n - 1}"), name=f"T{n}")) for n in range(1, 60)]
    parsed = parse_avro(schema(record(*fields)))
    assert unreadable(parsed, parsed) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"nonsense",
        b"1",
        b"null",
        b"{}",
        b'"unknown"',
        b'{"type":"record"}',
        b'{"type":"record","name":"R","fields":7}',
        b'{"type":"record","name":"R","fields":[7]}',
        b'{"type":"record","name":"R","fields":[{"name":"a"}]}',
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"Other"}]}',
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        b'{"type":"array"}',
        b'{"type":"enum","name":"E"}',
        b"[" * 5000 + b"]" * 5000,
        b'{"type":"array","items":' * 400 + b'"int"' + b"}" * 400,
    ],
)
def test_what_is_no_definition_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidSchemaError):
        parse_avro(data)


def test_a_default_need_not_fit_its_type() -> None:
    # Pulsar's Python client writes null as the default of required fields.
    parse_avro(schema(record(("a", "string", None), ("b", ["null", "int"], 5))))


def test_layout_and_documentation_make_no_difference() -> None:
    plain = record(("a", "int", 1))
    documented = json.loads(json.dumps(plain))
    documented["doc"] = "a record"
    documented["fields"][0]["doc"] = "a field"
    assert (
        parse_avro(schema(plain)).canonical() == parse_avro(json.dumps(documented, indent=4).encode()).canonical()
    )
    other = record(("a", "int", 2))
    assert parse_avro(schema(plain)).canonical() != parse_avro(schema(other)).canonical()


# --- fastavro as judge ----------------------------------------------------------------------------------------

_LEAVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


def _types(depth: int) -> st.SearchStrategy[Any]:
    if depth == 0:
        return _LEAVES
    inner = _types(depth - 1)
    return st.one_of(
        _LEAVES,
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda values: {"type": "map", "values": values}, inner),
        st.lists(_LEAVES, min_size=1, max_size=3, unique=True),
    )


_FIELDS = st.lists(
    st.tuples(st.sampled_from("abc"), _types(2), st.booleans()), max_size=3, unique_by=lambda field: field[0]
)


def _as_record(fields: list[tuple[str, Any, bool]]) -> dict[str, Any]:
    return record(*((name, kind, _default(kind)) if optional else (name, kind) for name, kind, optional in fields))


def _default(kind: Any) -> Any:
    if isinstance(kind, list):
        return _default(kind[0])
    plain = {"null": None, "boolean": True, "float": 1.5, "double": 1.5, "bytes": "x", "string": "x"}
    if isinstance(kind, dict):
        return [] if kind["type"] == "array" else {}
    return plain.get(kind, 1)


def _datum(kind: Any) -> Any:
    """One that meets every inner type."""
    if isinstance(kind, list):
        return _datum(kind[-1])
    if isinstance(kind, dict):
        return [_datum(kind["items"])] if kind["type"] == "array" else {"k": _datum(kind["values"])}
    return {"bytes": b"x"}.get(kind, _default(kind))


@settings(max_examples=rounds(300), deadline=None)
@given(_FIELDS, _FIELDS)
def test_what_is_called_readable_decodes(reads: Any, writes: Any) -> None:
    reader, writer = _as_record(reads), _as_record(writes)
    if unreadable(parse_avro(schema(reader)), parse_avro(schema(writer))) is not None:
        return
    out = io.BytesIO()
    fastavro.schemaless_writer(out, writer, {name: _datum(kind) for name, kind, _ in writes})
    out.seek(0)
    decoded = fastavro.schemaless_reader(out, writer, reader)
    assert list(decoded) == [name for name, _, _ in reads] or set(decoded) == {name for name, _, _ in reads}
