"""A stream's chain as bytes in the metadata store."""

from typing import Any

from weir.model.errors import InvariantError, WireError
from weir.model.ids import LedgerId
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
