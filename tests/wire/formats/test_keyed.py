"""What compaction sees of Pulsar's and Kafka's batches."""

from weir.model.batch import Batch, BatchFormat
from weir.testing.codecs.record_samples import compressed
from weir.wire.formats.table import FORMATS
from weir.wire.kafka import record_batch as kafka
from weir.wire.kafka.records import Record, build_batch
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress, encode_batch
from weir.wire.pulsar.message import seal_message

pulsar_keyed = FORMATS[BatchFormat.PULSAR].keyed
kafka_keyed = FORMATS[BatchFormat.KAFKA].keyed


def metadata(**more: object) -> api.MessageMetadata:
    return api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **more)


def batch(meta: api.MessageMetadata, payload: bytes, count: int = 1) -> Batch:
    return Batch(0, count, BatchFormat.PULSAR, 0, b"".join(bytes(b) for b in seal_message(meta, payload)))


def test_single_messages_have_a_key_and_a_value_or_not() -> None:
    assert pulsar_keyed(batch(metadata(partition_key="k"), b"v")) == [(b"k", True)]
    assert pulsar_keyed(batch(metadata(partition_key="k"), b"")) == [(b"k", False)]
    assert pulsar_keyed(batch(metadata(partition_key="k", null_value=True), b"v")) == [(b"k", False)]
    assert pulsar_keyed(batch(metadata(), b"v")) == [(None, True)]


def test_batches_are_opened_whatever_their_compression() -> None:
    singles = [
        (api.SingleMessageMetadata(partition_key="a"), b"1"),
        (api.SingleMessageMetadata(partition_key="b"), b""),
        (api.SingleMessageMetadata(), b"3"),
    ]
    plain = encode_batch(singles)
    for kind in (Compression.NONE, Compression.LZ4, Compression.ZLIB):
        meta = metadata(num_messages_in_batch=3, compression=int(kind), uncompressed_size=len(plain))
        found = pulsar_keyed(batch(meta, bytes(compress(kind, plain)), 3))
        assert found == [(b"a", True), (b"b", False), (None, True)]


def test_what_cannot_be_opened_goes_by_its_outside() -> None:
    meta = metadata(num_messages_in_batch=2, partition_key="outer")
    meta.encryption_keys.add(key="k", value=b"v")
    assert pulsar_keyed(batch(meta, b"secret", 2)) == [(b"outer", True)] * 2
    assert pulsar_keyed(Batch(0, 1, BatchFormat.PULSAR, 0, b"\x0e")) == [(None, True)]


def test_kafkas_records_have_a_key_and_a_value_or_not_and_an_empty_value_is_one() -> None:
    records = [
        Record(0, 1, b"a", b"1"),
        Record(1, 1, b"b", None),
        Record(2, 1, None, b"3"),
        Record(3, 1, b"c", b""),
    ]
    plain = build_batch(records)
    for kind in kafka.Compression:
        stored = Batch(0, 4, BatchFormat.KAFKA, 0, compressed(plain, kind))
        assert kafka_keyed(stored) == [(b"a", True), (b"b", False), (None, True), (b"c", True)]


def test_of_records_that_cannot_be_opened_nothing_is_kept() -> None:
    broken = build_batch([Record(0, 1, b"a", b"1"), Record(1, 1, b"b", b"2")], attributes=kafka.Compression.ZSTD)
    assert kafka_keyed(Batch(0, 2, BatchFormat.KAFKA, 0, broken)) == [(None, True)] * 2
    assert kafka_keyed(Batch(0, 1, BatchFormat.KAFKA, 0, b"x")) == [(None, True)]
