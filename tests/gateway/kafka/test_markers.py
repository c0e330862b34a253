"""Transaction markers are Weir's own in the log, and Kafka's control batches for Kafka's consumers."""

import pytest
from kafka.record.default_records import DefaultRecordBatch

from weir.gateway.kafka.fetch.fetch import MARKER_BYTES, marker_records
from weir.model.batch import Batch, BatchFlags, BatchFormat, Stamp
from weir.model.errors import UnknownVersionError, WireError
from weir.wire.formats.marker import decode_marker, encode_marker
from weir.wire.kafka.record_batch import verify

NOW = 1_800_000_000_000
FLAGS = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL


@pytest.mark.parametrize("abort", [False, True])
def test_a_marker_becomes_the_control_batch_that_kafka_knows(abort: bool) -> None:
    flags = FLAGS | BatchFlags.ABORT if abort else FLAGS
    marker = Batch(41, 1, BatchFormat.MARKER, NOW, encode_marker(NOW - 5), flags, stamp=Stamp(77, 3))
    made = b"".join(bytes(piece) for piece in marker_records(marker, 0))
    assert len(made) == MARKER_BYTES
    header = verify(made)
    assert (header.base_offset, header.control, header.stamp.producer_id, header.stamp.epoch) == (41, True, 77, 3)
    (record,) = list(DefaultRecordBatch(made))  # as a client reads it
    assert (record.offset, record.timestamp) == (41, NOW - 5)
    assert record.key[2:4] == (b"\x00\x00" if abort else b"\x00\x01")


def test_a_marker_comes_back_and_anything_else_is_refused() -> None:
    assert decode_marker(encode_marker(-1)) == -1
    for torn in (b"", encode_marker(1)[:-1], encode_marker(1) + b"x"):
        with pytest.raises(WireError):
            decode_marker(torn)
    with pytest.raises(UnknownVersionError):
        decode_marker(b"\x09" + encode_marker(1)[1:])
