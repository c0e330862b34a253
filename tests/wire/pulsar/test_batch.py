"""A batch gives its messages one by one, and only what it really holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import WireError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress, encode_batch, iter_batch, open_payload

Single = api.SingleMessageMetadata


@given(payloads=st.lists(st.binary(max_size=50), max_size=8), key=st.text(max_size=5))
def test_messages_come_back_in_order(payloads: list[bytes], key: str) -> None:
    data = encode_batch((Single(partition_key=key, sequence_id=at), one) for at, one in enumerate(payloads))
    found = list(iter_batch(data, len(payloads)))
    assert [bytes(single.payload) for single in found] == payloads
    assert [single.metadata.sequence_id for single in found] == list(range(len(payloads)))
    assert all(single.metadata.partition_key == key for single in found)


def test_a_message_is_parsed_when_it_is_asked_for() -> None:
    good = encode_batch([(Single(), b"first")])
    messages = iter_batch(good + b"\0\0\0\x01\xff", 2)
    assert next(messages).payload == b"first"
    with pytest.raises(WireError):
        next(messages)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(encode_batch([(Single(), b"a")]), 2, id="fewer messages than announced"),
        pytest.param(encode_batch([(Single(), b"a")] * 2), 1, id="more messages than announced"),
        pytest.param(encode_batch([(Single(), b"a")])[:-1], 1, id="a payload that ends early"),
        pytest.param(b"\0\0\0\x09\x18\x00", 1, id="metadata that ends early"),
        pytest.param(b"\0\0\0", 1, id="a size that ends early"),
        pytest.param(b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01", 1, id="a payload of minus one"),
        pytest.param(b"\0\0\0\x02\x20\x00", 1, id="metadata that does not say the size"),
        pytest.param(b"x", 0, id="bytes of no message"),
        pytest.param(b"x", -5, id="a negative count"),
    ],
)
def test_a_batch_that_lies_is_a_wire_error(data: bytes, count: int) -> None:
    with pytest.raises(WireError):
        list(iter_batch(data, count))


def test_a_message_that_says_its_size_is_negative_is_not_given_out() -> None:
    with pytest.raises(WireError, match="-1 bytes"):
        next(iter_batch(b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01", 1))


@pytest.mark.parametrize("kind", Compression)
def test_a_payload_is_opened_as_its_metadata_says(kind: Compression) -> None:
    data = encode_batch([(Single(), b"a" * 100)] * 10)
    metadata = api.MessageMetadata(compression=kind, uncompressed_size=len(data))  # type: ignore[arg-type]
    assert open_payload(metadata, compress(kind, data)) == data


def test_an_encrypted_payload_stays_closed() -> None:
    metadata = api.MessageMetadata(encryption_keys=[api.EncryptionKeys(key="k", value=b"v")])
    with pytest.raises(WireError, match="encrypted"):
        open_payload(metadata, b"?")
