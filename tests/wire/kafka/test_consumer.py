"""The consumer protocol inside JoinGroup and SyncGroup."""

import pytest

from weir.model.errors import UnknownVersionError, WireError
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m

SUBSCRIPTION = m.ConsumerProtocolSubscription(
    topics=["a", "b"],
    user_data=b"u",
    owned_partitions=[m.ConsumerProtocolSubscription.TopicPartition(topic="a", partitions=[0, 2])],
    generation_id=5,
    rack_id="r1",
)


def test_a_subscription_survives() -> None:
    assert codec.decode_subscription(codec.encode_subscription(3, SUBSCRIPTION)) == SUBSCRIPTION


def test_an_older_version_lacks_the_younger_fields() -> None:
    read = codec.decode_subscription(codec.encode_subscription(0, SUBSCRIPTION))
    assert read == m.ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"u")


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    data = b"\x00\x09" + codec.encode_subscription(3, SUBSCRIPTION)[2:] + b"what version 9 appended"
    assert codec.decode_subscription(data) == SUBSCRIPTION


def test_an_assignment_survives() -> None:
    part = m.ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[1, 2, 3])
    assignment = m.ConsumerProtocolAssignment(assigned_partitions=[part])
    data = codec.encode_assignment(1, assignment)
    assert data == bytes.fromhex("0001 00000001 0001 74 00000003 00000001 00000002 00000003 ffffffff")
    assert codec.decode_assignment(data) == assignment


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x01", b"\xff\xff\x00\x00\x00\x00"])
def test_bytes_that_are_no_subscription_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        codec.decode_subscription(data)


def test_an_unknown_version_is_not_written() -> None:
    with pytest.raises(UnknownVersionError):
        codec.encode_subscription(4, SUBSCRIPTION)


def test_kafka_python_reads_and_writes_the_same() -> None:
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    data = codec.encode_subscription(1, SUBSCRIPTION)
    theirs = ConsumerProtocolSubscription.decode(data)
    assert list(theirs.topics) == ["a", "b"]
    assert bytes(theirs.user_data) == b"u"
    assert bytes(theirs.encode()) == data
