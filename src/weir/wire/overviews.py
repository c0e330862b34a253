"""Overviews of topics as values in the metadata store."""

from weir.model.overview import SubscriptionOverview, TopicOverview
from weir.wire.metadata import dump_fields
from weir.wire.stored_values import decode, each, flag, number, text


def encode_overview(overview: TopicOverview) -> bytes:
    return dump_fields(
        {
            "version": overview.version,
            "start": overview.start_offset,
            "end": overview.end_offset,
            "bytes": overview.storage_bytes,
            "ledgers": overview.ledgers,
            "terminated": overview.terminated,
            "subscriptions": [
                [one.name, one.mark_delete, one.backlog, one.backlog_bytes, one.holes, dict(one.properties)]
                for one in overview.subscriptions
            ],
        }
    )


def decode_overview(data: bytes) -> TopicOverview:
    """WireError if it is none."""
    return decode(
        data,
        "an overview of a topic",
        lambda f: TopicOverview(
            number(f["version"]),
            number(f["start"]),
            number(f["end"]),
            number(f["bytes"]),
            number(f["ledgers"]),
            flag(f["terminated"]),
            tuple(_subscription(one) for one in each(f["subscriptions"])),
        ),
    )


def _subscription(item: object) -> SubscriptionOverview:
    name, mark_delete, backlog, size, holes, properties = each(item)
    pairs = {text(key): text(value) for key, value in properties.items()}
    return SubscriptionOverview(
        text(name), number(mark_delete), number(backlog), number(size), number(holes), pairs
    )
