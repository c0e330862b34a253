"""Headers that delay a record, name it, cancel it: found in any batch, and cut out of it where they must be."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.api.producers import Outgoing
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.produce.delay_headers import MOST_PARTS, Delaying
from weir.model.batch import Batch, BatchFormat, Stamp
from weir.model.messages import CANCEL, DELAY_ID, DELIVER_AFTER, DELIVER_AT
from weir.testing.codecs.record_samples import compressed
from weir.wire.formats.table import FORMATS
from weir.wire.kafka.record_batch import (
    NO_STAMP,
    TRANSACTIONAL,
    Compression,
    parse_header,
    produced,
    verify,
    with_append_time,
)
from weir.wire.kafka.records import Header, Record, build_batch, iter_records

NOW = 1_700_000_000_000
EVERY = pytest.mark.parametrize("kind", Compression)


def record(delta: int, *headers: Header) -> Record:
    return Record(delta, NOW + delta, b"key", b"value %d" % delta, list(headers))


def at(moment_ms: int) -> Header:
    return DELIVER_AT, b"%d" % moment_ms


def after(delay_ms: int) -> Header:
    return DELIVER_AFTER, b"%d" % delay_ms


def outgoing(
    records: Sequence[Record], kind: Compression = Compression.NONE, stamp: Stamp | None = None, **more: Any
) -> Outgoing:
    payload = compressed(build_batch(records, stamp=stamp or NO_STAMP), kind)
    return Outgoing(payload, len(records), BatchFormat.KAFKA, stamp=stamp, **more)


def heeded(*records: Record, kind: Compression = Compression.NONE, **more: Any) -> Outgoing:
    return Delaying().heeded(outgoing(records, kind, **more), NOW)


def values(part: Outgoing) -> list[bytes | None]:
    if not part.payload:
        return []
    ((_, batch),) = produced(part.payload)
    return [None if one.value is None else bytes(one.value) for one in iter_records(batch)]


@EVERY
def test_a_batch_without_such_headers_is_left_as_it_is(kind: Compression) -> None:
    sent = outgoing([record(0), record(1, (b"weird", b"weir-d"), (b"weir-ordering-key", b"x"))], kind)
    assert Delaying().heeded(sent, NOW) is sent


@EVERY
def test_a_batch_that_waits_for_one_moment_is_held_as_it_is(kind: Compression) -> None:
    sent = outgoing([record(n, at(NOW + 5000)) for n in range(3)], kind)
    held = Delaying().heeded(sent, NOW)
    assert (held.deliver_at_ms, held.parts) == (NOW + 5000, ())
    assert held.payload is sent.payload
    assert heeded(record(0, after(700)), record(1, after(700))).deliver_at_ms == NOW + 700


def test_an_idempotent_producers_batch_is_a_part_of_its_own() -> None:
    held = heeded(record(0, at(NOW + 5)), stamp=Stamp(7, 0, 3))
    (part,) = held.parts
    assert (part.deliver_at_ms, part.stamp) == (NOW + 5, Stamp(7, 0, 3))


@EVERY
def test_a_mixed_batch_is_cut_into_runs(kind: Compression) -> None:
    cut = heeded(
        record(0),
        record(1),
        record(2, at(NOW + 9)),
        record(3, at(NOW + 9)),
        record(4, after(9)),
        record(5),
        kind=kind,
    )
    assert [part.deliver_at_ms for part in cut.parts] == [None, NOW + 9, NOW + 9, None]
    assert [part.count for part in cut.parts] == [2, 2, 1, 1]
    assert [values(part) for part in cut.parts] == [
        [b"value 0", b"value 1"],
        [b"value 2", b"value 3"],
        [b"value 4"],
        [b"value 5"],
    ]


def test_runs_are_the_same_whenever_the_batch_is_sent_again() -> None:
    sent = outgoing([record(0, after(10)), record(1, at(NOW + 10)), record(2, after(10))])
    for now in (NOW, NOW + 10, NOW + 10_000):
        assert [part.count for part in Delaying().heeded(sent, now).parts] == [1, 1, 1]


def test_parts_have_the_sequence_numbers_of_their_records() -> None:
    cut = heeded(
        record(0), record(1, at(NOW + 9)), record(2, at(NOW + 9)), record(3), stamp=Stamp(7, 1, 0x7FFFFFFE)
    )
    assert [part.stamp for part in cut.parts] == [
        Stamp(7, 1, 0x7FFFFFFE),
        Stamp(7, 1, 0x7FFFFFFF),
        Stamp(7, 1, 1),
    ]
    for part in cut.parts:
        header = verify(part.payload)
        assert (header.stamp, header.count) == (part.stamp, part.count)


def test_a_named_record_is_alone_so_that_cancelling_it_cancels_nothing_else() -> None:
    named = [record(n, at(NOW + 9), (DELAY_ID, b"id-%d" % n)) for n in range(2)]
    cut = heeded(*named, record(2, at(NOW + 9)), kind=Compression.ZSTD)
    assert [part.delay_id for part in cut.parts] == ["id-0", "id-1", None]
    found = [
        FORMATS[BatchFormat.KAFKA].delay_id(Batch(0, 1, BatchFormat.KAFKA, 0, part.payload)) for part in cut.parts
    ]
    assert found == ["id-0", "id-1", None]


def test_a_cancelling_record_is_not_stored() -> None:
    cut = heeded(record(0), record(1, (CANCEL, b"id-1"), at(NOW + 5)), record(2, (CANCEL, b"id-2")), record(3))
    assert [part.cancels for part in cut.parts] == [None, "id-1", "id-2", None]
    assert [values(part) for part in cut.parts] == [[b"value 0"], [], [], [b"value 3"]]
    alone = heeded(record(0, (CANCEL, b"id-1")))
    assert [part.cancels for part in alone.parts] == ["id-1"]


def test_a_name_without_a_delay_means_nothing() -> None:
    sent = outgoing([record(0, (DELAY_ID, b"x"))])
    assert Delaying().heeded(sent, NOW) is sent


def test_the_brokers_time_stays() -> None:
    payload = with_append_time(build_batch([record(0), record(1, at(NOW + 9))]), NOW + 1)
    cut = Delaying().heeded(Outgoing(payload, 2, BatchFormat.KAFKA), NOW)
    for part in cut.parts:
        header = verify(part.payload)
        assert header.log_append_time
        assert header.max_timestamp == NOW + 1


@pytest.mark.parametrize(
    "headers",
    [
        [(DELIVER_AT, b"soon")],
        [(DELIVER_AT, b"-5")],
        [(DELIVER_AT, b"1" * 30)],
        [(DELIVER_AT, None)],
        [(DELIVER_AFTER, b"")],
        [(DELIVER_AFTER, "１２".encode())],
        [(DELIVER_AT, b"5"), (DELIVER_AFTER, b"5")],
        [(DELIVER_AT, b"5"), (DELAY_ID, b"\xff")],
        [(DELIVER_AT, b"5"), (DELAY_ID, b"x" * 300)],
        [(CANCEL, None)],
    ],
    ids=lambda headers: " and ".join(f"{name.decode()}={value!r:.12}" for name, value in headers),
)
def test_headers_that_say_nothing_sensible_are_refused(headers: list[Header]) -> None:
    with pytest.raises(RefusedError) as refused:
        heeded(record(0, *headers))
    assert refused.value.code is Code.INVALID_RECORD


def test_a_transaction_cancels_nothing() -> None:
    with pytest.raises(RefusedError) as refused:
        heeded(record(0), record(1, (CANCEL, b"x")), stamp=Stamp(7, 0, 0), transactional=True)
    assert refused.value.code is Code.INVALID_RECORD
    sent = outgoing([record(0)], stamp=Stamp(7, 0, 0), transactional=True)
    assert Delaying().heeded(sent, NOW) is sent


def test_what_a_transaction_delays_is_no_part_of_it_once_it_is_seen() -> None:
    stamp = Stamp(7, 1, 3)
    payload = build_batch(
        [record(0), record(1, at(NOW + 5)), record(2, at(NOW + 5)), record(3)],
        attributes=TRANSACTIONAL,
        stamp=stamp,
    )
    sent = Outgoing(payload, 4, BatchFormat.KAFKA, stamp=stamp, transactional=True)
    parts = Delaying().heeded(sent, NOW).parts
    assert [(p.stamp, p.transactional, p.deliver_at_ms) for p in parts] == [
        (Stamp(7, 1, 3), True, None),
        (Stamp(7, 1, 4), True, NOW + 5),
        (Stamp(7, 1, 6), True, None),
    ]
    headers = [parse_header(part.payload) for part in parts]
    assert [(header.transactional, header.stamp) for header in headers] == [
        (True, Stamp(7, 1, 3)),
        (False, None),
        (True, Stamp(7, 1, 6)),
    ]
    (whole,) = heeded(record(0, at(NOW + 5)), stamp=stamp, transactional=True).parts
    assert (whole.deliver_at_ms, parse_header(whole.payload).stamp) == (NOW + 5, None)


@pytest.mark.slow
def test_a_batch_of_very_many_parts_is_refused_so_that_its_client_cuts_it() -> None:
    records = [record(n, after(5)) if n % 2 else record(n) for n in range(MOST_PARTS + 1)]
    assert len(heeded(*records[:-1]).parts) == MOST_PARTS
    with pytest.raises(RefusedError) as refused:
        heeded(*records)
    assert refused.value.code is Code.MESSAGE_TOO_LARGE


def test_records_that_cannot_be_opened_are_refused() -> None:
    payload = build_batch([record(0)], attributes=Compression.LZ4)
    with pytest.raises(RefusedError):
        Delaying().heeded(Outgoing(payload, 1, BatchFormat.KAFKA), NOW)


@EVERY
def test_a_header_is_found_in_a_batch_that_is_large_when_opened(kind: Compression) -> None:
    large = [Record(n, NOW, None, b"x" * 500_000) for n in range(4)]
    assert heeded(*large, Record(4, NOW, None, b"late", [at(NOW + 5)]), kind=kind).parts


@given(wishes=st.lists(st.sampled_from(["", "at", "after", "named", "cancel"]), min_size=1, max_size=12))
def test_no_record_is_lost_or_doubled_and_order_holds(wishes: list[str]) -> None:
    headers: dict[str, list[Header]] = {
        "": [],
        "at": [at(NOW + 5)],
        "after": [after(5)],
        "named": [at(NOW + 5), (DELAY_ID, b"x")],
        "cancel": [(CANCEL, b"x")],
    }
    sent = outgoing([record(n, *headers[wish]) for n, wish in enumerate(wishes)], stamp=Stamp(1, 0, 50))
    done = Delaying().heeded(sent, NOW)
    parts = done.parts or (done,)
    assert sum(part.count for part in parts) == len(wishes)
    stored = [value for part in parts for value in values(part)]
    assert stored == [b"value %d" % n for n, wish in enumerate(wishes) if wish != "cancel"]
    sequence = 50
    for part in parts:
        assert part.stamp is not None
        assert part.stamp.sequence == sequence
        sequence += part.count


@EVERY
def test_a_part_is_as_large_as_it_came(kind: Compression) -> None:
    cut = heeded(Record(0, NOW, None, b"x" * 500_000, [at(NOW + 5)]), record(1), kind=kind)
    assert [parse_header(part.payload).compression for part in cut.parts] == [kind, kind]
    assert [[bytes(one.value or b"")[:7] for one in iter_records(part.payload)] for part in cut.parts] == [
        [b"xxxxxxx"],
        [b"value 1"],
    ]
