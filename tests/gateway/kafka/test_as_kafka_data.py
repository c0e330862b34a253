"""Producing, fetching, looking up as Apache Kafka 4.1.1 does: each of these was asked of both, and compared."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

from weir.gateway.kafka.errors import Code
from weir.testing.kafka.clients.bare import Bare
from weir.testing.kafka.stage import batch_of
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.record_batch import HEADER_BYTES, NO_STAMP, parse_header, sealed, split_batches
from weir.wire.kafka.records import iter_records

_TIMEOUT_S = 60
_HOUR_MS = 3_600_000
_THEN_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def bare(bootstrap: str) -> Bare:
    return Bare(bootstrap)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- times ----------------------------------------------------------------------------------------------------


def test_a_record_of_the_far_future_is_refused_and_named(bare: Bare, topic: str) -> None:
    bare.create(topic)
    moments = [now_ms(), now_ms() + 2 * _HOUR_MS, now_ms()]
    told = bare.produce(topic, b"a", b"b", b"c", timestamps=moments)
    assert (told.error_code, told.base_offset) == (Code.INVALID_TIMESTAMP, -1)
    assert [each.batch_index for each in told.record_errors] == [1]
    assert str(moments[1]) in told.record_errors[0].batch_index_error_message
    assert bare.produce(topic, b"a", timestamps=[now_ms() + _HOUR_MS // 2]).error_code == Code.NONE


def test_how_old_and_how_young_records_may_be_is_a_topics_own(bare: Bare, topic: str) -> None:
    bare.create(topic, message_timestamp_before_max_ms="600000", message_timestamp_after_max_ms="600000")
    codes = {
        wrong: bare.produce(topic, b"a", b"b", timestamps=[now_ms(), now_ms() + wrong]).error_code
        for wrong in (-_HOUR_MS, 0, _HOUR_MS)
    }
    assert codes == {-_HOUR_MS: Code.INVALID_TIMESTAMP, 0: Code.NONE, _HOUR_MS: Code.INVALID_TIMESTAMP}
    assert bare.produce(topic, b"no time", timestamps=[-1]).error_code == Code.NONE


def test_where_records_get_the_brokers_time_their_own_is_not_looked_at(bare: Bare, topic: str) -> None:
    bare.create(topic, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000")
    told = bare.produce(topic, b"a", b"b", timestamps=[5, now_ms() + 9 * _HOUR_MS])
    assert told.error_code == Code.NONE
    assert abs(told.log_append_time_ms - now_ms()) < _HOUR_MS


def test_a_producer_cannot_say_that_its_times_are_the_brokers(bare: Bare, topic: str) -> None:
    known = bare.create(topic, retention_ms="-1")
    assert bare.produce(topic, b"a", b"b", attributes=0x08).error_code == Code.NONE
    (stored,) = split_batches(fetched(bare, known, 0).records)
    assert not parse_header(stored).log_append_time
    assert [record.timestamp for record in iter_records(stored)] == [_THEN_MS, _THEN_MS + 1]


def by_confluent(bootstrap: str, topic: str, moment: int) -> str:
    told: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"late", timestamp=moment, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(_TIMEOUT_S) == 0
    name: str = told[0].name()
    return name


def by_kafka_python(bootstrap: str, topic: str, moment: int) -> str:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    try:
        producer.send(topic, b"late", timestamp_ms=moment).get(_TIMEOUT_S)
    except kafka.errors.KafkaError as error:
        return type(error).__name__
    finally:
        producer.close(_TIMEOUT_S)
    return ""


def by_aiokafka(bootstrap: str, topic: str, moment: int) -> str:
    async def send() -> str:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            try:
                await asyncio.wait_for(producer.send_and_wait(topic, b"late", timestamp_ms=moment), _TIMEOUT_S)
            except aiokafka.errors.KafkaError as error:
                return type(error).__name__
            return ""

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("send", "name"),
    [
        (by_confluent, "INVALID_TIMESTAMP"),
        (by_kafka_python, "InvalidTimestampError"),
        (by_aiokafka, "InvalidTimestampError"),
    ],
)
def test_each_client_tells_its_user_of_a_wrong_time(
    bare: Bare, bootstrap: str, topic: str, send: Callable[[str, str, int], str], name: str
) -> None:
    bare.create(topic)
    assert send(bootstrap, topic, now_ms() + 24 * _HOUR_MS) == name


# --- records --------------------------------------------------------------------------------------------------


def test_records_without_a_key_are_named_on_a_compacted_topic(bare: Bare, topic: str) -> None:
    bare.create(topic, cleanup_policy="compact")
    told = bare.produce(topic, b"a", b"b")
    assert told.error_code == Code.INVALID_RECORD
    assert told.error_message
    assert [each.batch_index for each in told.record_errors] == [0, 1]


def wrong_batch(body: bytes, count: int) -> bytes:
    """A batch with a right checksum around a wrong body."""
    return sealed(
        body,
        base_offset=0,
        attributes=0,
        last_offset_delta=count - 1,
        times=(_THEN_MS, _THEN_MS),
        stamp=NO_STAMP,
        records=count,
    )


_BODY = batch_of(b"a", b"b", b"c")[HEADER_BYTES:]
WRONG = {
    "more than it claims": wrong_batch(_BODY, 2),
    "fewer than it claims": wrong_batch(_BODY, 4),
    "bytes behind the last": wrong_batch(_BODY + b"xx", 3),
    "a record beyond the end": wrong_batch(b"\x7e" + _BODY[1:], 3),
    "no records at all": wrong_batch(b"\xff" * 40, 3),
    "records in no room": wrong_batch(b"", 3),
    "an offset of its own": batch_of(b"a", base_offset=5),
    "an old format": batch_of(b"a")[:16] + b"\1" + batch_of(b"a")[17:],
}


@pytest.mark.parametrize("case", WRONG)
def test_a_batch_that_is_not_what_it_claims_is_refused(bare: Bare, bootstrap: str, case: str) -> None:
    topic = "wrong"
    described = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)])
    bare.ask(ApiKey.METADATA, 12, described)  # makes it
    told = bare.produce(topic, batch=WRONG[case])
    assert (told.error_code, told.base_offset) == (Code.INVALID_RECORD, -1)


# --- moments --------------------------------------------------------------------------------------------------

#: What is no moment but a wish, and the first version that knows it; -7 is nothing yet.
WISHES = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 12}


def listed(bare: Bare, topic: str, moment: int, version: int) -> Any:
    part = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=moment)
    named = m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    request = m.ListOffsetsRequest(replica_id=-1, topics=[named])
    ((told,),) = [each.partitions for each in bare.ask(ApiKey.LIST_OFFSETS, version, request).topics]
    return told


def test_a_wish_is_known_from_its_version_on(bare: Bare, topic: str) -> None:
    bare.create(topic)
    for wish, first in WISHES.items():
        codes = [listed(bare, topic, wish, version).error_code for version in range(1, 12)]
        assert codes == [Code.UNSUPPORTED_VERSION] * (first - 1) + [Code.NONE] * (12 - first), wish


def test_moments_are_found_by_the_records_own_times_whatever_their_order(bare: Bare, topic: str) -> None:
    bare.create(topic)
    for moment in (0, 100, 50, 200, 200, 150):
        bare.produce(topic, b"x", timestamps=[_THEN_MS + moment])
    bare.produce(topic, b"a", b"b", b"c", timestamps=[_THEN_MS + at for at in (300, 500, 400)])

    def found(moment: int) -> tuple[int, int]:
        told = listed(bare, topic, moment, 10)
        return told.offset, told.timestamp

    around = {-1: (0, 0), 0: (0, 0), 1: (1, 100), 51: (1, 100), 101: (3, 200), 201: (6, 300), 301: (7, 500)}
    assert {at: found(_THEN_MS + at) for at in around} == {
        at: (offset, _THEN_MS + moment) for at, (offset, moment) in around.items()
    }
    assert found(_THEN_MS + 501) == (-1, -1)
    assert (found(-1), found(-2), found(-3), found(-4), found(-5)) == (
        (9, -1),
        (0, -1),
        (7, _THEN_MS + 500),
        (0, -1),
        (-1, -1),
    )


# --- ids ------------------------------------------------------------------------------------------------------


def fetched(bare: Bare, topic_id: bytes, index: int, offset: int = 0) -> Any:
    part = m.FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=2**20)
    named = m.FetchRequest.FetchTopic(topic_id=topic_id, partitions=[part])
    request = m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=2**20, session_epoch=-1, topics=[named])
    ((told,),) = [each.partitions for each in bare.ask(ApiKey.FETCH, 13, request).responses]
    return told


def test_an_unknown_partition_is_told_from_an_unknown_topic(bare: Bare, topic: str) -> None:
    known = bare.create(topic)
    assert fetched(bare, known, 0).error_code == Code.NONE
    assert fetched(bare, known, 9).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(bare, b"x" * 16, 0).error_code == Code.UNKNOWN_TOPIC_ID


def test_a_fetch_that_is_refused_says_nothing_else(bare: Bare, topic: str) -> None:
    known = bare.create(topic)
    told = fetched(bare, known, 0, offset=5)
    assert told.error_code == Code.OFFSET_OUT_OF_RANGE
    assert (told.high_watermark, told.last_stable_offset, told.log_start_offset) == (-1, -1, -1)


@pytest.mark.parametrize("version", [9, 13])
def test_a_connection_goes_on_with_a_topic_that_was_made_anew(bare: Bare, topic: str, version: int) -> None:
    with bare.connected() as ask:

        def produce(known: bytes) -> tuple[int, int]:
            data = m.ProduceRequest.PartitionProduceData(index=0, records=batch_of(b"a"))
            named = m.ProduceRequest.TopicProduceData(name=topic, topic_id=known, partition_data=[data])
            request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[named])
            ((told,),) = [each.partition_responses for each in ask(ApiKey.PRODUCE, version, request).responses]
            return told.error_code, told.base_offset

        first = bare.create(topic)
        assert [produce(first), produce(first)] == [(Code.NONE, 0), (Code.NONE, 1)]
        gone = m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=30_000
        )
        (told,) = bare.ask(ApiKey.DELETE_TOPICS, 6, gone).responses
        assert told.error_code == Code.NONE
        second = bare.create(topic)
        assert produce(second) == (Code.NONE, 0)
        if version == 13:
            assert produce(first) == (Code.UNKNOWN_TOPIC_ID, -1)


def test_producing_to_an_unknown_id_says_so(bare: Bare) -> None:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=batch_of(b"a"))
    named = m.ProduceRequest.TopicProduceData(topic_id=b"x" * 16, partition_data=[data])
    request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[named])
    ((told,),) = [each.partition_responses for each in bare.ask(ApiKey.PRODUCE, 13, request).responses]
    assert told.error_code == Code.UNKNOWN_TOPIC_ID
