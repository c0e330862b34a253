"""The keys of Kafka's records: each record has its own, and a batch may go to several consumers."""

from weir.model.batch import Batch, BatchFormat
from weir.testing.codecs.record_samples import compressed
from weir.wire.formats.kafka import ORDERING_KEY
from weir.wire.formats.table import FORMATS, pulsar_entry
from weir.wire.kafka.record_batch import Compression
from weir.wire.kafka.records import Record, build_batch

keys_of = FORMATS[BatchFormat.KAFKA].keys
pulsar_keys_of = FORMATS[BatchFormat.PULSAR].keys


def stored(*records: Record, kind: Compression = Compression.NONE) -> Batch:
    return Batch(0, len(records), BatchFormat.KAFKA, 0, compressed(build_batch(records), kind))


def test_every_record_has_its_key() -> None:
    records = [Record(0, 1, b"a", b"1"), Record(1, 1, None, b"2"), Record(2, 1, b"\xff", None)]
    for kind in Compression:
        assert keys_of(stored(*records, kind=kind)) == [b"a", None, b"\xff"]


def test_an_ordering_key_in_a_header_comes_first() -> None:
    headers = [(b"other", b"x"), (ORDERING_KEY.encode(), b"order")]
    assert keys_of(stored(Record(0, 1, b"a", b"1", headers))) == [b"order"]


def test_a_key_is_the_same_whichever_protocol_it_came_by() -> None:
    for key in (b"text", "größe".encode(), b"\xff\x00"):
        batch = stored(Record(0, 1, key, b"v"))
        other = Batch(0, 1, BatchFormat.PULSAR, 0, pulsar_entry(batch).payload)
        assert keys_of(batch) == [pulsar_keys_of(other)]


def test_what_cannot_be_opened_has_no_keys() -> None:
    assert keys_of(Batch(0, 1, BatchFormat.KAFKA, 0, b"x")) is None
    one_of_two = Batch(0, 2, BatchFormat.KAFKA, 0, build_batch([Record(0, 1, b"a", b"1")], last_offset_delta=1))
    assert keys_of(one_of_two) is None
