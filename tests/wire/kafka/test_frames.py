"""Headers and frames, as transcripts: what a client sends first, and what it is answered."""

import pytest

from weir.model.errors import FrameTooLargeError, UnknownVersionError, WireError
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.frames import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    request_frame,
    response_frame,
    splitter,
)


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", ""))


TRANSCRIPT = [
    # ApiVersions v3: flexible bodies, but the response's header has no tagged fields.
    (
        RequestHeader(ApiKey.API_VERSIONS, 3, 1, "me"),
        m.ApiVersionsRequest(client_software_name="weir", client_software_version="1"),
        "00000015 | 0012 0003 00000001 0002 6d65 00 | 05 77656972 02 31 00",
        m.ApiVersionsResponse(
            api_keys=[m.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)]
        ),
        "00000013 | 00000001 | 0000 02 0012 0000 0004 00 00000000 00",
    ),
    # The same asked in version 0, without a client id.
    (
        RequestHeader(ApiKey.API_VERSIONS, 0, 2, None),
        m.ApiVersionsRequest(),
        "0000000a | 0012 0000 00000002 ffff |",
        m.ApiVersionsResponse(error_code=35),
        "0000000a | 00000002 | 0023 00000000",
    ),
    # Produce v7, one partition, and its answer.
    (
        RequestHeader(ApiKey.PRODUCE, 7, 3, ""),
        m.ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                m.ProduceRequest.TopicProduceData(
                    name="t",
                    partition_data=[m.ProduceRequest.PartitionProduceData(index=2, records=b"\xaa\xbb")],
                )
            ],
        ),
        "00000027 | 0000 0007 00000003 0000 | ffff ffff 000003e8 00000001 0001 74 00000001 00000002 00000002 aabb",
        m.ProduceResponse(
            responses=[
                m.ProduceResponse.TopicProduceResponse(
                    name="t",
                    partition_responses=[
                        m.ProduceResponse.PartitionProduceResponse(index=2, base_offset=5, log_start_offset=1)
                    ],
                )
            ],
        ),
        "00000031 | 00000003 | 00000001 0001 74 00000001 00000002 0000 0000000000000005 ffffffffffffffff"
        " 0000000000000001 00000000",
    ),
    # Heartbeat v4: tagged fields in both headers.
    (
        RequestHeader(ApiKey.HEARTBEAT, 4, 4, "c"),
        m.HeartbeatRequest(group_id="g", generation_id=9, member_id="m", group_instance_id=None),
        "00000016 | 000c 0004 00000004 0001 63 00 | 02 67 00000009 02 6d 00 00",
        m.HeartbeatResponse(error_code=27),
        "0000000c | 00000004 00 | 00000000 001b 00",
    ),
]


@pytest.mark.parametrize(
    "step", TRANSCRIPT, ids=lambda step: f"{API[step[0].api_key].name} v{step[0].api_version}"
)
def test_a_conversation_has_these_bytes(
    step: tuple[RequestHeader, m.Message, str, m.Message, str],
) -> None:
    header, asked, sent, answer, received = step
    key, version, correlation_id, _ = header
    assert b"".join(request_frame(header, asked)) == hexed(sent)
    assert b"".join(response_frame(key, version, correlation_id, answer)) == hexed(received)

    (frame,) = splitter().feed(hexed(sent))
    parsed, body = decode_request_header(frame)
    assert parsed == header
    assert codec.decode_request(key, version, body) == asked
    (frame,) = splitter().feed(hexed(received))
    answered, body = decode_response_header(key, version, frame)
    assert answered.correlation_id == correlation_id
    assert codec.decode_response(key, version, body) == answer


def test_the_header_of_an_unknown_version_is_still_read() -> None:
    """So that ApiVersions can be answered with what there is."""
    header, body = decode_request_header(hexed("0012 0063 00000007 0001 61 00 ffff"))
    assert header == RequestHeader(ApiKey.API_VERSIONS, 99, 7, "a")
    assert bytes(body) == b"\xff\xff"
    with pytest.raises(UnknownVersionError):
        codec.decode_request(header.api_key, header.api_version, body)


def test_the_header_of_an_unknown_api_is_refused() -> None:
    with pytest.raises(UnknownVersionError):
        decode_request_header(hexed("7fff 0000 00000007 0001 61 00"))


@pytest.mark.parametrize(
    "frame", ["", "0012", "0012 0000 00000001", "0012 0000 00000001 0005 61", "0000 0009 00000001 0001 61 01"]
)
def test_a_torn_header_is_refused(frame: str) -> None:
    with pytest.raises(WireError):
        decode_request_header(hexed(frame))


@pytest.mark.parametrize("frame", ["", "000000", "00000001", "00000001 01 00 7f"])
def test_a_torn_response_header_is_refused(frame: str) -> None:
    with pytest.raises(WireError):
        decode_response_header(ApiKey.HEARTBEAT, 4, hexed(frame))


def test_tagged_fields_in_a_header_are_skipped() -> None:
    header, body = decode_request_header(hexed("000c 0004 00000004 0001 63 01 05 02 aabb | 0102"))
    assert (header.client_id, bytes(body)) == ("c", b"\x01\x02")


def test_a_header_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(WireError):
        encode_request_header(RequestHeader(ApiKey.FETCH, 4, 1 << 40, "a"))


@pytest.mark.parametrize("size", ["00000401", "7fffffff", "ffffffff", "80000000"])
def test_an_oversized_frame_is_refused_at_its_first_four_bytes(size: str) -> None:
    with pytest.raises(FrameTooLargeError):
        list(splitter(1024).feed(hexed(size)))


def test_frames_come_out_of_pieces_as_they_went_in() -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, 4, 4, "c")
    stream = b"".join(b"".join(request_frame(header, m.HeartbeatRequest(group_id=f"g{n}"))) for n in range(5))
    for step in (1, 7, 100):
        cutter = splitter()
        frames = [bytes(f) for at in range(0, len(stream), step) for f in cutter.feed(stream[at : at + step])]
        groups = [codec.decode_request(12, 4, decode_request_header(frame)[1]) for frame in frames]
        assert groups == [m.HeartbeatRequest(group_id=f"g{n}") for n in range(5)]
