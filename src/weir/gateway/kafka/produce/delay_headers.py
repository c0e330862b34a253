"""Delayed delivery for Kafka producers, requested by record headers.

`weir-deliver-at` (milliseconds since 1970) or `weir-deliver-after` (milliseconds from now), as decimal text, delay
a record; `weir-delay-id` names it; a record with `weir-cancel` cancels the delayed message of that name, and is
itself not stored. If all records of a batch have the same delivery time, the broker delays the batch as a whole.
It splits any other batch into parts: runs of records with the same delay. A resent batch splits into the same runs
at any time, so their sequence numbers identify them. Delayed records of a transaction stay hidden until the
commit, and their delay applies after it; a transaction cannot cancel delayed messages.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from weir.broker.api.producers import Outgoing
from weir.gateway.kafka.errors import Code, RefusedError
from weir.model.batch import Stamp
from weir.model.errors import WireError
from weir.model.messages import CANCEL, DELAY_ID, DELIVER_AFTER, DELIVER_AT
from weir.wire.kafka.record_batch import (
    LOG_APPEND_TIME,
    NO_STAMP,
    TRANSACTIONAL,
    BatchHeader,
    Compression,
    parse_header,
)
from weir.wire.kafka.records import Record, Searcher, build_batch, iter_records

#: A part costs memory while it is in flight; librdkafka sends no more records in a batch by default.
MOST_PARTS = 10_000
_MAX_ID_BYTES = 256
_MAX_DIGITS = 18
_LAST_SEQUENCE = 0x7FFFFFFF


class _Wish(NamedTuple):
    """The delay that a record's headers request. `place` separates records that must not share a batch."""

    deliver_at: int | None = None
    deliver_after: int | None = None
    delay_id: str | None = None
    cancel: str | None = None
    place: int = -1


_NOTHING = _Wish()


class Delaying:
    """Applies the delay headers of the records that producers of one listener send."""

    def __init__(self) -> None:
        self._searcher = Searcher(b"weir-", (DELIVER_AT, DELIVER_AFTER, CANCEL))

    def heeded(
        self, outgoing: Outgoing, now_ms: int, header: BatchHeader | None = None, *, behind_ms: int = 0
    ) -> Outgoing:
        """The batch with its delays applied, or the batch itself if no record requests a delay. RefusedError.
        `header`: the batch's header, if already parsed; `behind_ms`: how far the clients' clock is behind."""
        try:
            if not self._searcher.has(outgoing.payload, header or parse_header(outgoing.payload)):
                return outgoing
            payload = bytes(outgoing.payload)  # copied out of the receive buffer, because it may stay for long
            outgoing = replace(outgoing, payload=payload)
            runs = _runs_of(payload)
        except WireError as bad:
            raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad
        if all(wish == _NOTHING for wish, _ in runs):
            return outgoing
        if outgoing.transactional and any(wish.cancel is not None for wish, _ in runs):
            raise RefusedError(Code.INVALID_RECORD, "a transaction cannot cancel delayed messages")
        if len(runs) > MOST_PARTS:  # some clients split the batch and retry
            raise RefusedError(Code.MESSAGE_TOO_LARGE, f"a batch would be stored in more than {MOST_PARTS} parts")
        if len(runs) == 1 and runs[0][0].place < 0 and not outgoing.transactional:
            whole = replace(outgoing, deliver_at_ms=_due(runs[0][0], now_ms, behind_ms))
            return whole if outgoing.stamp is None else replace(outgoing, parts=(whole,))
        return replace(outgoing, parts=tuple(_parts(outgoing, parse_header(payload), runs, now_ms, behind_ms)))


def _runs_of(payload: bytes) -> list[tuple[_Wish, list[Record]]]:
    wished = [(_wish_of(record), record) for record in iter_records(payload)]
    return [(wish, [record for _, record in run]) for wish, run in groupby(wished, lambda pair: pair[0])]


def _wish_of(record: Record) -> _Wish:
    if not record.headers:
        return _NOTHING
    found: dict[bytes, str] = {}
    for name, value in record.headers:
        if name in (DELIVER_AT, DELIVER_AFTER, DELAY_ID, CANCEL) and name not in found:
            found[name] = _text(name, value)
    if CANCEL in found:
        return _Wish(cancel=found[CANCEL], place=record.offset_delta)
    if DELIVER_AT in found and DELIVER_AFTER in found:
        raise WireError(f"a record has both {DELIVER_AT.decode()} and {DELIVER_AFTER.decode()}")
    if DELIVER_AT not in found and DELIVER_AFTER not in found:
        return _NOTHING
    named = found.get(DELAY_ID)
    return _Wish(
        deliver_at=_number(DELIVER_AT, found),
        deliver_after=_number(DELIVER_AFTER, found),
        delay_id=named,
        place=-1 if named is None else record.offset_delta,  # canceling it must not cancel other records
    )


def _text(name: bytes, value: object) -> str:
    if not isinstance(value, bytes) or not 0 < len(value) <= _MAX_ID_BYTES:
        raise WireError(f"the header {name.decode()} has 1 to {_MAX_ID_BYTES} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WireError(f"the header {name.decode()} is not valid UTF-8 text") from None


def _number(name: bytes, found: dict[bytes, str]) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise WireError(f"the header {name.decode()} is milliseconds in decimal digits, not {text[:40]!r}")
    return int(text)


def _due(wish: _Wish, now_ms: int, behind_ms: int) -> int | None:
    if wish.deliver_after is not None:
        return now_ms + wish.deliver_after
    return None if wish.deliver_at is None else wish.deliver_at + behind_ms


def _parts(
    outgoing: Outgoing, header: BatchHeader, runs: list[tuple[_Wish, list[Record]]], now_ms: int, behind_ms: int
) -> Iterator[Outgoing]:
    """One part for each run, with the sequence numbers of its records."""
    for wish, records in runs:
        first = records[0].offset_delta
        stamp = outgoing.stamp
        if stamp is not None:
            stamp = replace(stamp, sequence=(stamp.sequence + first) & _LAST_SEQUENCE)
        kept = LOG_APPEND_TIME
        # A compressed batch stays compressed, except a named one: the broker reads the name from the raw batch.
        packed = header.compression if wish.delay_id is None else Compression.NONE
        inner = stamp
        if outgoing.transactional and wish == _NOTHING:
            kept |= TRANSACTIONAL
        elif outgoing.transactional:
            inner = None  # the transaction has ended before consumers see the record
        yield replace(
            outgoing,
            payload=b"" if wish.cancel is not None else _batch(header.attributes & kept, packed, records, inner),
            count=len(records),
            stamp=stamp,
            deliver_at_ms=_due(wish, now_ms, behind_ms),
            delay_id=wish.delay_id,
            cancels=wish.cancel,
        )


def _batch(attributes: int, packed: Compression, records: list[Record], stamp: Stamp | None) -> bytes:
    first = records[0].offset_delta
    moved = [
        Record(record.offset_delta - first, record.timestamp, record.key, record.value, record.headers)
        for record in records
    ]
    return build_batch(moved, attributes=attributes, stamp=stamp or NO_STAMP, compression=packed)
