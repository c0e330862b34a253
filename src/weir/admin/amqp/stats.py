"""What topics have counted, as RabbitMQ's `message_stats`: totals, and rates as `*_details`."""

from collections.abc import Iterable
from typing import Any

from weir.broker.api import Topic, TopicStats
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.topics import NamespaceName, TopicName

Stats = dict[str, Any]

#: What a queue's stats have, whether or not it was counted.
_COUNTED = ("publish", "deliver", "deliver_get", "redeliver", "ack", "get", "get_no_ack", "deliver_no_ack")


class Counted:
    """Totals and rates of some queues together."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_COUNTED, 0)
        self._rates = dict.fromkeys(_COUNTED, 0.0)

    def add(self, stats: TopicStats) -> None:
        """`ack`: what was delivered and neither came again nor is with a consumer still."""
        self._count("publish", stats.published.messages, stats.published.messages_per_s)
        for one in stats.subscriptions:
            if one.name == QUEUE_SUBSCRIPTION:
                for name in ("deliver", "deliver_get"):
                    self._count(name, one.flow.messages, one.flow.messages_per_s)
                self._count("redeliver", one.redelivered, 0.0)
                acked = max(0, one.flow.messages - one.redelivered - one.unacked)
                self._count("ack", acked, one.flow.messages_per_s)

    def _count(self, name: str, messages: int, per_s: float) -> None:
        self._totals[name] += messages
        self._rates[name] += per_s

    def body(self) -> Stats:
        found: Stats = {}
        for name, total in self._totals.items():
            found[name] = total
            found[f"{name}_details"] = rate(self._rates[name])
        return found


def rate(per_s: float = 0.0) -> dict[str, float]:
    return {"rate": round(float(per_s), 3)}


def totals(ready: int, unacked: int) -> Stats:
    """How many messages there are, with details as RabbitMQ has them."""
    found: Stats = {}
    counts = {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
    for name, count in counts.items():
        found[name] = count
        found[f"{name}_details"] = rate()
    return found


class LoadedTopics:
    """The topics that this broker serves, as they are now; asked for their stats once."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._topics = list(topics)
        self._by_name: dict[TopicName, list[Topic]] = {}
        for topic in self._topics:
            self._by_name.setdefault(topic.name, []).append(topic)
            if topic.name.partition is not None:  # the queue that all partitions are together
                self._by_name.setdefault(topic.name.base, []).append(topic)

    def stats(self, name: TopicName) -> list[TopicStats]:
        """Of the topic, or of its partitions that this broker has."""
        return [topic.stats() for topic in self._by_name.get(name, ())]

    def of(self, namespaces: Iterable[NamespaceName]) -> "NamespaceTotals":
        wanted = set(namespaces)
        found = NamespaceTotals()
        for topic in self._topics:
            if topic.name.namespace in wanted:
                found.add(topic.stats())
        return found


class NamespaceTotals:
    """Of the queues of namespaces that are in use on this broker."""

    def __init__(self) -> None:
        self.counted = Counted()
        self.ready = self.unacked = 0

    def add(self, stats: TopicStats) -> None:
        self.counted.add(stats)
        for one in stats.subscriptions:
            if one.name == QUEUE_SUBSCRIPTION:
                self.ready += max(0, one.backlog - one.unacked)
                self.unacked += one.unacked
