"""Which Weir a function is of: its admin REST and Kafka listeners, and its topics by their names there."""

from contextlib import suppress
from dataclasses import dataclass

from weir.client.addresses import split_urls
from weir.client.admin import join, topic_path
from weir.client.blocking import Access, ask_v2
from weir.client.kafka.settings import KafkaSettings, Login, files_of, parse_servers
from weir.client.registry import schemas_by
from weir.client.streams import listeners
from weir.functions.protocol import SchemaVersion
from weir.model.errors import BrokerError, ConfigError, NotAllowedError, SchemaNotFoundError
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
