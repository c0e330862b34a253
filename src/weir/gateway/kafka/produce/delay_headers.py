"""Delayed delivery for Kafka's producers, asked for by record headers.

`weir-deliver-at` (milliseconds since 1970) or `weir-deliver-after` (milliseconds from now), as decimal text, hold
a record back; `weir-delay-id` names it; a record with `weir-cancel` cancels what waits under that name, and is
itself not stored. A batch of which all records wait for the same moment is held as it is. Any other is stored in
parts: runs of records that are treated alike. They are the same runs if the batch is sent again, whenever that is,
so each of them is known by its sequence numbers. What a transaction delays is hidden until the commit, and held
from then on; nothing can be cancelled in one.
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

#: A part costs memory while it is on its way; librdkafka sends no more records in a batch unless told to.
MOST_PARTS = 10_000
_MAX_ID_BYTES = 256
_MAX_DIGITS = 18
_LAST_SEQUENCE = 0x7FFFFFFF


class _Wish(NamedTuple):
    """What a record's headers ask for. `place` tells records apart that must not share a batch."""

    deliver_at: int | None = None
    deliver_after: int | None = None
    delay_id: str | None = None
    cancel: str | None = None
    place: int = -1


_NOTHING = _Wish()


class Delaying:
    """Looks for wishes in what the producers of one listener send."""

    def __init__(self) -> None:
        self._searcher = Searcher(b"weir-", (DELIVER_AT, DELIVER_AFTER, CANCEL))

    def heeded(
        self, outgoing: Outgoing, now_ms: int, header: BatchHeader | None = None, *, behind_ms: int = 0
    ) -> Outgoing:
        """The batch as it is to be stored, if some of its records wish for a delay; else itself. RefusedError.
        `header`: as it came, if that is known; `behind_ms`: what the client's clock is behind, likewise."""
        try:
            if not self._searcher.has(outgoing.payload, header or parse_header(outgoing.payload)):
                return outgoing
            payload = bytes(outgoing.payload)  # it may be kept for long
            outgoing = replace(outgoing, payload=payload)
            runs = _runs_of(payload)
        except WireError as bad:
            raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad
        if all(wish == _NOTHING for wish, _ in runs):
            return outgoing
        if outgoing.transactional and any(wish.cancel is not None for wish, _ in runs):
            raise RefusedError(Code.INVALID_RECORD, "a transaction's records cannot cancel what is delayed")
        if len(runs) > MOST_PARTS:  # clients that can, cut it in two and try again
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
        place=-1 if named is None else record.offset_delta,  # cancelling it must not cancel others
    )


def _text(name: bytes, value: object) -> str:
    if not isinstance(value, bytes) or not 0 < len(value) <= _MAX_ID_BYTES:
        raise WireError(f"the header {name.decode()} has 1 to {_MAX_ID_BYTES} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WireError(f"the header {name.decode()} is no text") from None


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
    """One for each run, with the sequence numbers of its records."""
    for wish, records in runs:
        first = records[0].offset_delta
        stamp = outgoing.stamp
        if stamp is not None:
            stamp = replace(stamp, sequence=(stamp.sequence + first) & _LAST_SEQUENCE)
        kept = LOG_APPEND_TIME
        # What came compressed may not be stored otherwise; but a name is looked for without opening it.
        packed = header.compression if wish.delay_id is None else Compression.NONE
        inner = stamp
        if outgoing.transactional and wish == _NOTHING:
            kept |= TRANSACTIONAL
        elif outgoing.transactional:
            inner = None  # when it is seen the transaction is over
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
