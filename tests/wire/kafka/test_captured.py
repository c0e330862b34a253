"""Frames that librdkafka and its mock broker once exchanged: they mean the same, and are made again the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.wire.kafka import codec
from weir.wire.kafka import codec as consumer
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API
from weir.wire.kafka.frames import decode_request_header, decode_response_header, request_frame, response_frame

KEYS = {api.name: key for key, api in API.items()}


def captured() -> Iterator[tuple[str, int, str, bytes]]:
    for line in (Path(__file__).parent / "captured_librdkafka_2_16.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version, way, data = line.split()
            yield name, int(version), way, bytes.fromhex(data)


FRAMES = list(captured())


@pytest.mark.parametrize(
    ("name", "version", "way", "data"),
    FRAMES,
    ids=[f"{at} {name} {way}" for at, (name, _, way, _) in enumerate(FRAMES)],
)
def test_a_frame_is_made_again_byte_by_byte(name: str, version: int, way: str, data: bytes) -> None:
    key = KEYS[name]
    if way == ">":
        asked, body = decode_request_header(data[4:])
        assert asked[:2] == (key, version)
        assert asked.client_id == "captured"
        again = request_frame(asked, codec.decode_request(key, version, body))
    else:
        answered, body = decode_response_header(key, version, data[4:])
        again = response_frame(key, version, answered.correlation_id, codec.decode_response(key, version, body))
    assert b"".join(again) == data


def sent(name: str) -> list[Any]:
    found = [(version, data) for each, version, way, data in FRAMES if (each, way) == (name, ">")]
    return [
        codec.decode_request(KEYS[name], version, decode_request_header(data[4:])[1]) for version, data in found
    ]


def test_they_say_what_was_done() -> None:
    assert {topic.name for request in sent("Produce") for topic in request.topic_data} == {"orders"}
    assert [request.transactional_id for request in sent("InitProducerId")] == ["tx"]
    assert [request.committed for request in sent("EndTxn")] == [True]
    assert sent("Fetch")[0].isolation_level == 1
    (join,) = sent("JoinGroup")
    assert (join.group_id, join.protocol_type) == ("readers", "consumer")
    assert [consumer.decode_subscription(each.metadata).topics for each in join.protocols] == [["orders"]] * 2
    (sync,) = sent("SyncGroup")
    (given,) = (consumer.decode_assignment(each.assignment) for each in sync.assignments)
    assert given.assigned_partitions == [
        m.ConsumerProtocolAssignment.TopicPartition(topic="orders", partitions=[0, 1, 2, 3])
    ]
