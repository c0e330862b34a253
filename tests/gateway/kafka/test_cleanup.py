"""What becomes of old records: retention by time and size, compaction, deletion by offset."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from weir.testing.kafka.clients.bare import Bare
from weir.testing.processes.up import UpProcess
from weir.wire.kafka.records import Record, build_batch

TIMEOUT_S = 60
MIB = 1024 * 1024
THEN_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One that looks after its topics all the time."""
    process = UpProcess(tmp_path_factory.mktemp("cleanup"), "broker.maintenance_interval=0.1").start()
    yield process
    process.close()


@pytest.fixture
def admin(up: UpProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": up.kafka})


def until(true: Callable[[], Any]) -> None:
    """Wait for something, however slow the machine is; not for ever."""
    deadline = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def create(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    named = {name.replace("_", "."): value for name, value in config.items()}
    for made in admin.create_topics([NewTopic(topic, partitions, 1, config=named)]).values():
        made.result(TIMEOUT_S)


def produce(up: UpProcess, topic: str, *records: tuple[str | None, bytes | None], each: bool = True) -> list[int]:
    """Offsets of the records; `each` in a batch of its own."""
    producer = Producer({"bootstrap.servers": up.kafka, "linger.ms": 0 if each else 100})
    offsets: list[int] = []

    def stored(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for key, value in records:
        producer.produce(topic, value, key, partition=0, on_delivery=stored)
        if each:
            assert producer.flush(TIMEOUT_S) == 0
    assert producer.flush(TIMEOUT_S) == 0
    return offsets


class Reader:
    """Reads partition 0 by offset."""

    def __init__(self, up: UpProcess, topic: str, **config: Any) -> None:
        settings = {
            "bootstrap.servers": up.kafka,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "auto.offset.reset": "error",
        }
        self._topic = topic
        self._consumer = Consumer({**settings, **config})

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def watermarks(self) -> tuple[int, int]:
        part = TopicPartition(self._topic, 0)
        low, high = self._consumer.get_watermark_offsets(part, timeout=TIMEOUT_S)
        return low, high

    def at(self, moment_ms: int) -> int:
        (found,) = self._consumer.offsets_for_times([TopicPartition(self._topic, 0, moment_ms)], timeout=TIMEOUT_S)
        return int(found.offset)

    def read_all(self) -> tuple[int, dict[int, tuple[str | None, bytes | None]]]:
        """Where the records begin, and every one of them; more of them may go meanwhile."""
        for _ in range(20):
            low = self.watermarks[0]
            with suppress(KafkaException):
                return low, self.read(low)
        raise AssertionError("records went faster than they could be read")

    def read(self, offset: int = 0) -> dict[int, tuple[str | None, bytes | None]]:
        """Every record from an offset to the end, by its offset; KafkaException if the offset is gone."""
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])
        found: dict[int, tuple[str | None, bytes | None]] = {}
        while True:
            message = self._consumer.poll(TIMEOUT_S)
            assert message is not None, "neither a record nor the end came"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                assert message.offset() == self.watermarks[1]
                return found
            if error is not None:
                raise KafkaException(error)
            key = message.key()
            found[message.offset()] = (None if key is None else key.decode(), message.value())


def test_records_go_after_their_time_even_if_nothing_new_comes(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, retention_ms="1000")
    produce(up, topic, ("a", b"1"), ("b", b"2"))
    with Reader(up, topic) as reader:
        until(lambda: reader.watermarks == (2, 2))
        with pytest.raises(KafkaException):
            reader.read(0)
    assert produce(up, topic, ("c", b"3")) == [2]


def test_records_go_when_there_are_more_than_the_size_and_never_too_many(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, retention_bytes=str(MIB), segment_bytes=str(MIB))
    produce(up, topic, *[(None, b"x" * 256 * 1024)] * 20)
    with Reader(up, topic) as reader:
        until(lambda: reader.watermarks[0] >= 8)
        low, found = reader.read_all()
        assert reader.watermarks[1] == 20
        assert 20 - low >= 4
        assert list(found) == list(range(low, 20))


def test_without_bounds_everything_stays(up: UpProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic, retention_ms="-1", retention_bytes="-1", segment_bytes=str(MIB))
    other = f"{topic}-short"
    create(admin, other, retention_ms="1")
    produce(up, topic, *[(None, b"x" * 512 * 1024)] * 5)
    produce(up, other, ("a", b"1"))
    with Reader(up, topic) as reader, Reader(up, other) as short:
        until(lambda: short.watermarks[0] == 1)  # the broker has looked after its topics by then
        assert reader.watermarks == (0, 5)


COMPACT = {"cleanup_policy": "compact", "segment_ms": "1000", "min_cleanable_dirty_ratio": "0.01"}


def test_a_compacted_topic_keeps_the_latest_of_each_key_at_its_offset_through_restarts(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, **COMPACT)
    produce(up, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", None))
    produce(up, topic, *[(f"k{n % 3}", b"%d" % n) for n in range(30)], each=False)
    produce(up, topic, ("a", b"3"), ("z", b"1"))
    live = {
        3: ("c", b"1"),
        4: ("b", None),
        32: ("k0", b"27"),
        33: ("k1", b"28"),
        34: ("k2", b"29"),
        35: ("a", b"3"),
        36: ("z", b"1"),
    }
    with Reader(up, topic) as reader:
        until(lambda: reader.read() == live)
        assert reader.watermarks == (0, 37)
        assert reader.read(33) == {offset: record for offset, record in live.items() if offset >= 33}
    assert up.stop() == 0
    up.start()
    with Reader(up, topic) as reader:
        assert reader.read() == live
        assert reader.watermarks == (0, 37)
    assert produce(up, topic, ("c", b"2"), ("z", b"2")) == [37, 38]
    with Reader(up, topic) as reader:
        until(lambda: 3 not in reader.read())
        del live[3]  # of z both are there: the last batch is compacted once another follows
        assert reader.read() == {**live, 37: ("c", b"2"), 38: ("z", b"2")}


def test_every_client_reads_what_compaction_left_of_a_batch(
    up: UpProcess, admin: AdminClient, client: Any, topic: str
) -> None:
    create(admin, topic, **COMPACT)
    producer = Producer({"bootstrap.servers": up.kafka, "linger.ms": 100, "compression.type": "lz4"})
    for n in range(20):
        producer.produce(topic, b"%d" % n, f"k{n % 5}" if n % 2 else "same")
    assert producer.flush(TIMEOUT_S) == 0
    produce(up, topic, ("z", b"end"))
    live = [(11, b"11"), (13, b"13"), (15, b"15"), (17, b"17"), (18, b"18"), (19, b"19"), (20, b"end")]
    with Reader(up, topic) as reader:
        until(lambda: [(offset, value) for offset, (_, value) in reader.read().items()] == live)
    assert client.read(up.kafka, topic, {0: 0}, len(live)) == [(0, offset, value) for offset, value in live]


def latest(admin: AdminClient, topic: str) -> tuple[int, int]:
    """Offset and time of the record with the latest time."""
    (found,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()}).values()
    told = found.result(TIMEOUT_S)
    return told.offset, told.timestamp


def at_times(*records: tuple[bytes, int]) -> bytes:
    """A batch of records with these keys, at these moments after some day."""
    return build_batch(
        [Record(at, THEN_MS + moment, key, b"value") for at, (key, moment) in enumerate(records)],
    )


def test_moments_and_the_latest_time_are_those_of_records_that_compaction_left(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, **COMPACT)
    bare = Bare(up.kafka)
    for batch in (at_times((b"a", 0), (b"b", 500), (b"c", 300)), at_times((b"b", 100)), at_times((b"z", 200))):
        assert bare.produce(topic, batch=batch).error_code == 0
    with Reader(up, topic) as reader:
        until(lambda: list(reader.read()) == [0, 2, 3, 4])
        assert [reader.at(THEN_MS + moment) for moment in (0, 50, 250, 301)] == [0, 2, 2, -1]
    assert latest(admin, topic) == (2, THEN_MS + 300)


def test_the_latest_time_is_that_of_a_record_that_was_not_deleted(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic)
    bare = Bare(up.kafka)
    assert bare.produce(topic, batch=at_times((b"a", 300), (b"b", 100), (b"c", 200))).error_code == 0
    assert latest(admin, topic) == (0, THEN_MS + 300)
    assert delete(admin, topic, 1) == 1
    assert latest(admin, topic) == (2, THEN_MS + 200)
    assert delete(admin, topic, -1) == 3
    assert latest(admin, topic) == (-1, -1)


def test_a_tombstone_vanishes_after_its_time(up: UpProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic, **COMPACT, delete_retention_ms="1500")
    produce(up, topic, ("a", b"1"), ("b", b"1"), ("a", None), ("z", b"1"))
    with Reader(up, topic) as reader:
        until(lambda: reader.read() == {1: ("b", b"1"), 3: ("z", b"1")})


def test_a_compacted_topic_takes_no_records_without_a_key(up: UpProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic, **COMPACT)
    producer = Producer({"bootstrap.servers": up.kafka})
    codes = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: codes.append(error.code()))
    assert producer.flush(TIMEOUT_S) == 0
    assert codes == [KafkaError.INVALID_RECORD]


def test_aborted_records_are_not_kept_and_committed_ones_are(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, **COMPACT)
    producer = Producer({"bootstrap.servers": up.kafka, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    for value, commit in ((b"1", True), (b"2", False), (b"3", False)):
        producer.begin_transaction()
        producer.produce(topic, value, "a")
        producer.produce(topic, value, value)
        producer.flush(TIMEOUT_S)
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    produce(up, topic, ("y", b"1"), ("y", b"2"), ("z", b"1"))
    for isolation in ("read_uncommitted", "read_committed"):
        with Reader(up, topic, **{"isolation.level": isolation}) as reader:
            wanted = {0: ("a", b"1"), 1: ("1", b"1"), 10: ("y", b"2"), 11: ("z", b"1")}
            until(lambda reader=reader, wanted=wanted: reader.read() == wanted)
    # What the same producer commits later is not taken for aborted.
    producer.begin_transaction()
    producer.produce(topic, b"4", "b")
    producer.commit_transaction(TIMEOUT_S)
    with Reader(up, topic, **{"isolation.level": "read_committed"}) as reader:
        assert reader.read()[12] == ("b", b"4")


def test_compact_and_delete_forgets_live_records_too(up: UpProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic, **{**COMPACT, "cleanup_policy": "compact,delete"}, retention_ms="3000")
    produce(up, topic, ("a", b"1"), ("a", b"2"), ("b", b"1"))
    with Reader(up, topic) as reader:
        until(lambda: reader.watermarks == (3, 3))


def test_a_topic_without_a_cleanup_policy_keeps_everything_until_it_has_one(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    quick = {"segment_ms": "1000", "retention_ms": "1000", "min_cleanable_dirty_ratio": "0.01"}
    create(admin, topic, cleanup_policy="", **quick)
    beside = f"{topic}-beside"
    create(admin, beside, **quick)
    for each in (topic, beside):
        produce(up, each, ("a", b"1"), ("a", b"2"), ("b", b"1"))
    with Reader(up, beside) as reader:
        until(lambda: reader.watermarks == (3, 3))
    with Reader(up, topic) as reader:
        assert reader.read() == {0: ("a", b"1"), 1: ("a", b"2"), 2: ("b", b"1")}
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (found,) = (each.result(TIMEOUT_S) for each in admin.describe_configs([resource]).values())
        assert found["cleanup.policy"].value == ""
        entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(TIMEOUT_S)
        until(lambda: reader.watermarks == (3, 3))


# --- by offset ------------------------------------------------------------------------------------------------


def delete(admin: AdminClient, topic: str, offset: int, partition: int = 0, **more: float) -> int:
    """The new start."""
    (gone,) = admin.delete_records([TopicPartition(topic, partition, offset)], **more).values()
    return int(gone.result(TIMEOUT_S).low_watermark)


def test_deleting_records_with_a_time_out_of_nothing_succeeds(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic)
    produce(up, topic, *[("k", b"%d" % n) for n in range(10)], each=False)
    assert delete(admin, topic, 4, operation_timeout=0) == 4


def test_deleting_records_moves_the_start_for_good(up: UpProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic)
    produce(up, topic, *[("k", b"%d" % n) for n in range(10)], each=False)
    assert delete(admin, topic, 4) == 4
    with Reader(up, topic) as reader:
        assert reader.watermarks == (4, 10)
        assert list(reader.read(4)) == [4, 5, 6, 7, 8, 9]
        with pytest.raises(KafkaException):
            reader.read(3)
    assert delete(admin, topic, 2) == 4  # what is gone is gone
    up.kill()
    up.start()
    with Reader(up, topic) as reader:
        assert reader.watermarks == (4, 10)
    assert delete(AdminClient({"bootstrap.servers": up.kafka}), topic, -1) == 10
    with Reader(up, topic) as reader:
        assert reader.watermarks == (10, 10)
    assert produce(up, topic, ("k", b"more")) == [10]


@pytest.mark.parametrize(
    ("offset", "partition", "code"),
    [
        (4, 0, KafkaError.OFFSET_OUT_OF_RANGE),
        (-2, 0, KafkaError.OFFSET_OUT_OF_RANGE),
    ],
)
def test_records_that_are_not_there_cannot_be_deleted(
    up: UpProcess, admin: AdminClient, topic: str, offset: int, partition: int, code: int
) -> None:
    create(admin, topic)
    produce(up, topic, *[("k", b"v")] * 3)
    with pytest.raises(KafkaException) as caught:
        delete(admin, topic, offset, partition)
    assert caught.value.args[0].code() == code


def test_records_of_a_compacted_topic_are_not_deleted_by_offset(admin: AdminClient, topic: str) -> None:
    create(admin, topic, **COMPACT)
    with pytest.raises(KafkaException) as caught:
        delete(admin, topic, -1)
    assert caught.value.args[0].code() == KafkaError.POLICY_VIOLATION
