"""What a replay is asked for in words: which topic, which times, into which subscription or topic."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from weir.client.admin import ask_v2, topic_path
from weir.client.kafka import groups as positions
from weir.client.kafka.cluster import Cluster
from weir.client.replays import begin_replay
from weir.client.schemas import kafka_name, topic_of
from weir.model.definitions import Replay, ReplayState, is_selection
from weir.model.errors import ConfigError, ReplayStateError, TopicNotFoundError, WeirError
from weir.model.topics import TopicName
from weir.spark.options import connection
from weir.spark.tables.names import WeirCluster

_SUBSCRIPTION, _TOPIC = "subscription:", "topic:"
#: Messages in one batch, unless the rate asks for smaller steps; and how many steps a second has then.
_BATCH, _STEPS_PER_S = 500, 4


@dataclass(frozen=True, slots=True)
class Request:
    """`topic`: None if the subscription's name says enough. `into`: a subscription of it, or a topic; with
    `subscription:` or `topic:` before it where both are there."""

    topic: TopicName | None
    into: str
    where: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    rate: int = 0


def resolve(place: WeirCluster, request: Request) -> Replay:
    """The replay that is meant, which nobody knows of yet; ConfigError says what to write instead."""
    topic = request.topic or _topic_of_subscription(place, request.into)
    there = subscriptions(place, topic)
    subscription, target = _destination(place, topic, request.into, there)
    if subscription is not None:
        _check_dealt(place, subscription)
    destination = topic if target is None else target
    ids = _ids(place, topic, destination)
    now_ms = time.time_ns() // 1_000_000
    if request.since_ms is not None and request.until_ms is not None and request.since_ms >= request.until_ms:
        raise ConfigError("--to is not later than --from", hint="begin early, and end late")
    return Replay(
        id=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now_ms / 1000))}-{secrets.token_hex(3)}",
        topic=topic,
        subscription=subscription,
        target=destination,
        where=request.where.strip(),
        since_ms=request.since_ms,
        # What comes while the messages are picked, the delivered ones among it, is not meant.
        until_ms=now_ms + 1 if request.until_ms is None else request.until_ms,
        rate=request.rate,
        batch=_BATCH if not request.rate else max(1, min(_BATCH, request.rate // _STEPS_PER_S)),
        topic_id=ids[topic],
        target_id=ids[destination],
    )


def check_same_topics(place: WeirCluster, replay: Replay) -> None:
    """ReplayStateError if a topic that the replay still needs was deleted and created again since it began."""
    needed = {replay.target: replay.target_id}
    if replay.state is ReplayState.SELECTING:
        needed[replay.topic] = replay.topic_id
    now = _ids(place, *needed)
    for topic, before in needed.items():
        if before and now[topic] and now[topic] != before:
            raise ReplayStateError(
                f"topic {topic} was deleted and created again after replay {replay.id} began: "
                f"its id was {before}, and is {now[topic]} now",
                hint=f"end this replay (weir replay cancel {replay.id}) and begin another one",
            )


def _ids(place: WeirCluster, *topics: TopicName) -> dict[TopicName, str]:
    """Which topics of these names there are; empty where the broker gives no ids. TopicNotFoundError."""
    with Cluster(connection(place.options)) as cluster:
        cluster.partitions([kafka_name(topic) for topic in topics])
        return {topic: cluster.topic_ids.get(kafka_name(topic), "") for topic in topics}


def begin(place: WeirCluster, wanted: Replay) -> Replay:
    """Keep that it was asked for, and by whom."""
    return begin_replay(place.access, wanted)


def subscriptions(place: WeirCluster, topic: TopicName) -> Sequence[str]:
    """Those of a topic, consumer groups and the lake's own among them; TopicNotFoundError."""
    with Cluster(connection(place.options)) as cluster:
        cluster.partitions([kafka_name(topic)])
    found = ask_v2(place.access, "GET", topic_path(topic, "subscriptions")) or []
    return sorted(found)


def _topic_of_subscription(place: WeirCluster, into: str) -> TopicName:
    name = into.removeprefix(_SUBSCRIPTION)
    if into.startswith(_TOPIC):
        raise ConfigError("it is not said where the messages come from", hint="name the topic with --topic")
    with Cluster(connection(place.options)) as cluster:
        topics = [one for one in map(topic_of, cluster.topics()) if not is_selection(one)]
    found = []
    for topic in topics:
        try:
            if name in subscriptions(place, topic):
                found.append(topic)
        except WeirError:  # deleted meanwhile, or not this user's
            continue
    if len(found) != 1:
        listed = f"topics {', '.join(map(str, found[:5]))} have" if found else "no topic has"
        raise ConfigError(f"{listed} a subscription {name}", hint="name the topic with --topic")
    return found[0]


def _destination(
    place: WeirCluster, topic: TopicName, into: str, there: Sequence[str]
) -> tuple[str | None, TopicName | None]:
    """One of the two."""
    if into.startswith(_SUBSCRIPTION):
        name = into.removeprefix(_SUBSCRIPTION)
        if name not in there:
            raise ConfigError(f"{topic} has no subscription {name}", hint=f"it has {', '.join(there) or 'none'}")
        return name, None
    target = None
    if into.startswith(_TOPIC) or into not in there or "/" in into:
        target = TopicName.parse(into.removeprefix(_TOPIC))
        if target.partition is not None:
            raise ConfigError(f"{target} is one partition", hint="name the topic")
    exists = _exists(place, TopicName.parse(into) if target is None and _can_be_topic(into) else target)
    if target is None and exists:
        raise ConfigError(
            f"{into} is a subscription of {topic}, and a topic, too",
            hint=f"write subscription:{into} or topic:{into}",
        )
    if target is not None and not exists:
        raise ConfigError(
            f"there is neither a subscription {into} of {topic} nor such a topic",
            hint=f"its subscriptions: {', '.join(there) or 'none'}; weir topics create makes a topic",
        )
    if target == topic:
        raise ConfigError(
            "the messages would go into the topic that they come from, to all of its subscriptions",
            hint="name one of them, or another topic",
        )
    return (into, None) if target is None else (None, target)


def _can_be_topic(text: str) -> bool:
    try:
        TopicName.parse(text)
    except WeirError:
        return False
    return True


def _exists(place: WeirCluster, topic: TopicName | None) -> bool:
    if topic is None:
        return False
    with Cluster(connection(place.options)) as cluster:
        try:
            cluster.partitions([kafka_name(topic)])
        except TopicNotFoundError:
            return False
    return True


def _check_dealt(place: WeirCluster, subscription: str) -> None:
    """A consumer group of Kafka's asks for offsets itself: it cannot be given single messages again."""
    with Cluster(connection(place.options)) as cluster:
        if subscription in positions.groups(cluster, subscription):
            raise ConfigError(
                f"{subscription} is a consumer group, which reads on from a position",
                hint="replay into a topic that it reads, or move it: weir groups reset",
            )
