"""Exchanges and bindings in the metadata: what is encoded comes back, and a binding has a key of its own."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.meta import keys
from weir.meta.interfaces import MAX_KEY_BYTES
from weir.model.errors import WireError
from weir.model.exchanges import (
    Binding,
    Destination,
    Exchange,
    ExchangeType,
    StoredBinding,
    StoredExchange,
    StoredRecord,
)
from weir.model.topics import DEFAULT_NAMESPACE
from weir.testing.kinds import rounds
from weir.wire.exchanges import binding_digest, decode_record, encode_record
from weir.wire.metadata import dump_fields

texts = st.text(max_size=12)
plain: Any = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.datetimes(timezones=st.just(UTC))
)
values = plain | st.lists(plain, max_size=2) | st.dictionaries(texts, st.lists(plain, max_size=2), max_size=2)
tables = st.dictionaries(texts, values, max_size=2)
exchanges = st.builds(
    Exchange,
    texts,
    st.sampled_from([kind for kind in ExchangeType if kind is not ExchangeType.DELAYED]),
    durable=st.booleans(),
    auto_delete=st.booleans(),
    internal=st.booleans(),
    arguments=tables,
)
bindings = st.builds(Binding, texts, st.builds(Destination, texts, st.booleans()), texts, tables)
records = st.builds(StoredExchange, exchanges, texts, st.booleans()) | st.builds(
    StoredBinding, bindings, texts, texts
)


@settings(max_examples=rounds(40))
@given(records)
def test_records_survive_the_store(record: StoredRecord) -> None:
    back = decode_record(encode_record(record))
    assert back == record
    if isinstance(record, StoredBinding) and isinstance(back, StoredBinding):
        assert back.binding.identity == record.binding.identity


@settings(max_examples=rounds(40))
@given(bindings, bindings)
def test_two_bindings_have_one_key_only_if_they_are_the_same(one: Binding, other: Binding) -> None:
    other = Binding(one.source, other.destination, other.routing_key, other.arguments)
    assert (binding_digest(one) == binding_digest(other)) == (one.identity == other.identity)


def test_equal_arguments_of_different_types_are_different_bindings() -> None:
    told = [1, 1.0, True, "1", b"1", Decimal(1), datetime(1970, 1, 1, tzinfo=UTC), None, [1], {"1": 1}]
    digests = {binding_digest(Binding("x", Destination("q"), "", {"n": value})) for value in told}
    assert len(digests) == len(told)


@settings(max_examples=rounds(40))
@given(st.text(max_size=255).filter(lambda name: len(name.encode("utf-8", "surrogatepass")) <= 255), texts)
def test_a_name_may_hold_anything_and_is_one_part_of_a_key(name: str, other: str) -> None:
    key = keys.binding(DEFAULT_NAMESPACE, name, "0" * 32)
    assert key.count("/") == 7
    assert len(key.encode()) < MAX_KEY_BYTES
    assert (keys.exchange(DEFAULT_NAMESPACE, name) == keys.exchange(DEFAULT_NAMESPACE, other)) == (name == other)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"exchange": 7},
        {"source": "x"},
        {
            "exchange": "later",
            "type": "x-delayed-message",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
            "id": "",
            "closing": False,
        },
    ],
)
def test_what_is_no_record_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_record(dump_fields(fields))
