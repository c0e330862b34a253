"""The subscriptions that a function has of its inputs: made when it is deployed, and removed with an input that an
update has dropped.

Each is noted before it is made, as a property of the function's own topic: so none is left behind of which nobody
knows whose it is, whoever is killed in between.

Which Weir a function is of: its admin REST and Kafka listeners, and its topics by their names there.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlencode

from weir.client import functions as rest
from weir.client.access import split_urls
from weir.client.admin import Access, ask_v2, join, topic_path
from weir.client.kafka.cluster import Cluster
from weir.client.kafka.settings import KafkaSettings, Login, files_of, parse_servers
from weir.client.schemas import schemas_by
from weir.client.streams import listeners
from weir.functions.executor_protocol import SchemaVersion
from weir.functions.options import from_text
from weir.model.definitions import ID_NOTE, INPUT_NOTE, Function
from weir.model.errors import (
    BrokerError,
    ConfigError,
    NotAllowedError,
    NotFoundError,
    SchemaNotFoundError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.topics import DEFAULT_NAMESPACE, TopicName

_CLIENT = "weir-functions"


@dataclass(frozen=True, slots=True)
class Place:
    access: Access
    kafka: KafkaSettings

    @classmethod
    def find(cls, access: Access, kafka: str | None = None) -> "Place":
        """`kafka`: the listeners, if the broker's own word does not do."""
        secure = split_urls(access.url)[0].startswith("https")
        if kafka is None:
            told = listeners(access)
            kafka = told.kafka_tls if secure else told.kafka
        if not kafka:
            raise ConfigError(
                "this Weir has no Kafka listener, by which functions read and write",
                hint=f"set listeners.{'kafka_tls' if secure else 'kafka'}",
            )
        return cls(
            access,
            KafkaSettings(
                servers=parse_servers(kafka),
                client_id=_CLIENT,
                tls=files_of(access) if secure else None,
                joining_by_use=True,
                login=None if access.token is None else Login("weir", access.token),
            ),
        )

    def schemas(self, topic: TopicName) -> list[SchemaVersion]:
        """As the function below."""
        return schemas_of_topic(self.access, topic)

    def partitioned(self, topic: TopicName) -> bool:
        found = ask_v2(self.access, "GET", topic_path(topic, "partitions"))
        return bool(found["partitions"])

    def ensure_subscription(self, topic: TopicName, subscription: str, *, earliest: bool) -> None:
        """As the function below."""
        ensure_subscription(self.access, topic, subscription, earliest=earliest)


def schemas_of_topic(access: Access, topic: TopicName) -> list[SchemaVersion]:
    """The versions of a topic's schema, the latest last; none if it has no schema."""
    try:
        found = schemas_by(access, topic)
    except (SchemaNotFoundError, BrokerError):
        return []
    return [SchemaVersion(one.version, one.kind, one.definition, dict(one.properties)) for one in found]


def ensure_subscription(access: Access, topic: TopicName, subscription: str, *, earliest: bool) -> None:
    """Make topic and subscription, unless they are there; from then on nothing is deleted unread."""
    last = -1 if earliest else 2**63 - 1
    with suppress(NotAllowedError):
        ask_v2(access, "PUT", topic_path(topic))
    with suppress(NotAllowedError):
        place = {"ledgerId": last, "entryId": last}
        ask_v2(access, "PUT", f"{topic_path(topic)}/{join('subscription', subscription)}", place)


def kafka_name(topic: TopicName) -> str:
    """The name by which Kafka's clients know the topic."""
    namespace = topic.namespace
    return (
        topic.local if namespace == DEFAULT_NAMESPACE else f"{namespace.tenant}..{namespace.name}..{topic.local}"
    )


log = logging.getLogger(__name__)

#: Before the names of inputs, in properties whose values are ids: a function that is deployed anew under an old
#: name does not take for its own what the one before has left.
_INPUT = INPUT_NOTE
#: The same, with the id of the input that it is about.
_ID = ID_NOTE
#: How often an input may be created again while the function subscribes to it.
_MOST_RECREATED = 10


def note(access: Access, function: Function) -> None:
    """That subscriptions of these inputs are the function's."""
    ensure_subscription(access, function.retry_topic, function.subscription, earliest=True)
    said = {f"{_INPUT}{topic}": function.id for topic in function.inputs}
    ask_v2(access, "PUT", topic_path(function.retry_topic, "properties"), said)


def subscribe(access: Access, function: Function) -> dict[TopicName, str]:
    """From now on, whoever runs it: what comes is kept for it. An input that was deleted and created again is
    subscribed to from its start: the ids of the inputs are properties of the function's own topic, too. Answers
    those ids."""
    note(access, function)
    earliest = from_text(function.options).start == "earliest"
    known = _noted_ids(access, function)
    try:
        place = Place.find(access)
    except ConfigError:  # as who runs it will say
        place = None
    for topic in function.inputs:
        before = known.get(topic, "")
        for _ in range(_MOST_RECREATED):
            now = "" if place is None else _id_of(place, topic)
            again = bool(before) and now != before
            if again:
                log.warning(
                    "%s was deleted and created again: %s reads it from its start", topic, function.name.local
                )
            ensure_subscription(access, topic, function.subscription, earliest=earliest or again)
            after = "" if place is None else _id_of(place, topic)
            if after != before and after:
                said = {f"{_ID}{topic}": f"{function.id} {after}"}
                ask_v2(access, "PUT", topic_path(function.retry_topic, "properties"), said)
                known[topic] = after
            if now in ("", after):  # it was there, or was made here
                break
            before = now
            with suppress(BrokerError):  # of the topic that was created meanwhile
                ask_v2(
                    access,
                    "DELETE",
                    f"{topic_path(topic)}/{join('subscription', function.subscription)}?force=true",
                )
    return {topic: known[topic] for topic in function.inputs if topic in known}


def _noted_ids(access: Access, function: Function) -> dict[TopicName, str]:
    """Which topics the inputs were, as it last subscribed to them."""
    said = ask_v2(access, "GET", topic_path(function.retry_topic, "properties")) or {}
    found = {name.removeprefix(_ID): value.split() for name, value in said.items() if name.startswith(_ID)}
    return {TopicName.parse(name): words[1] for name, words in found.items() if words[:1] == [function.id]}


def _id_of(place: Place, topic: TopicName) -> str:
    """Empty if there is no such topic."""
    with Cluster(place.kafka) as cluster:
        try:
            return cluster.topic_id(kafka_name(topic))
        except TopicNotFoundError:
            return ""


def noted(access: Access, function: Function) -> list[TopicName]:
    """Inputs that it has, or had, and whose subscriptions nobody has removed."""
    try:
        said = ask_v2(access, "GET", topic_path(function.retry_topic, "properties")) or {}
    except BrokerError:  # there is no such topic
        return []
    return [
        TopicName.parse(name.removeprefix(_INPUT))
        for name, whose in said.items()
        if name.startswith(_INPUT) and whose == function.id
    ]


def leave_dropped(access: Access, function: Function) -> None:
    """Remove the subscriptions of inputs that the function has no more. To be called once no worker of an earlier
    version can move a position, which would make it again. What is refused is tried again by the next worker."""
    known = noted(access, function)
    # Asked after that: an input that somebody adds just now is in both, or not known yet.
    now = rest.get_function(access, function.name).function
    dropped = [topic for topic in known if topic not in now.inputs] if now.id == function.id else []
    for topic in dropped:
        try:
            leave(access, function, topic)
        except WeirError as refused:
            log.warning("%s: its subscription of %s stays: %s", function.name.local, topic, refused)


def leave(access: Access, function: Function, topic: TopicName) -> None:
    """Remove its subscription of a topic, with what waits there for it; fine if there is none. If the broker
    refuses that, the note that it is the function's stays, and the error is raised."""
    subscription = join("subscription", function.subscription)
    with suppress(NotFoundError, TopicNotFoundError):
        ask_v2(access, "DELETE", f"{topic_path(topic)}/{subscription}?force=true")
    for name in (f"{_INPUT}{topic}", f"{_ID}{topic}"):
        with suppress(NotFoundError, TopicNotFoundError):
            path = topic_path(function.retry_topic, "properties")
            ask_v2(access, "DELETE", f"{path}?{urlencode({'key': name})}")
