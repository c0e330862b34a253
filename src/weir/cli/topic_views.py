"""Topic stats of the admin REST as table rows, and paged requests for many topics."""

import asyncio
import re
from collections.abc import Iterable, Iterator
from typing import Any

from weir.cli.output import Bytes, Column, Rate, human_bytes, human_number
from weir.client.admin import AdminClient, join, topic_path
from weir.model.errors import BrokerError, NotAuthorisedError
from weir.model.subscriptions import filter_in
from weir.model.topics import Domain, NamespaceName, TopicName

_PARTITION = re.compile(r"(.+)-partition-\d+")

#: Columns of `weir topics list`, with sizes.
TOPIC_COLUMNS = (
    Column("topic", cut="start"),
    "partitions",
    "messages",
    "size",
    "in /s",
    "out /s",
    Column("producers", wide=True),
    Column("subscriptions", wide=True),
    Column("consumers", wide=True),
    Column("backlog", wide=True),
)
SUBSCRIPTION_COLUMNS = (
    Column("subscription", cut="end"),
    "type",
    "consumers",
    "backlog",
    "unacked",
    "out /s",
    Column("redelivered /s", wide=True),
    Column("filtered", wide=True),
    Column("filter", wide=True, cut="end"),
    Column("query", cut="end"),
)
PARTITION_COLUMNS = (
    Column("subscription", cut="end"),
    Column("partition", cut="start"),
    "position",
    "backlog",
    Column("consumers", cut="end"),
)
LEDGER_COLUMNS = ("ledger", "entries", "size", "where")
CURSOR_COLUMNS = (Column("subscription", cut="end"), "mark delete", "read position", "holes")


def with_partitions(names: list[str], partitioned: list[str]) -> dict[str, int]:
    """Each topic once, with its number of partitions."""
    found = dict.fromkeys(partitioned, 0)
    for name in names:
        match = _PARTITION.fullmatch(name)
        base = match[1] if match and match[1] in found else None
        if base is None:
            found[name] = 0
        else:
            found[base] += 1
    return dict(sorted(found.items()))


def topic_row(topic: str, partitions: int, stats: dict[str, Any] | None) -> tuple[object, ...]:
    """A row for `TOPIC_COLUMNS`; `stats`: None for a topic deleted meanwhile."""
    if stats is None:
        return (topic, partitions, *[None] * (len(TOPIC_COLUMNS) - 2))
    subscriptions = stats.get("subscriptions") or {}
    return (
        topic,
        partitions,
        stats.get("messages", 0),
        Bytes(stats.get("storageSize", 0)),
        Rate(stats.get("msgRateIn", 0.0)),
        Rate(stats.get("msgRateOut", 0.0)),
        stats.get("producers", len(stats.get("publishers") or ())),
        len(subscriptions),
        sum(len(one.get("consumers") or ()) for one in subscriptions.values()),
        max((one.get("msgBacklog", 0) for one in subscriptions.values()), default=0),
    )


def users_of(stats: dict[str, Any]) -> str:
    """The producers and subscriptions of a topic, in words; "" if it has none."""
    subscriptions = stats.get("subscriptions") or {}
    consumers = sum(len(one.get("consumers") or ()) for one in subscriptions.values())
    names = sorted(subscriptions)
    told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    counts = (
        (len(stats.get("publishers") or ()), "producer", ""),
        (consumers, "consumer", ""),
        (len(names), "subscription", f" ({told})"),
    )
    found = [f"{count} {word}{'' if count == 1 else 's'}{more}" for count, word, more in counts if count]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def topic_fields(name: str, stats: dict[str, Any]) -> Iterator[tuple[str, object]]:
    yield "topic", name
    partitions = stats.get("partitions")
    if partitions or "metadata" in stats:
        yield "partitions", stats.get("metadata", {}).get("partitions", len(partitions or {}))
    yield "producers", len(stats.get("publishers") or ())
    yield "subscriptions", len(stats.get("subscriptions") or {})
    for side in ("In", "Out"):
        messages, throughput = stats.get(f"msgRate{side}", 0.0), stats.get(f"msgThroughput{side}", 0.0)
        yield f"rate {side.lower()}", f"{human_number(messages)} messages/s, {human_bytes(round(throughput))}/s"
    yield "messages", stats.get("messages", 0)
    if stats.get("startOffset") is not None:
        yield "offsets", f"{stats['startOffset']} to {stats['endOffset']}"
    yield "messages in", stats.get("msgInCounter", 0)
    yield "storage", Bytes(stats.get("storageSize", 0))
    yield from (("in the lake", words) for words in _lake(stats))
    yield "backlog", Bytes(stats.get("backlogSize", 0))
    for told in _about_to_go(stats):
        yield "about to go", f"{told['what']} ({told['policy']})"
    for what in unreadable(stats):
        yield "cannot be read", what
    for number, lost in enumerate(_lost(stats), 1):
        yield (
            f"damaged {number}",
            f"entries {lost['firstEntry']} to {lost['lastEntry']} of ledger {lost['ledgerId']} are left out since "
            f"{lost['found']}: offsets {lost['firstOffset']} to {lost['endOffset'] - 1}",
        )


def _lake(stats: dict[str, Any]) -> Iterator[str]:
    """Data that brokers read from the lake, of the topic or all its partitions; and problems."""
    parts = [*(stats.get("partitions") or {}).values()] or [stats]
    lakes = [part["lake"] for part in parts if part.get("lake")]
    if lakes:
        ledgers, size = sum(lake["ledgers"] for lake in lakes), sum(lake["bytes"] for lake in lakes)
        upto = f", offsets before {lakes[0]['endOffset']}" if len(parts) == 1 and ledgers else ""
        yield f"{human_bytes(size)} of it: {ledgers} ledger{'' if ledgers == 1 else 's'}{upto}"
    yield from sorted({f"not all that should be: {lake['problem']}" for lake in lakes if lake.get("problem")})


def _about_to_go(stats: dict[str, Any]) -> list[dict[str, Any]]:
    """Unconsumed data that policies are about to delete, of the topic or its partitions."""
    parts = (stats.get("partitions") or {}).values()
    return [*(stats.get("aboutToGo") or ()), *(told for part in parts for told in _about_to_go(part))]


def unreadable(stats: dict[str, Any]) -> list[str]:
    """Data that storage cannot return now, and the reason, of the topic or its partitions."""
    parts = (stats.get("partitions") or {}).values()
    return [*(stats.get("unreadable") or ()), *(told for part in parts for told in unreadable(part))]


def _lost(stats: dict[str, Any]) -> list[dict[str, Any]]:
    """Data damaged in every copy, of the topic or its partitions."""
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
            Rate(query.get("rowsPerSecond") or subscription.get("msgRateOut", 0)),
            Rate(subscription.get("msgRateRedeliver", 0)),
            subscription.get("filterRejectedMsgCount", 0),
            filter_said(subscription.get("subscriptionProperties") or {}),
            _query(query),
        )


def filter_said(properties: dict[str, str]) -> str:
    """A subscription's filter in words."""
    wanted = filter_in(properties)
    if not wanted:
        return ""
    return " and ".join(part for part in (f"tags {wanted.tags}" if wanted.tags else "", wanted.sql) if part)


def _query(query: dict[str, Any]) -> str:
    """The last batch of a query that keeps its position there, and its lost rows."""
    if not query:
        return ""
    lost = query.get("lost", 0)
    return f"batch {query.get('batch', 0)}: {query.get('rows', 0)} rows" + (f", {lost} lost" if lost else "")


def partition_rows(name: str, stats: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Each subscription on each partition: the assigned member of a consumer group, and the position."""
    parts = stats.get("partitions") or {name: stats}
    for subscription in sorted(stats.get("subscriptions") or {}):
        for part, found in parts.items():
            one = (found.get("subscriptions") or {}).get(subscription)
            if one is not None:
                names = ", ".join(consumer.get("consumerName", "") for consumer in one.get("consumers") or ())
                at = one.get("position")  # a group without commits has no position
                yield subscription, part.rpartition("/")[2], at, None if at is None else one["msgBacklog"], names


def with_parts(stats: dict[str, Any]) -> dict[str, Any]:
    """Each subscription, with its stats on each partition."""
    found = dict(stats.get("subscriptions") or {})
    for part, of_part in (stats.get("partitions") or {}).items():
        for name, one in (of_part.get("subscriptions") or {}).items():
            found.setdefault(name, {}).setdefault("partitions", {})[part] = one
    return found


def ledger_rows(internal: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for ledger in internal.get("ledgers") or ():
        where = "lake" if ledger.get("offloaded") else "bookies"
        yield ledger.get("ledgerId"), ledger.get("entries"), Bytes(ledger.get("size") or 0), where


def cursor_rows(internal: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, cursor in sorted((internal.get("cursors") or {}).items()):
        yield (
            name,
            cursor.get("markDeletePosition"),
            cursor.get("readPosition"),
            cursor.get("totalNonContiguousDeletedMessagesRange", 0),
        )


_PAGE = 5000
#: Requests in flight at a time, so that a list does not delay clients.
_AT_ONCE = 8


async def topic_names(
    admin: AdminClient, namespace: NamespaceName, domain: Domain = Domain.PERSISTENT
) -> dict[str, int]:
    """The topics of a namespace with their partition counts; 0 if not partitioned."""
    path = join(domain.value, namespace.tenant, namespace.name)
    return with_partitions(await _all(admin, path), await _all(admin, f"{path}/partitioned"))


async def _all(admin: AdminClient, path: str) -> list[str]:
    """A list of names, fetched in pages: a namespace may have a million topics."""
    found: list[str] = []
    while True:
        after = {"after": found[-1]} if found else {}
        page = await admin.get(path, {"limit": _PAGE, **after})
        found += page
        if len(page) < _PAGE:
            return found


async def partitions_of(admin: AdminClient, topic: TopicName) -> int:
    """0 for a topic that is not partitioned, and for a partition."""
    if topic.partition is not None:
        return 0
    return int((await admin.get(topic_path(topic, "partitions")))["partitions"])


async def topic_stats(admin: AdminClient, topic: TopicName, partitions: int | None = None) -> dict[str, Any]:
    """Stats of one topic, with its partitions. `partitions`: their number, if known."""
    count = await partitions_of(admin, topic) if partitions is None else partitions
    found: dict[str, Any] = await admin.get(topic_path(topic, "partitioned-stats" if count else "stats"))
    return found


async def overviews(admin: AdminClient, namespace: NamespaceName) -> dict[str, dict[str, Any]]:
    """All persistent topics of a namespace, as lists show them. The server loads no topic for it."""
    found: dict[str, dict[str, Any]] = {}
    after: dict[str, str] = {}
    while True:
        page = await admin.own("GET", join("overviews", namespace.tenant, namespace.name), query=after)
        found |= page["topics"]
        if not page["next"]:
            return found
        after = {"after": page["next"]}


async def stats_of(admin: AdminClient, topics: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Stats of many topics, without those deleted meanwhile and those that this role may not see."""
    found: dict[str, dict[str, Any]] = {}
    left = iter(topics.items())

    async def ask(names: Iterable[tuple[str, int]]) -> None:
        for name, partitions in names:
            try:
                found[name] = await topic_stats(admin, TopicName.parse(name), partitions)
            except (BrokerError, NotAuthorisedError):
                continue

    await asyncio.gather(*(ask(left) for _ in range(_AT_ONCE)))
    return found
