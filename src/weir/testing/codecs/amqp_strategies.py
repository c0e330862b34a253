"""Hypothesis strategies for the values of AMQP: methods, tables, properties."""

from typing import Any

from hypothesis import strategies as st

from weir.wire.amqp.method_codec import Method, Wire
from weir.wire.amqp.properties import Properties
from weir.wire.amqp.tables import Field, Table

short_texts = st.text(max_size=20)
#: Any bytes, as properties and names of fields may have them.
escaped = st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape"))


def number(bits: int, *, signed: bool = False) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


def _tagged(tag: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Field]:
    return values.map(lambda found: Field(tag, found))


_leaves = st.one_of(
    _tagged("t", st.booleans()),
    _tagged("b", number(8, signed=True)),
    _tagged("B", number(8)),
    _tagged("s", number(16, signed=True)),
    _tagged("U", number(16, signed=True)),
    _tagged("u", number(16)),
    _tagged("I", number(32, signed=True)),
    _tagged("i", number(32)),
    _tagged("l", number(64, signed=True)),
    _tagged("L", number(64, signed=True)),
    _tagged("T", number(64)),
    _tagged("f", st.floats(width=32, allow_nan=False)),
    _tagged("d", st.floats(allow_nan=False)),
    _tagged("D", st.tuples(number(8), number(32))),
    _tagged("S", escaped),
    _tagged("x", st.binary(max_size=20)),
    _tagged("V", st.none()),
)


def _nested(inside: st.SearchStrategy[Field]) -> st.SearchStrategy[Field]:
    return st.one_of(
        _tagged("A", st.lists(inside, max_size=3).map(tuple)),
        _tagged("F", st.lists(st.tuples(escaped, inside), max_size=3).map(Table.of)),
    )


fields = st.recursive(_leaves, _nested, max_leaves=6)
pairs = st.lists(st.tuples(escaped, fields), max_size=4)
tables = pairs.map(Table.of)

_BY_KIND: dict[Wire, st.SearchStrategy[Any]] = {
    Wire.BIT: st.booleans(),
    Wire.OCTET: number(8),
    Wire.SHORT: number(16),
    Wire.LONG: number(32),
    Wire.LONGLONG: number(64),
    Wire.SHORTSTR: short_texts,
    Wire.LONGSTR: st.binary(max_size=40),
    Wire.TABLE: tables,
}


def methods_of(cls: type[Method]) -> st.SearchStrategy[Method]:
    """Any value of one method."""
    return st.builds(cls, *(_BY_KIND[kind] for name, kind in cls.layout if name is not None))


_texts = st.none() | escaped
properties = st.builds(
    Properties,
    _texts,
    _texts,
    st.none() | tables,
    st.none() | number(8),
    st.none() | number(8),
    _texts,
    _texts,
    _texts,
    _texts,
    st.none() | number(64),
    _texts,
    _texts,
    _texts,
    _texts,
)
