"""A broker's load report as bytes: one row for each bundle, so that a thousand of them are some 60 KB."""

from math import isfinite
from typing import Any

from weir.model.cluster import MAX_REPORTED_BUNDLES, BalanceLeader, BrokerLoad, BundleLoad
from weir.model.errors import WireError
from weir.wire.metadata import dump_fields, flag, load_fields, text

_BUNDLE_FIELDS = 6
_RATES = 4


def encode_load(load: BrokerLoad) -> bytes:
    """A report of more bundles than MAX_REPORTED_BUNDLES would be refused by whoever reads it."""
    return dump_fields(
        {
            "broker": load.broker_id,
            "bundles": [
                [b.bundle, b.messages_in, b.bytes_in, b.messages_out, b.bytes_out, b.topics] for b in load.bundles
            ],
            "cpu": load.cpu,
            "memory": load.memory,
            "rates": [load.messages_in, load.bytes_in, load.messages_out, load.bytes_out],
            "bundle_count": load.bundle_count,
            "draining": load.draining,
        }
    )


def decode_load(data: bytes) -> BrokerLoad:
    """Fields that a newer Weir added, to a row as well, are left out; what is no measure is refused."""
    found = load_fields(data, "a load report")
    try:
        rows = found["bundles"]
        if not isinstance(rows, list) or len(rows) > MAX_REPORTED_BUNDLES:
            raise ValueError("no list of bundles, or too long a one")
        rates = _measures(found["rates"][:_RATES])
        messages_in, bytes_in, messages_out, bytes_out = rates
        return BrokerLoad(
            text(found["broker"]),
            tuple(_bundle(row) for row in rows),
            _measure(found["cpu"]),
            _measure(found["memory"]),
            messages_in,
            bytes_in,
            messages_out,
            bytes_out,
            _count(found["bundle_count"]),
            flag(found["draining"]),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as bad:
        raise WireError(f"a load report is malformed: {bad!r}") from bad


def encode_leader(leader: BalanceLeader) -> bytes:
    return dump_fields({"broker": leader.broker_id, "term": leader.term})


def decode_leader(data: bytes) -> BalanceLeader:
    found = load_fields(data, "a leader")
    try:
        return BalanceLeader(text(found["broker"]), text(found["term"]))
    except (KeyError, TypeError) as bad:
        raise WireError(f"a leader is malformed: {bad!r}") from bad


def _bundle(row: Any) -> BundleLoad:
    name, *rates, topics = row[:_BUNDLE_FIELDS]
    messages_in, bytes_in, messages_out, bytes_out = _measures(rates)
    return BundleLoad(text(name), messages_in, bytes_in, messages_out, bytes_out, _count(topics))


def _measures(items: Any) -> list[float]:
    return [_measure(item) for item in items]


def _measure(item: Any) -> float:
    if not isinstance(item, int | float) or isinstance(item, bool) or not isfinite(item) or item < 0:
        raise ValueError(f"{item!r} is no measure")
    return float(item)


def _count(item: Any) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or item < 0:
        raise ValueError(f"{item!r} is no count")
    return item
