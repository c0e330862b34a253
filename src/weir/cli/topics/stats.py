"""What commands ask about many topics: their names in pages, and the stats of each, a few at a time."""

import asyncio
from collections.abc import Iterable
from typing import Any

from weir.cli.topics.views import with_partitions
from weir.client.admin import AdminClient, join, topic_path
from weir.model.errors import BrokerError, NotAuthorisedError
from weir.model.topics import Domain, NamespaceName, TopicName

_PAGE = 5000
#: Questions under way at a time: a list must not hold up those who work.
_AT_ONCE = 8


async def topic_names(
    admin: AdminClient, namespace: NamespaceName, domain: Domain = Domain.PERSISTENT
) -> dict[str, int]:
    """The topics of a namespace, and how many partitions each has; 0 if it is not partitioned."""
    path = join(domain.value, namespace.tenant, namespace.name)
    return with_partitions(await _all(admin, path), await _all(admin, f"{path}/partitioned"))


async def _all(admin: AdminClient, path: str) -> list[str]:
    """A list of names, asked for in pages: a namespace may have a million topics."""
    found: list[str] = []
    while True:
        after = {"after": found[-1]} if found else {}
        page = await admin.get(path, {"limit": _PAGE, **after})
        found += page
        if len(page) < _PAGE:
            return found


async def partitions_of(admin: AdminClient, topic: TopicName) -> int:
    """0 of one that is not partitioned, and of a partition."""
    if topic.partition is not None:
        return 0
    return int((await admin.get(topic_path(topic, "partitions")))["partitions"])


async def topic_stats(admin: AdminClient, topic: TopicName, partitions: int | None = None) -> dict[str, Any]:
    """Of one topic, with its partitions. `partitions`: how many, if that is known."""
    count = await partitions_of(admin, topic) if partitions is None else partitions
    found: dict[str, Any] = await admin.get(topic_path(topic, "partitioned-stats" if count else "stats"))
    return found


async def overviews(admin: AdminClient, namespace: NamespaceName) -> dict[str, dict[str, Any]]:
    """Of all persistent topics of a namespace: what lists show. The server loads no topic for it."""
    found: dict[str, dict[str, Any]] = {}
    after: dict[str, str] = {}
    while True:
        page = await admin.own("GET", join("overviews", namespace.tenant, namespace.name), query=after)
        found |= page["topics"]
        if not page["next"]:
            return found
        after = {"after": page["next"]}


async def stats_of(admin: AdminClient, topics: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Of many; those that are gone meanwhile, or that this user may not look at, are missing."""
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
