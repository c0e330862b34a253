"""What brokers keep in a stream's state: what goes in comes out, and what former releases wrote is still read."""

from collections.abc import Callable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from weir.model.errors import UnknownVersionError, WireError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, Stored, TransactionState
from weir.wire.snapshots import groups, producers, subscriptions, transactions
from weir.wire.snapshots import groups as positions
from weir.wire.snapshots import transactions as half
from weir.wire.snapshots import transactions as transaction_index

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
counts = st.integers(0, 2**63 - 1)
texts = st.text(max_size=20)
durations = st.floats(0, 1e9)
topics = st.integers(0, 9).map(lambda n: TopicName.parse(f"persistent://acme/sales/t{n}"))
part_lists = st.lists(topics, max_size=3, unique=True).map(tuple)
bitmaps = st.sets(st.integers(0, 2**63 - 1), max_size=20).map(BitMap64)
entries = st.dictionaries(counts, counts, max_size=3)

members = st.builds(
    groups.MemberRecord,
    id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    session_s=durations,
    rebalance_s=durations,
    joined_ms=int64,
    protocols=st.dictionaries(texts, st.binary(max_size=9), max_size=3),
    assignment=st.binary(max_size=9),
    parts=part_lists,
    role=texts,
)


@given(
    st.builds(
        groups.GroupRecord,
        generation=int32,
        protocol_type=texts,
        protocol=texts,
        leader=texts,
        empty_since_ms=int64,
        members=st.lists(members, max_size=3).map(tuple),
        role=texts,
    )
)
def test_groups(group: groups.GroupRecord) -> None:
    assert groups.decode_group(groups.encode_group(group)) == group


@given(texts, texts)
def test_departures(group: str, member: str) -> None:
    assert groups.decode_departure(groups.encode_departure(group, member)) == (group, member)


@given(part_lists)
def test_the_partitions_of_a_group(parts: tuple[TopicName, ...]) -> None:
    assert groups.decode_parts(groups.encode_parts(parts)) == list(parts)


@given(
    st.builds(
        positions.StoredPosition,
        said=st.builds(CommittedOffset, int64, int32, texts, int64),
        placed=counts,
        order=counts,
    )
)
def test_positions(position: positions.StoredPosition) -> None:
    assert positions.decode_position(positions.encode_position(position)) == position


@given(
    int64,
    st.lists(st.tuples(part_lists, st.builds(CommittedOffset, int64, int32, texts)), max_size=3),
)
def test_positions_that_a_transaction_holds_ready(
    of_round: int, given_positions: list[tuple[tuple[TopicName, ...], CommittedOffset]]
) -> None:
    held = {part: position for parts, position in given_positions for part in parts}
    assert groups.decode_pending(groups.encode_pending(of_round, held)) == (of_round, held)


@given(
    st.builds(
        transactions.TransactionRecord,
        producer_id=int64,
        epoch=int64,
        last_epoch=int64,
        last_id=int64,
        next_id=int64,
        role=texts,
        state=st.sampled_from(TransactionState),
        timeout_ms=int64,
        started_ms=int64,
        updated_ms=int64,
        parts=part_lists,
        groups=st.dictionaries(
            texts, st.dictionaries(topics, st.builds(CommittedOffset, int64, int32, texts), max_size=2), max_size=2
        ),
    )
)
def test_transactions(record: transactions.TransactionRecord) -> None:
    assert transactions.decode_transaction(transactions.encode_transaction(record)) == record


@given(int64, texts)
def test_sinks(epoch: int, role: str) -> None:
    assert transactions.decode_sink(transactions.encode_sink(epoch, role)) == (epoch, role)


@given(st.lists(st.builds(transaction_index.OpenTransaction, int64, counts, bitmaps), max_size=3))
def test_open_transactions(opened: list[transaction_index.OpenTransaction]) -> None:
    assert transaction_index.decode_open(transaction_index.encode_open(opened)) == opened


@given(st.lists(st.tuples(int64, counts, counts, int64), max_size=3), bitmaps)
def test_decided_transactions(rows: list[tuple[int, int, int, int]], hidden: BitMap64) -> None:
    aborted = tuple(transaction_index.Aborted(who, min(a, b), max(a, b), stable) for who, a, b, stable in rows)
    piece = transaction_index.Piece(aborted, hidden)
    assert transaction_index.decode_piece(transaction_index.encode_piece(piece)) == piece


@given(st.builds(transaction_index.Delays, st.dictionaries(int64, bitmaps, max_size=3), bitmaps, entries))
def test_delays(delays: transaction_index.Delays) -> None:
    assert transaction_index.decode_delays(transaction_index.encode_delays(delays)) == delays


epochs = st.integers(0, 2**15 - 1)
sequences = st.integers(-1, 2**31 - 1)
stored = st.builds(Stored, epochs, sequences, sequences, int64, st.integers(0, 2**32 - 1))


@given(
    counts,
    st.lists(
        st.builds(
            producers.ProducerRecord, int64, epochs, sequences, int64, sequences, st.lists(stored, max_size=5)
        ),
        max_size=3,
    ),
)
def test_idempotent_producers(known_to: int, records: list[producers.ProducerRecord]) -> None:
    assert producers.decode_producers(producers.encode_producers(known_to, records)) == (known_to, records)


@given(
    st.builds(
        producers.DedupSnapshot, counts, entries, st.dictionaries(texts, st.tuples(int64, int64), max_size=3)
    )
)
def test_deduplication(snapshot: producers.DedupSnapshot) -> None:
    assert producers.decode_dedup(producers.encode_dedup(snapshot)) == snapshot


@given(st.builds(producers.HeldStampsRecord, st.dictionaries(int64, st.tuples(int64, int64), max_size=3), entries))
def test_stamps_of_what_is_held(record: producers.HeldStampsRecord) -> None:
    again = producers.decode_held_stamps(producers.encode_held_stamps(record))
    assert (list(again.last.items()), again.known) == (list(record.last.items()), record.known)


@given(counts)
def test_topic_epochs(epoch: int) -> None:
    assert producers.decode_epoch(producers.encode_epoch(epoch)) == epoch


@given(st.dictionaries(texts, texts, max_size=3))
def test_subscriptions(properties: dict[str, str]) -> None:
    assert subscriptions.decode_subscription(subscriptions.encode_subscription(properties)) == properties


@given(st.integers(-1, 2**40), st.sets(st.integers(1, 2**40), max_size=20))
def test_cursors(mark_delete: int, ahead: set[int]) -> None:
    above = BitMap64([mark_delete + far for far in ahead])
    assert subscriptions.decode_cursor(subscriptions.encode_cursor(mark_delete, above)) == (mark_delete, above)


# --- what is on disks already -------------------------------------------------------------------------------


def test_what_former_releases_wrote_is_read() -> None:
    assert producers.decode_held_stamps(b'{"last": {"7": [1, 5]}, "known": {"3": 9}}') == (
        producers.HeldStampsRecord({7: (1, 5)}, {3: 9})
    )
    assert subscriptions.decode_subscription(b'{"properties": {"a": "b"}}') == {"a": "b"}
    assert subscriptions.decode_subscription(b"{}") == {}
    assert groups.decode_parts(b'["persistent://acme/sales/t1"]') == [
        TopicName.parse("persistent://acme/sales/t1")
    ]
    assert transactions.decode_sink(b"12 ann") == (12, "ann")
    assert producers.decode_epoch(b"3") == 3
    said = CommittedOffset(5, 2, "note", 77)
    assert positions.decode_position(pack("<Bqqiq", 1, 5, 5, 2, 77) + b"note") == positions.StoredPosition(said, 5)
    assert subscriptions.decode_cursor(pack("<Bq", 1, 4) + BitMap64([6]).serialize()) == (4, BitMap64([6]))


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (groups.decode_group, b'{"version": 9}'),
        (groups.decode_departure, b'{"version": 9}'),
        (transactions.decode_transaction, b'{"version": 9}'),
        (producers.decode_dedup, b'{"version": 9}'),
        (producers.decode_held_stamps, b'{"version": 9}'),
        (subscriptions.decode_subscription, b'{"version": 9}'),
        (positions.decode_position, b"\x09" + bytes(28)),
        (producers.decode_producers, b"\x09" + bytes(12)),
        (transaction_index.decode_open, b"\x09" + bytes(4)),
        (transaction_index.decode_piece, b"\x09" + bytes(4)),
        (transaction_index.decode_delays, b"\x09" + bytes(12)),
        (subscriptions.decode_cursor, b"\x09" + bytes(8)),
    ],
)
def test_what_a_newer_release_wrote_is_named_so(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(UnknownVersionError, match="version 9"):
        decode(data)


def test_a_count_that_the_bytes_do_not_hold_costs_nothing() -> None:
    """A bitmap's length beyond the end is no allocation, nor is a number of records."""
    for decode, data in (
        (transaction_index.decode_open, pack("<BIqqI", 1, 1, 1, 1, 2**32 - 1)),
        (transaction_index.decode_piece, pack("<BI", 1, 2**32 - 1)),
        (producers.decode_producers, pack("<BqI", 2, 1, 2**32 - 1)),
    ):
        with pytest.raises(WireError):
            decode(data)


@given(
    st.sets(st.integers(0, 1 << 40), max_size=20),
    st.sets(st.integers(0, 1 << 40), max_size=20),
    st.dictionaries(st.integers(0, 1 << 40), st.tuples(st.integers(0, 99), int64), max_size=3),
)
def test_half_messages(committed: set[int], rolled_back: set[int], checks: dict[int, tuple[int, int]]) -> None:
    record = half.HalfRecord(BitMap64(committed), BitMap64(rolled_back - committed), checks, 7)
    assert half.decode_half(half.encode_half(record)) == record
