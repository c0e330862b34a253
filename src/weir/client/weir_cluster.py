"""The Weir that connectors read and write: its admin REST and its Kafka listener."""

from dataclasses import dataclass, replace

from weir.client.access import split_urls
from weir.client.admin import Access
from weir.client.kafka.settings import KafkaSettings, Login, files_of, parse_servers
from weir.client.streams import listeners
from weir.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    access: Access
    kafka: KafkaSettings

    @classmethod
    def find(cls, access: Access, kafka: str | None = None) -> "Place":
        """`kafka`: the listeners, if the broker's own word does not do. It tells of all brokers, so that the loss
        of any of them ends nothing."""
        secure = access.url.startswith("https")
        if kafka is None:
            told = listeners(access)
            kafka = told.kafka_tls if secure else told.kafka
            others = split_urls(told.https if secure else told.http)[1:]
            access = replace(access, url=",".join(dict.fromkeys((*split_urls(access.url), *others))))
        if not kafka:
            raise ConfigError(
                "this Weir has no Kafka listener, by which connectors read and write",
                hint=f"set listeners.{'kafka_tls' if secure else 'kafka'}",
            )
        login = None if access.token is None else Login("token", access.token)
        tls = files_of(access) if secure else None
        return cls(access, KafkaSettings(parse_servers(kafka), "weir-connect", tls, login))
