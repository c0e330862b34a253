"""What the admin REST says of a topic, as rows for people."""

import re
from collections.abc import Iterator
from typing import Any

_PARTITION = re.compile(r"(.+)-partition-\d+")

SUBSCRIPTION_COLUMNS = (
    "subscription",
    "type",
    "consumers",
    "backlog",
    "unacked",
    "rate out /s",
    "redelivered /s",
    "query",
)
PARTITION_COLUMNS = ("subscription", "partition", "position", "backlog", "consumers")
LEDGER_COLUMNS = ("ledger", "entries", "bytes")
CURSOR_COLUMNS = ("subscription", "mark delete", "read position", "holes")


def with_partitions(names: list[str], partitioned: list[str]) -> dict[str, int]:
    """Each topic once, with the number of its partitions."""
    found = dict.fromkeys(partitioned, 0)
    for name in names:
        match = _PARTITION.fullmatch(name)
        base = match[1] if match and match[1] in found else None
        if base is None:
            found[name] = 0
        else:
            found[base] += 1
    return dict(sorted(found.items()))


def topic_fields(name: str, stats: dict[str, Any]) -> Iterator[tuple[str, object]]:
    yield "topic", name
    partitions = stats.get("partitions")
    if partitions or "metadata" in stats:
        yield "partitions", stats.get("metadata", {}).get("partitions", len(partitions or {}))
    yield "producers", len(stats.get("publishers") or ())
    yield "subscriptions", len(stats.get("subscriptions") or {})
    yield "rate in", f"{stats.get('msgRateIn', 0):.1f} messages/s, {stats.get('msgThroughputIn', 0):.0f} bytes/s"
    yield (
        "rate out",
        f"{stats.get('msgRateOut', 0):.1f} messages/s, {stats.get('msgThroughputOut', 0):.0f} bytes/s",
    )
    yield "messages in", stats.get("msgInCounter", 0)
    yield "storage", f"{stats.get('storageSize', 0)} bytes"
    yield "backlog", f"{stats.get('backlogSize', 0)} bytes"
    for number, lost in enumerate(_lost(stats), 1):
        yield (
            f"damaged {number}",
            f"entries {lost['firstEntry']} to {lost['lastEntry']} of ledger {lost['ledgerId']} are left out since "
            f"{lost['found']}: offsets {lost['firstOffset']} to {lost['endOffset'] - 1}",
        )


def _lost(stats: dict[str, Any]) -> list[dict[str, Any]]:
    """What is damaged in every copy, of the topic or of its partitions."""
    parts = (stats.get("partitions") or {}).values()
    return [*(stats.get("lostEntries") or ()), *(lost for part in parts for lost in _lost(part))]


def subscription_rows(stats: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, subscription in sorted((stats.get("subscriptions") or {}).items()):
        query = subscription.get("query") or {}
        yield (
            name,
            subscription.get("type"),
            len(subscription.get("consumers") or ()),
            subscription.get("msgBacklog", 0),
            subscription.get("unackedMessages", 0),
            float(query.get("rowsPerSecond") or subscription.get("msgRateOut", 0)),
            float(subscription.get("msgRateRedeliver", 0)),
            _query(query),
        )


def _query(query: dict[str, Any]) -> str:
    """The last batch of a query that keeps its position there, and what it has missed."""
    if not query:
        return ""
    lost = query.get("lost", 0)
    return f"batch {query.get('batch', 0)}: {query.get('rows', 0)} rows" + (f", {lost} lost" if lost else "")


def partition_rows(name: str, stats: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Each subscription on each partition: the member of a consumer group that has it, and how far it is."""
    parts = stats.get("partitions") or {name: stats}
    for subscription in sorted(stats.get("subscriptions") or {}):
        for part, found in parts.items():
            one = (found.get("subscriptions") or {}).get(subscription)
            if one is not None:
                names = ", ".join(consumer.get("consumerName", "") for consumer in one.get("consumers") or ())
                at = one.get("position")  # none of a group that has committed nothing: how far it is is not known
                yield subscription, part.rpartition("/")[2], at, None if at is None else one["msgBacklog"], names


def with_parts(stats: dict[str, Any]) -> dict[str, Any]:
    """Each subscription, with what there is to say of it on each partition."""
    found = dict(stats.get("subscriptions") or {})
    for part, of_part in (stats.get("partitions") or {}).items():
        for name, one in (of_part.get("subscriptions") or {}).items():
            found.setdefault(name, {}).setdefault("partitions", {})[part] = one
    return found


def ledger_rows(internal: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for ledger in internal.get("ledgers") or ():
        yield ledger.get("ledgerId"), ledger.get("entries"), ledger.get("size")


def cursor_rows(internal: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, cursor in sorted((internal.get("cursors") or {}).items()):
        yield (
            name,
            cursor.get("markDeletePosition"),
            cursor.get("readPosition"),
            cursor.get("totalNonContiguousDeletedMessagesRange", 0),
        )
