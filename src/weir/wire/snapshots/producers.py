"""What a topic knows of its producers: idempotent ones, names that are deduplicated, stamps of what is held.

Idempotent producers, learnt from the log:

    version u8 | known to i64 | count u32 | each:
        id i64, epoch i16, next sequence i32, seen ms i64, batches u8, marked i32 | each batch:
            epoch i16, first i32, last i32, offset i64, checksum u32

The first version has neither `marked` nor checksums. The other two are JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from weir.model.errors import WireError
from weir.model.transactions import Stored
from weir.wire.snapshots.fields import Reader, check_version, dump, load, numbered, text, whole

_HEAD = Struct("<BqI")
_PRODUCER = Struct("<qhiqBi")
_BATCH = Struct("<hiiqI")
_VERSION = 2
_PRODUCER_1 = Struct("<qhiqB")
_BATCH_1 = Struct("<hiiq")
_NONE = -1
#: Of a number of 64 bits.
_MAX_DIGITS = 20


class ProducerRecord(NamedTuple):
    """`next`: the sequence number that follows; `marked`: the one that followed the last marker. -1: none."""

    producer_id: int
    epoch: int
    next: int
    seen_ms: int
    marked: int
    stored: Sequence[Stored]


def encode_producers(known_to: int, producers: Sequence[ProducerRecord]) -> bytes:
    """Everything stored before `known_to` is taken into account."""
    parts = [_HEAD.pack(_VERSION, known_to, len(producers))]
    for one in producers:
        parts.append(
            _PRODUCER.pack(one.producer_id, one.epoch, one.next, one.seen_ms, len(one.stored), one.marked)
        )
        parts += [_BATCH.pack(b.epoch, b.first, b.last, b.offset, b.checksum) for b in one.stored]
    return b"".join(parts)


def decode_producers(data: bytes) -> tuple[int, list[ProducerRecord]]:
    reader = Reader(data, "a snapshot of producers")
    version, known_to, count = reader.take(_HEAD)
    reader.version(version, _VERSION)
    reader.require(known_to >= 0)
    producer, batch = (_PRODUCER_1, _BATCH_1) if version == 1 else (_PRODUCER, _BATCH)
    found = []
    for _ in range(count):
        producer_id, epoch, sequence, seen_ms, batches, *rest = reader.take(producer)
        reader.require(epoch >= 0 and sequence >= _NONE)
        marked = rest[0] if rest else _NONE
        stored = [Stored(*reader.take(batch)) for _ in range(batches)]
        found.append(ProducerRecord(producer_id, epoch, sequence, seen_ms, marked, stored))
    reader.end()
    return known_to, found


# --- deduplication by name ---------------------------------------------------------------------------------------

_DEDUP_VERSION = 2
#: Snapshots that do not say their version have, among the producers' names, this one of the broker's own. What it
#: says of a producer is wrong, and would have its messages taken for duplicates.
_SHARED_NAMES = 1
_OWN_NAME = " committed"


@dataclass(frozen=True, slots=True)
class DedupSnapshot:
    """`names`: the highest sequence id that is stored, and when the producer was seen last (ms since 1970).
    `held`: how many entries of each holding ledger are taken into account."""

    known_to: int
    held: Mapping[int, int]
    names: Mapping[str, tuple[int, int]]


def encode_dedup(snapshot: DedupSnapshot) -> bytes:
    return dump(
        {
            "version": _DEDUP_VERSION,
            "to": snapshot.known_to,
            "held": {str(ledger): entries for ledger, entries in snapshot.held.items()},
            "names": {name: list(known) for name, known in snapshot.names.items()},
        }
    )


def decode_dedup(data: bytes) -> DedupSnapshot:
    return load(data, "a deduplication snapshot", _dedup)


def _dedup(fields: Any) -> DedupSnapshot:
    version = fields.get("version", _SHARED_NAMES)
    check_version(version, _DEDUP_VERSION, "a deduplication snapshot")
    names = {text(name): (whole(stored), whole(seen)) for name, (stored, seen) in fields["names"].items()}
    if version == _SHARED_NAMES:
        names.pop(_OWN_NAME, None)
    return DedupSnapshot(whole(fields["to"], 0), _entries(fields["held"]), names)


def _entries(fields: Any) -> dict[int, int]:
    return {ledger: whole(entries, 0) for ledger, entries in numbered(fields)}


# --- stamps of what is held --------------------------------------------------------------------------------------

_STAMPS_VERSION = 1


@dataclass(frozen=True, slots=True)
class HeldStampsRecord:
    """`last`: epoch and last sequence number of each producer id, those that had something held last at the end.
    `known`: how many entries of each holding ledger are taken into account."""

    last: Mapping[int, tuple[int, int]]
    known: Mapping[int, int]


def encode_held_stamps(record: HeldStampsRecord) -> bytes:
    return dump(
        {
            "version": _STAMPS_VERSION,
            "last": {str(producer_id): list(taken) for producer_id, taken in record.last.items()},
            "known": {str(ledger): entries for ledger, entries in record.known.items()},
        }
    )


def decode_held_stamps(data: bytes) -> HeldStampsRecord:
    """The first ones do not say their version."""
    return load(data, "what is known of held stamps", _held_stamps)


def _held_stamps(fields: Any) -> HeldStampsRecord:
    check_version(fields.get("version", 1), _STAMPS_VERSION, "what is known of held stamps")
    last = {key: (whole(epoch), whole(last)) for key, (epoch, last) in numbered(fields["last"])}
    return HeldStampsRecord(last, _entries(fields["known"]))


# --- the epoch of exclusive producers ----------------------------------------------------------------------------


def encode_epoch(epoch: int) -> bytes:
    """The topic's epoch: counted on when a producer takes it over."""
    return str(epoch).encode()


def decode_epoch(data: bytes) -> int:
    try:
        if len(data) > _MAX_DIGITS:
            raise ValueError("it is too long")
        return whole(int(data.decode()), 0)
    except ValueError as bad:
        raise WireError(f"a topic's epoch is malformed: {bad}") from bad
