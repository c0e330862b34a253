"""A stream's chain as bytes in the metadata store."""

from weir.model.errors import InvariantError, WireError
from weir.model.ids import LedgerId
from weir.model.stream import Chain, Span
from weir.wire.metadata import dump_fields, load_fields


def encode_chain(chain: Chain) -> bytes:
    return dump_fields(
        {
            "spans": [
                [s.ledger_id, s.first_offset, s.end_offset, s.size_bytes, s.first_ms, s.last_ms]
                + ([s.leader] if s.leader else [])
                for s in chain.spans
            ],
            "start": chain.start_offset,
            "terminated": chain.terminated_at,
            "state": chain.state_ledger,
            "properties": chain.properties,
            "epoch": chain.epoch,
            **({"leader": chain.leader} if chain.leader else {}),
            **({} if chain.doomed is None else {"doomed": list(chain.doomed)}),
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
                    *map(int, leader),
                )
                for ledger, first, end, size, begun, last, *leader in fields["spans"]
            ),
            start_offset=int(fields["start"]),
            terminated_at=_optional(fields["terminated"]),
            state_ledger=None if fields["state"] is None else LedgerId(int(fields["state"])),
            properties={str(key): str(value) for key, value in fields["properties"].items()},
            epoch=int(fields["epoch"]),
            doomed=_doomed(fields.get("doomed")),
            leader=int(fields.get("leader", 0)),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvariantError) as bad:
        raise WireError(f"a stream's chain is malformed: {bad!r}") from bad


def _doomed(ledgers: list[int] | None) -> tuple[LedgerId, ...] | None:
    return None if ledgers is None else tuple(LedgerId(int(ledger)) for ledger in ledgers)


def _optional(number: object) -> int | None:
    return None if number is None else int(number)  # type: ignore[call-overload]
