"""Every message in every version: what is written is read again, and what a version lacks is its default."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.model.errors import InvariantError, UnknownVersionError, WireError
from weir.testing.codecs.kafka_samples import in_version, integers
from weir.testing.kinds import rounds
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.classes import CLASSES
from weir.wire.kafka.primitives import MAX_REQUEST_ELEMENTS, SMALL_RECORDS_BYTES, uvarint
from weir.wire.kafka.schema.layout import Field, Layout, Structure, layout
from weir.wire.kafka.schema.table import APIS, LAYOUTS

EVERY_MESSAGE = pytest.mark.parametrize("name", LAYOUTS)


# --- strategies out of the table ------------------------------------------------------------------------------

SCALARS = {
    "string": st.text(max_size=8) | st.sampled_from(["x" * 126, "y" * 127, "ü" * 70]),
    "bytes": st.binary(max_size=12) | st.just(bytes(200)),
    "records": st.binary(max_size=12) | st.just(bytes(SMALL_RECORDS_BYTES + 1)),
    "uuid": st.binary(min_size=16, max_size=16),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
}


def values(of: Layout, field: Field) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        one = structures(of, field.struct, vars(CLASSES[of.name])[field.kind])
    elif field.kind in SCALARS:
        one = SCALARS[field.kind]
    else:
        one = st.integers(*integers(field.kind))
    many = st.lists(one, max_size=3) if field.array else one
    absent = field.struct is not None and not field.array
    return st.none() | many if absent or field.nullable is not None else many


def structures(of: Layout, structure: Structure, kind: type[m.Message]) -> st.SearchStrategy[m.Message]:
    return st.builds(kind, **{field.name: values(of, field) for field in structure.fields})


def encoded(name: str, version: int, message: m.Message) -> bytes:
    return codec.encode_data(name, version, message)


# --- round trips ------------------------------------------------------------------------------------------------


@EVERY_MESSAGE
def test_a_message_survives_every_version_up_to_what_the_version_lacks(name: str) -> None:
    known = LAYOUTS[name]

    @settings(max_examples=rounds(30), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(structures(known, known.body, CLASSES[name]))
    def survives(message: m.Message) -> None:
        for version in known.versions:
            kept = in_version(known, version, message)
            data = encoded(name, version, kept)
            assert codec.decode_data(name, version, data) == kept

    survives()


@EVERY_MESSAGE
def test_a_new_message_can_be_written_in_every_version_and_reads_as_new(name: str) -> None:
    for version in LAYOUTS[name].versions:
        new = CLASSES[name]()
        read = codec.decode_data(name, version, encoded(name, version, in_version(LAYOUTS[name], version, new)))
        assert read == in_version(LAYOUTS[name], version, new)


@EVERY_MESSAGE
def test_a_message_that_is_cut_short_anywhere_is_refused(name: str) -> None:
    known = LAYOUTS[name]
    for version in known.versions:
        message = CLASSES[name]()
        for field in known.body.fields:
            if field.array and field.struct is not None:
                setattr(message, field.name, [vars(CLASSES[name])[field.kind]()])
        data = encoded(name, version, in_version(known, version, message))
        for end in range(len(data)):
            with pytest.raises(WireError):
                codec.decode_data(name, version, data[:end])


# --- both roles, by key -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_requests_and_responses_are_found_by_key_and_version(key: ApiKey) -> None:
    api = API[key]
    low, high = api.versions
    for version in range(low, high + 1):
        asked = b"".join(codec.encode_request(key, version, api.request()))
        assert type(codec.decode_request(key, version, asked)) is api.request
        answered = b"".join(codec.encode_response(key, version, api.response()))
        assert type(codec.decode_response(key, version, answered)) is api.response


def test_the_keys_are_those_of_the_table_and_so_are_their_names() -> None:
    assert {key: key.name for key in ApiKey} == {
        key: "".join(f"_{c}" if c.isupper() else c for c in api.name)[1:].upper() for key, api in APIS.items()
    }


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (1, 3), (18, -1), (18, 99), (4, 0), (999, 0)])
def test_an_unknown_key_or_version_is_an_error_of_its_own(key: int, version: int) -> None:
    for decode in (codec.decode_request, codec.decode_response):
        with pytest.raises(UnknownVersionError):
            decode(key, version, b"\0" * 100)
    for encode in (codec.encode_request, codec.encode_response):
        with pytest.raises(UnknownVersionError):
            encode(key, version, m.FetchRequest())


# --- records ----------------------------------------------------------------------------------------------------


def fetched(records: Any) -> m.FetchResponse:
    data = m.FetchResponse.PartitionData(partition_index=1, records=records)
    return m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic="t", partitions=[data] * 2)])


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_large_records_are_written_as_they_are_and_not_copied(version: int) -> None:
    first, second = bytes(1000), memoryview(bytearray(b"x" * 3000))
    pieces = codec.encode_response(ApiKey.FETCH, version, fetched([first, second]))
    assert [piece is first for piece in pieces].count(True) == 2
    assert [piece is second for piece in pieces].count(True) == 2
    read: Any = codec.decode_response(ApiKey.FETCH, version, b"".join(pieces))
    assert [part.records for part in read.responses[0].partitions] == [bytes(1000) + b"x" * 3000] * 2


@pytest.mark.parametrize("version", [4, 11, 12, 18])
@pytest.mark.parametrize("records", [None, b"", [], b"abc", [b"a", b"bc"], memoryview(b"abc")])
def test_small_records_lie_in_one_piece_with_the_rest(version: int, records: Any) -> None:
    pieces = codec.encode_response(ApiKey.FETCH, version, fetched(records))
    assert len(pieces) == 1
    read: Any = codec.decode_response(ApiKey.FETCH, version, pieces[0])
    expected = None if records is None else b"".join(records) if isinstance(records, list) else bytes(records)
    assert [part.records for part in read.responses[0].partitions] == [expected] * 2


def test_decoded_records_share_the_memory_of_the_frame() -> None:
    part = m.ProduceRequest.PartitionProduceData(index=0, records=b"r" * 50)
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    frame = bytearray(b"".join(codec.encode_request(ApiKey.PRODUCE, 9, m.ProduceRequest(topic_data=[topic]))))
    read: Any = codec.decode_request(ApiKey.PRODUCE, 9, frame)
    records = read.topic_data[0].partition_data[0].records
    frame[frame.index(b"r")] = ord("s")
    assert records == b"s" + b"r" * 49


# --- what is refused, and what is not ---------------------------------------------------------------------------


def test_bytes_behind_the_last_field_are_left_alone_as_in_kafka() -> None:
    data = b"".join(codec.encode_request(ApiKey.HEARTBEAT, 4, m.HeartbeatRequest(group_id="g"))) + b"more"
    assert codec.decode_request(ApiKey.HEARTBEAT, 4, data) == m.HeartbeatRequest(group_id="g")


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = b"".join(codec.encode_request(ApiKey.HEARTBEAT, 4, m.HeartbeatRequest(group_id="g")))
    tagged = plain[:-1] + b"\x02" + b"\x05\x03abc" + b"\x99\x01\x00"
    assert codec.decode_request(ApiKey.HEARTBEAT, 4, tagged) == m.HeartbeatRequest(group_id="g")


@pytest.mark.parametrize("name", ["HeartbeatRequest", "FetchRequest"], ids=["knows none", "knows some"])
def test_tagged_fields_count_as_elements(name: str) -> None:
    """Else a frame could keep a broker busy with fields that nobody knows."""
    version = LAYOUTS[name].versions.high
    untagged = encoded(name, version, CLASSES[name]())[:-1]
    few, many = (untagged + uvarint(n) + b"\x63\x00" * n for n in (300, MAX_REQUEST_ELEMENTS + 1))
    assert codec.decode_data(name, version, few) == CLASSES[name]()
    with pytest.raises(WireError, match="elements"):
        codec.decode_data(name, version, many)


@pytest.mark.parametrize("size", [b"\x00", b"\x07", b"\x09", b"\x7f"])
def test_a_known_tagged_field_has_to_fill_its_size(size: bytes) -> None:
    """Else the same bytes could be read again and again."""
    response = m.ApiVersionsResponse(finalized_features_epoch=5)
    data = b"".join(codec.encode_response(ApiKey.API_VERSIONS, 3, response))
    assert b"\x01\x08" in data
    with pytest.raises(WireError):
        codec.decode_response(ApiKey.API_VERSIONS, 3, data.replace(b"\x01\x08", b"\x01" + size) + bytes(200))


@pytest.mark.parametrize(
    "count", [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x0f\xff\xff", b"\x00\x00\x00\x09"]
)
def test_an_array_is_bounded_by_the_bytes_that_are_there(count: bytes) -> None:
    with pytest.raises(WireError):
        codec.decode_request(ApiKey.DESCRIBE_GROUPS, 0, count + bytes(8))


def test_all_elements_of_a_message_are_bounded_together() -> None:
    """Each array is small enough, but together they are more than a broker should hold."""
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0] * 10_000)
    most = m.AddPartitionsToTxnRequest(v3_and_below_topics=[topic] * (MAX_REQUEST_ELEMENTS // 10_001))
    data = b"".join(codec.encode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 0, most))
    assert codec.decode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 0, data) == most
    most.v3_and_below_topics.append(topic)
    data = b"".join(codec.encode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 0, most))
    with pytest.raises(WireError, match="elements"):
        codec.decode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 0, data)


def test_every_element_takes_at_least_a_byte_in_every_version() -> None:
    """The bound on elements rests on it."""
    for known in LAYOUTS.values():
        for version in known.versions:
            for structure in known.structs:
                present = [field for field in structure.fields if version in field.versions]
                used = any(
                    field.struct is structure and field.array and version in field.versions
                    for each in (known.body, *known.structs)
                    for field in each.fields
                )
                assert present or known.is_flexible(version) or not used, (known.name, version, structure.name)


@pytest.mark.parametrize(
    "request_",
    [
        m.HeartbeatRequest(group_id="x" * 40_000),
        m.HeartbeatRequest(group_id="\ud800"),
        m.HeartbeatRequest(generation_id=1 << 40),
        m.HeartbeatRequest(group_id=None),  # type: ignore[arg-type]
        m.HeartbeatRequest(group_id=7),  # type: ignore[arg-type]
        m.FetchRequest(),
    ],
    ids=["too long", "no unicode", "too large", "null", "no text", "another message"],
)
def test_what_cannot_be_written_is_a_wire_error(request_: m.Message) -> None:
    with pytest.raises(WireError, match="HeartbeatRequest v0 cannot be encoded"):
        codec.encode_request(ApiKey.HEARTBEAT, 0, request_)


def test_a_uuid_of_another_length_is_not_written() -> None:
    topic = m.FetchRequest.FetchTopic(topic_id=b"short")
    with pytest.raises(WireError, match="topic_id has not the 16 bytes"):
        codec.encode_request(ApiKey.FETCH, 13, m.FetchRequest(topics=[topic]))


def test_a_null_is_refused_where_the_version_has_none() -> None:
    with pytest.raises(WireError, match="topics is null"):
        codec.decode_request(ApiKey.METADATA, 0, b"\xff\xff\xff\xff")
    assert codec.decode_request(ApiKey.METADATA, 1, b"\xff\xff\xff\xff") == m.MetadataRequest(topics=None)
    with pytest.raises(WireError):
        codec.encode_request(ApiKey.METADATA, 0, m.MetadataRequest(topics=None))


# --- the form of the table --------------------------------------------------------------------------------------


def test_a_line_of_the_table_says_all_about_a_field() -> None:
    made = layout("Sample", "1-9", "a int32 3+ null:4-5 =7\nrows []Row\n  b string 2 =null tag:3\nlast []Row")
    a, rows, last = made.body.fields
    assert (a.kind, a.versions.low, a.versions.high, a.default, a.array) == ("int32", 3, 9, 7, False)
    assert a.nullable is not None
    assert list(a.nullable) == [4, 5]
    assert rows.struct is last.struct is made.structs[0]
    (b,) = made.structs[0].fields
    assert (b.tag, b.default, list(b.versions)) == (3, None, [2])


@pytest.mark.parametrize(
    "text", ["a int32\n  b int32", "row Row\n  a int32", "rows []Row\n  a int32\nx []Row\n  b int8"]
)
def test_a_table_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InvariantError):
        layout("Sample", "0-1", text)
