"""Declarations of queues as they are kept: what goes in comes out, of the same types; anything else is refused."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import QueueArgumentError, WireError
from weir.model.exchanges import typed
from weir.model.queues import QueueDeclaration
from weir.wire.exchanges import decode_declaration, encode_declaration

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), 1 << 63),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.just(UTC)),
)
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
declarations = st.builds(
    QueueDeclaration,
    st.text(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.text(), values, max_size=5),
)


@given(declarations)
def test_a_declaration_comes_back_with_the_types_of_its_arguments(declaration: QueueDeclaration) -> None:
    back = decode_declaration(declaration.name, encode_declaration(declaration))
    assert back == declaration
    assert typed(back.arguments) == typed(declaration.arguments)


@given(st.text() | st.dictionaries(st.sampled_from(["durable", "arguments"]), st.integers()).map(repr))
def test_what_is_no_declaration_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        decode_declaration("q", text)


def test_what_cannot_be_an_argument_is_refused() -> None:
    with pytest.raises(QueueArgumentError):
        encode_declaration(QueueDeclaration("q", arguments={"x": object()}))
    assert encode_declaration(QueueDeclaration("q", arguments={"t": datetime(2026, 1, 1, tzinfo=UTC)}))
    assert encode_declaration(QueueDeclaration("q", arguments={"d": Decimal("1.5")}))
