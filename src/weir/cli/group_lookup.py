"""Consumer groups, subscriptions and queues in one model, from topic stats and group coordinators.

It also plans and commits position resets of a group on each of its partitions.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weir.cli.topic_views import overviews, topic_stats, unreadable
from weir.client.access import parse_url
from weir.client.admin import AdminClient, join
from weir.model.errors import BrokerError, ConfigError, NotAllowedError, SubscriptionNotFoundError, WeirError
from weir.model.moments import parse_moment_ms
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.real import RealClock

KAFKA, PULSAR, AMQP = "kafka", "pulsar", "amqp"
#: The namespace of Kafka topics without one.
_HOME = "public/default"


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    client: str
    host: str


@dataclass(frozen=True, slots=True)
class Part:
    """A group on one partition. `position`: the next offset; None, like the lag, without a committed position."""

    topic: TopicName
    position: int | None
    start: int | None
    end: int | None
    lag: int | None
    members: tuple[Member, ...] = ()
    #: Parts of the answer that are unreadable now, with the reason.
    unreadable: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """A group and its partitions. `subscription`: its name on the topics, which differs for a queue."""

    name: str
    kind: str
    subscription: str
    state: str = ""
    parts: list[Part] = field(default_factory=list)
    #: Of Kafka groups: all joined members, with or without assigned partitions.
    joined: int | None = None

    @property
    def members(self) -> int:
        if self.joined is not None:
            return self.joined
        return len({who for part in self.parts for who in part.members})

    @property
    def lag(self) -> int | None:
        known = [part.lag for part in self.parts if part.lag is not None]
        return sum(known) if known else None

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(part.topic.local for part in self.parts))


async def all_groups(admin: AdminClient, namespace: NamespaceName, topic: TopicName | None = None) -> list[Found]:
    """The groups of a namespace, sorted by name; `topic`: only those that consume this topic."""
    if topic is not None:
        stats = {str(topic): await topic_stats(admin, topic)}
    else:
        stats = await overviews(admin, namespace)
    coordinated = await _coordinated(admin)
    found: dict[tuple[str, str], Found] = {}
    for name, told in stats.items():
        for group in of_topic(TopicName.parse(name), told, coordinated):
            key = (group.name, "" if group.kind == KAFKA else group.topics[0])
            if key in found:
                found[key].parts += group.parts
            else:
                found[key] = group
    if topic is None and str(namespace) == _HOME:
        missing = [one for name, one in coordinated.items() if (name, "") not in found]
        for one in missing:  # groups whose topic does not exist yet, or is in another namespace
            found[one["name"], ""] = Found(one["name"], KAFKA, one["name"], one["state"], [], len(one["members"]))
    return [found[key] for key in sorted(found)]


async def find_group(admin: AdminClient, name: str, topic: str | None, namespace: str) -> Found:
    """The group of this name, on this topic if one is given."""
    if topic is not None:
        parsed = TopicName.parse(topic)
        listed = await all_groups(admin, parsed.namespace, parsed)
    else:
        listed = await all_groups(admin, NamespaceName.parse(namespace))
    found = [one for one in listed if one.name == name]
    if not found and topic is not None:
        found = [one for one in listed if one.subscription == name]
    if not found:
        where = f"on {topic}" if topic is not None else f"in {namespace}"
        raise SubscriptionNotFoundError(
            f"there is no group {name!r} {where}",
            hint="see weir groups list; weir groups reset --create creates a Kafka group",
        )
    if len(found) > 1:
        topics = ", ".join(one.topics[0] for one in found[:5])
        raise ConfigError(f"several topics have a subscription {name!r}: {topics}", hint="name one with --topic")
    return found[0]


async def new_group(admin: AdminClient, name: str, topic: str | None) -> Found:
    """A Kafka group without positions, on all partitions of the topic, or on the partition that the name gives."""
    if topic is None:
        raise ConfigError(f"group {name!r} needs a topic", hint="name a topic, or one partition, with --topic")
    parsed = TopicName.parse(topic)
    stats = await topic_stats(admin, parsed)
    parts = {TopicName.parse(part): one for part, one in (stats.get("partitions") or {}).items()}
    found = [_part(part, one, "", KAFKA) for part, one in sorted((parts or {parsed: stats}).items(), key=_number)]
    return Found(name, KAFKA, name, "new", found, 0)


def of_topic(topic: TopicName, stats: dict[str, Any], coordinated: dict[str, Any]) -> Iterator[Found]:
    """The groups that consume one topic, each with all of its partitions."""
    parts = {TopicName.parse(name): one for name, one in (stats.get("partitions") or {}).items()} or {topic: stats}
    for name, whole in (stats.get("subscriptions") or {}).items():
        if not whole.get("isDurable", True):
            continue  # a reader, which ends with its connection
        group = _named(name, topic, whole, coordinated)
        group.parts = [_part(part, told, name, group.kind) for part, told in sorted(parts.items(), key=_number)]
        if group.kind != KAFKA:
            group.parts = [part for part in group.parts if part.position is not None]
        if group.parts:
            yield group


def _named(name: str, topic: TopicName, whole: dict[str, Any], coordinated: dict[str, Any]) -> Found:
    consumers = whole.get("consumers") or ()
    known = coordinated.get(name)
    if known is not None or any("weir.generation" in one.get("metadata", {}) for one in consumers):
        members = None if known is None else len(known["members"])
        return Found(name, KAFKA, name, known["state"] if known else "stable", joined=members)
    kind = (whole.get("type") or "").lower().replace("_", "-")
    if name == QUEUE_SUBSCRIPTION:
        return Found(topic.local_with_partition, AMQP, name, "queue")
    return Found(name, PULSAR, name, kind or "idle")


def _part(topic: TopicName, stats: dict[str, Any], subscription: str, kind: str) -> Part:
    told = (stats.get("subscriptions") or {}).get(subscription) or {}
    position = told.get("position")
    members = tuple(
        Member(
            one.get("consumerName") or "",
            one.get("metadata", {}).get("weir.client_id") or one.get("clientVersion") or "",
            one.get("address") or "",
        )
        for one in told.get("consumers") or ()
        if kind != AMQP or one.get("consumerName") or one.get("address")
    )
    lag = None if position is None else told.get("msgBacklog", 0)
    return Part(
        topic, position, stats.get("startOffset"), stats.get("endOffset"), lag, members, tuple(unreadable(stats))
    )


def _number(item: tuple[TopicName, Any]) -> int:
    return -1 if item[0].partition is None else item[0].partition


async def _coordinated(admin: AdminClient) -> dict[str, Any]:
    """Kafka groups by name, from every broker that answers."""
    found = {one["name"]: one for one in await admin.own("GET", "groups")}
    try:
        others = (await admin.own("GET", "addresses")).get("others", ())
    except BrokerError:
        return found
    for other in others:
        url = other.get("https" if parse_url(admin.url).secure else "http")
        if not url:
            continue
        try:
            async with admin.other(url) as there:
                found |= {one["name"]: one for one in await there.own("GET", "groups")}
        except WeirError:  # an unavailable broker coordinates no groups: others have taken over
            continue
    return found


def group_path(name: str, *rest: str) -> str:
    return join("groups", name, *rest)


#: Larger numbers are times in milliseconds: no partition has had so many messages.
_MOST_OFFSET = 10**11


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a reset: an end, an offset, a time, or a distance."""

    end: str = ""
    offset: int | None = None
    moment_ms: int | None = None
    shift: int | None = None

    @classmethod
    def parse(cls, to: str | None, shift: int | None) -> "Target":
        if to is None:
            return cls(shift=shift)
        if to in ("earliest", "latest"):
            return cls(end=to)
        if re.fullmatch(r"[0-9]+", to) and int(to) < _MOST_OFFSET:
            return cls(offset=int(to))
        try:
            return cls(moment_ms=parse_moment_ms(to, RealClock().wall_ms()))
        except ConfigError:
            raise ConfigError(
                f"{to!r} is not a position", hint="write earliest, latest, an offset, 2030-01-31T12:00:00, or -1h"
            ) from None


async def planned(admin: AdminClient, group: Found, target: Target) -> list[tuple[Part, int]]:
    """Each partition with its target offset, within the stored range."""
    if group.kind == AMQP:
        raise NotAllowedError(
            f"{group.name} is a queue: consumed messages are gone",
            hint="drop its backlog with weir subscriptions skip, or purge the queue",
        )
    return [(part, await _wanted(admin, part, target)) for part in group.parts]


async def _wanted(admin: AdminClient, part: Part, target: Target) -> int:
    start, end = part.start or 0, part.end or 0
    if target.end:
        return start if target.end == "earliest" else end
    if target.moment_ms is not None:
        found = await admin.own("GET", f"{offsets_path(part.topic)}?time={max(0, target.moment_ms)}")
        return int(found["offset"])
    if target.offset is not None:
        return max(start, min(target.offset, end))
    here = part.position if part.position is not None else start
    return max(start, min(here + (target.shift or 0), end))


async def move(admin: AdminClient, group: Found, plan: list[tuple[Part, int]]) -> None:
    """Move the group on all partitions; NotAllowedError if the group cannot be moved now."""
    if group.kind == KAFKA:
        await _move_kafka(admin, group, plan)
        return
    for part, offset in plan:
        path = f"{offsets_path(part.topic)}/{join(group.subscription)}"
        await admin.own("POST", path, {"offset": offset})


async def _move_kafka(admin: AdminClient, group: Found, plan: list[tuple[Part, int]]) -> None:
    if group.members:
        raise NotAllowedError(
            f"group {group.name!r} has members ({group.members}), which would continue from their positions",
            hint="stop them, reset the group, and start them again",
        )
    positions = {str(part.topic): offset for part, offset in plan}
    failed = await admin.own("POST", group_path(group.name, "positions"), {"positions": positions})
    if failed:
        topic, why = next(iter(failed.items()))
        raise NotAllowedError(f"{len(failed)} of {len(plan)} partitions failed to move, {topic} among them: {why}")


def offsets_path(topic: TopicName) -> str:
    namespace = topic.namespace
    return join("offsets", "persistent", namespace.tenant, namespace.name, topic.local_with_partition)
