"""Some messages of a batch are a batch that a client takes for whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress, cut_entry, encode_batch, iter_batch, open_payload
from weir.wire.pulsar.message import parse_metadata, seal_message, split_message


def entry_of(payloads: list[bytes], kind: Compression) -> bytes:
    data = encode_batch((api.SingleMessageMetadata(sequence_id=at), one) for at, one in enumerate(payloads))
    metadata = api.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=2,
        compression=kind,  # type: ignore[arg-type]
        uncompressed_size=len(data),
        num_messages_in_batch=len(payloads),
    )
    return b"".join(seal_message(metadata, compress(kind, data)))


@given(
    payloads=st.lists(st.binary(max_size=50), min_size=2, max_size=20),
    kind=st.sampled_from(list(Compression)),
    data=st.data(),
)
def test_it_has_those_that_are_wanted_in_their_order(payloads: list[bytes], kind: Compression, data) -> None:
    wanted = data.draw(st.integers(1, (1 << len(payloads)) - 1))
    cut = cut_entry(entry_of(payloads, kind), len(payloads), wanted)
    assert cut is not None
    places: list[int] = []
    for part in cut:
        parts = split_message(memoryview(part.payload))  # its checksum is right
        metadata = parse_metadata(parts)
        assert (metadata.producer_name, metadata.compression) == ("p", kind)
        assert metadata.num_messages_in_batch == part.messages
        for index, single in enumerate(iter_batch(open_payload(metadata, parts.payload), part.messages)):
            places.append(part.first + index)
            assert single.metadata.sequence_id == places[-1]
            assert bytes(single.payload) == payloads[places[-1]]
    assert places == [at for at in range(len(payloads)) if wanted >> at & 1]


@pytest.mark.parametrize(
    ("count", "wanted", "parts"),
    [
        (5, 0b11011, [(0, 1), (1, 1), (3, 1), (4, 1)]),
        (1025, (1 << 1025) - 1, [(at, min(3, 1025 - at)) for at in range(0, 1025, 3)]),
    ],
    ids=["each", "very-large"],
)
def test_messages_are_separated(count: int, wanted: int, parts: list[tuple[int, int]]) -> None:
    payloads = [b"%d" % number for number in range(count)]
    cut = cut_entry(entry_of(payloads, Compression.LZ4), count, wanted, separate=True)
    assert cut is not None
    assert [(part.first, part.messages) for part in cut] == parts
    for part in cut:
        split = split_message(memoryview(part.payload))
        messages = iter_batch(open_payload(parse_metadata(split), split.payload), part.messages)
        assert [bytes(one.payload) for one in messages] == payloads[part.first : part.first + part.messages]


@pytest.mark.parametrize("spoilt", ["encrypted", "single", "damaged"])
def test_what_cannot_be_opened_is_not_cut(spoilt: str) -> None:
    parts = split_message(memoryview(entry_of([b"a", b"b"], Compression.NONE)))
    metadata, payload = parse_metadata(parts), parts.payload
    if spoilt == "encrypted":
        metadata.encryption_keys.add(key="k", value=b"v")
    elif spoilt == "single":
        metadata.ClearField("num_messages_in_batch")
    else:
        payload = payload[:-1]
    assert cut_entry(b"".join(seal_message(metadata, payload)), 2, 0b10) is None
