"""Offsets for batches that are sent together, and what of them a ledger gets.

Some stay in memory. The ledger has a gap for these as soon as something behind them is written.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from weir.model.batch import Batch
from weir.model.ids import Buffer
from weir.stream.unwritten import gaps
from weir.wire.batch import encode_head

#: A head, and the payload behind it.
Piece = tuple[bytes, Buffer]


@dataclass(slots=True)
class Append:
    """Batches on their way that were appended as one; when they are sent, those with offsets take their place.
    Without any: what is in memory so far gets its gap."""

    batches: Sequence[Batch]
    size: int
    done: "asyncio.Future[int]"
    #: They are not written.
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """What was sent at once, in its places."""

    appends: Sequence[Append]
    batches: list[Batch]
    #: Of them, those that are in memory only.
    unwritten: list[Batch]
    #: The offset after all, and after those that are written.
    end: int
    written_to: int
    #: How many entries the ledger got.
    entries: int


def pieces_of(
    appends: Sequence[Append], offset: int, written_to: int, *, before_ms: int, now_ms: int
) -> list[Piece]:
    """What is to be written of appends that begin at the offset, behind what is written; `before_ms`: when the one
    before them was appended."""
    pieces: list[Piece] = []
    for append in appends:
        if append.in_memory:
            offset += sum([draft.count for draft in append.batches])
            continue
        if written_to < offset:
            missing = gaps(written_to, offset, before_ms)
            pieces += [(encode_head(gap, gap.base_offset, before_ms), b"") for gap in missing]
        for draft in append.batches:
            pieces.append((encode_head(draft, offset, now_ms), draft.payload))
            offset += draft.count
        written_to = offset
    return pieces


def place(
    appends: Sequence[Append], offset: int, written_to: int, *, now_ms: int, payloads: Sequence[Buffer] = ()
) -> Placed:
    """Give them their offsets. `payloads`: as the ledger keeps them, of all pieces: one copy of each in memory."""
    batches: list[Batch] = []
    unwritten: list[Batch] = []
    at = 0
    for append in appends:
        first = len(batches)
        if not append.in_memory and written_to < offset:
            at += len(gaps(written_to, offset, 0))
        for draft in append.batches:
            if append.in_memory:
                payload = draft.payload
            else:
                payload = payloads[at]
                at += 1
            batches.append(
                Batch(
                    offset,
                    draft.count,
                    draft.format,
                    now_ms,
                    payload,
                    draft.flags,
                    draft.origin,
                    draft.held,
                    draft.stamp,
                )
            )
            offset += draft.count
        append.batches = batches[first:]
        if append.in_memory:
            unwritten += append.batches
        else:
            written_to = offset
    return Placed(appends, batches, unwritten, offset, written_to, at)
