"""Overviews of topics: what a list shows of a topic that no broker has loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SubscriptionOverview:
    """A durable subscription when its topic was unloaded. `holes`: messages acknowledged one by one."""

    name: str
    mark_delete: int
    backlog: int
    backlog_bytes: int = 0
    holes: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """A topic when it was unloaded. `version`: of its chain of ledgers in the metadata; whoever loads the topic
    writes the chain, so an overview with another version is out of date."""

    version: int
    start_offset: int
    end_offset: int
    storage_bytes: int
    ledgers: int
    terminated: bool
    subscriptions: tuple[SubscriptionOverview, ...] = ()
