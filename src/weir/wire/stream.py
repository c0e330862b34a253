"""A stream's chain as bytes in the metadata store.

Changes of a stream's small state as the payload of a ledger entry: key, and value or none.

Version 2 is version 1 with everything behind the header deflated, where that makes it smaller: positions of many
messages and producers of a large topic are long, and mostly alike.
"""

import zlib
from collections.abc import Mapping
from struct import Struct, error
from typing import Any

from weir.model.errors import InvariantError, UnknownVersionError, WireError
from weir.model.ids import Buffer, LedgerId
from weir.model.stream import Chain, LedgerFate, Segment, SegmentStore, Span
from weir.wire.metadata import dump_fields, load_fields


def encode_chain(chain: Chain) -> bytes:
    return dump_fields(
        {
            "spans": [
                [s.ledger_id, s.first_offset, s.end_offset, s.size_bytes, s.first_ms, s.last_ms]
                + ([s.leader] if s.leader or s.segment else [])
                + ([] if s.segment is None else [_segment(s.segment)])
                for s in chain.spans
            ],
            "start": chain.start_offset,
            "terminated": chain.terminated_at,
            "state": chain.state_ledger,
            "properties": chain.properties,
            "epoch": chain.epoch,
            **({"leader": chain.leader} if chain.leader else {}),
            **({} if chain.doomed is None else {"doomed": list(chain.doomed)}),
            **({"stores": [[s.url, dict(s.options)] for s in chain.stores]} if chain.stores else {}),
        }
    )


def decode_chain(data: bytes) -> Chain:
    fields = load_fields(data, "a stream's chain")
    try:
        return Chain(
            spans=tuple(
                Span(
                    LedgerId(int(ledger)),
                    int(first),
                    _optional(end),
                    int(size),
                    int(begun),
                    int(last),
                    *_leader_and_segment(more),
                )
                for ledger, first, end, size, begun, last, *more in fields["spans"]
            ),
            start_offset=int(fields["start"]),
            terminated_at=_optional(fields["terminated"]),
            state_ledger=None if fields["state"] is None else LedgerId(int(fields["state"])),
            properties={str(key): str(value) for key, value in fields["properties"].items()},
            epoch=int(fields["epoch"]),
            doomed=_doomed(fields.get("doomed")),
            leader=int(fields.get("leader", 0)),
            stores=tuple(
                SegmentStore(str(url), {str(name): str(value) for name, value in options.items()})
                for url, options in fields.get("stores", ())
            ),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvariantError) as bad:
        raise WireError(f"a stream's chain is malformed: {bad!r}") from bad


def _segment(segment: Segment) -> list[int | str]:
    return [segment.store, segment.name, segment.size_bytes, int(segment.ledger)]


def _leader_and_segment(more: list[Any]) -> tuple[int, Segment | None]:
    if len(more) > 2:
        raise ValueError("a span has too many fields")
    leader = int(more[0]) if more else 0
    if len(more) < 2:
        return leader, None
    store, name, size, fate = more[1]
    return leader, Segment(int(store), str(name), int(size), LedgerFate(int(fate)))


def _doomed(ledgers: list[int] | None) -> tuple[LedgerId, ...] | None:
    return None if ledgers is None else tuple(LedgerId(int(ledger)) for ledger in ledgers)


def _optional(number: object) -> int | None:
    return None if number is None else int(number)  # type: ignore[call-overload]


_HEADER = Struct("<BI")  # version, and the number of changes
_LENGTH = Struct("<I")  # since version 2: bytes of the changes before they were deflated
_RECORD = Struct("<HI")
PLAIN, DEFLATED = 1, 2
#: Below it nothing is gained.
_DEFLATED_FROM_BYTES = 1024
_LEVEL = 1
#: The length that stands for "deleted".
_GONE = 0xFFFFFFFF


def encode_changes(changes: Mapping[str, bytes | None], newest: int = PLAIN) -> bytes:
    """One entry with all the changes; None deletes a key. `newest`: the version that every reader knows."""
    parts: list[bytes] = []
    for key, value in changes.items():
        name = key.encode()
        parts += [_RECORD.pack(len(name), _GONE if value is None else len(value)), name, value or b""]
    body = b"".join(parts)
    if newest >= DEFLATED and len(body) >= _DEFLATED_FROM_BYTES:
        deflated = zlib.compress(body, _LEVEL)
        if len(deflated) + _LENGTH.size < len(body):
            return _HEADER.pack(DEFLATED, len(changes)) + _LENGTH.pack(len(body)) + deflated
    return _HEADER.pack(PLAIN, len(changes)) + body


def decode_changes(data: Buffer) -> dict[str, bytes | None]:
    """The changes in `data`, in their order."""
    view = memoryview(data)
    changes: dict[str, bytes | None] = {}
    try:
        version, count = _HEADER.unpack_from(view)
        if version not in (PLAIN, DEFLATED):
            raise UnknownVersionError(f"stream state has version {version}", hint="written by a newer Weir?")
        view, place = view[_HEADER.size :], 0
        if version == DEFLATED:
            view = _inflated(view)
        for _ in range(count):
            name_bytes, value_bytes = _RECORD.unpack_from(view, place)
            start = place + _RECORD.size + name_bytes
            place = start if value_bytes == _GONE else start + value_bytes
            if place > len(view):
                raise WireError("stream state ends within a record")
            key = str(view[start - name_bytes : start], "utf-8")
            changes[key] = None if value_bytes == _GONE else bytes(view[start:place])
    except (error, UnicodeDecodeError, zlib.error) as bad:
        raise WireError(f"stream state is malformed: {bad}") from bad
    if place != len(view):
        raise WireError(f"stream state has {len(view) - place} bytes too many")
    return changes


def _inflated(view: memoryview) -> memoryview:
    (length,) = _LENGTH.unpack_from(view)
    reader = zlib.decompressobj()
    found = reader.decompress(view[_LENGTH.size :], length + 1)
    if len(found) != length or not reader.eof or reader.unused_data:
        raise WireError("stream state is not as long as it says")
    return memoryview(found)
