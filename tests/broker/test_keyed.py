"""What compaction sees of Pulsar's batches."""

from weir.broker.keyed import pulsar_keyed
from weir.model.batch import Batch, BatchFormat
from weir.wire.pulsar.batch import encode_batch
from weir.wire.pulsar.compression import Compression, compress
from weir.wire.pulsar.message import seal_message
from weir.wire.pulsar.proto import api


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
