"""Topics of a namespace by what passes through them, or waits in them: of all that this broker has loaded.

A topic that is not loaded does nothing, so none is missed that has anything to show. What is kept is a sum for
each topic; others have their turn after every few."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import nlargest

from weir.broker.api import Broker
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Clock

#: Of these columns.
ORDERS = ("in", "out", "backlog", "size")
#: Topics, or partitions, that one look takes in; and how many of them before others have their turn.
_MOST, _PER_TURN = 20_000, 50
#: How far down the list pages go.
_RANKS = 2_000


@dataclass(frozen=True, slots=True)
class Ranking:
    """Some topics in order; how many were compared, and whether there were more than are looked at."""

    names: list[TopicName]
    compared: int
    more: bool
    cut: bool


async def rank(
    broker: Broker,
    clock: Clock,
    namespace: NamespaceName,
    *,
    order: str,
    wanted: Callable[[TopicName], bool],
    page: tuple[int, int],
) -> Ranking:
    """The topics from one rank to another, the largest first."""
    sums: dict[TopicName, float] = {}
    loaded = [topic for topic in broker.loaded if topic.name.namespace == namespace and wanted(topic.name.base)]
    for number, topic in enumerate(loaded[:_MOST], 1):
        stats = topic.stats()
        match order:
            case "in":
                value: float = stats.published.messages_per_s
            case "out":
                value = stats.delivered.messages_per_s
            case "backlog":
                value = sum(each.backlog for each in stats.subscriptions if each.placed and each.durable)
            case _:
                value = stats.storage_bytes
        base = topic.name.base
        sums[base] = sums.get(base, 0.0) + value
        if number % _PER_TURN == 0:
            await clock.sleep(0)
    first, end = page[0], min(page[1], _RANKS)
    best = nlargest(end, sums, key=lambda name: sums[name])
    return Ranking(best[first:], len(sums), len(sums) > end and end < _RANKS, len(loaded) > _MOST)
