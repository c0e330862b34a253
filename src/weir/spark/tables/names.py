"""Which Weir the SQL is about, how to come in, and what its topics are called as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weir.client.access import split_urls
from weir.client.admin import Access
from weir.client.streams import listeners
from weir.model.definitions import table_name
from weir.model.errors import ConfigError, InvalidNameError, SqlError
from weir.model.topics import DEFAULT_NAMESPACE, TopicName

__all__ = ["WeirCluster", "table_name", "topic_named"]


@dataclass(frozen=True, slots=True)
class WeirCluster:
    """The admin REST, and the Kafka listener that Spark's tasks read and write by."""

    access: Access
    kafka: str
    secure: bool = False

    @classmethod
    def find(cls, access: Access, kafka: str | None = None) -> "WeirCluster":
        """`kafka`: the listeners, if the broker need not be asked for them. One that is asked tells of all
        brokers, so that the loss of any of them ends nothing."""
        secure = access.url.startswith("https")
        if kafka is None:
            told = listeners(access)
            kafka = told.kafka_tls if secure else told.kafka
            others = split_urls(told.https if secure else told.http)[1:]
            access = replace(access, url=",".join(dict.fromkeys((*split_urls(access.url), *others))))
        if not kafka:
            raise ConfigError(
                "this Weir has no Kafka listener, by which Spark would read and write",
                hint=f"set listeners.{'kafka_tls' if secure else 'kafka'}",
            )
        return cls(access, kafka, secure)

    @property
    def options(self) -> Mapping[str, str]:
        """What Spark's source and sink need to come in."""
        found = {"kafka.bootstrap.servers": self.kafka, "adminUrl": self.access.url}
        if self.access.token is not None:
            found["token"] = self.access.token
        if self.secure:
            found["kafka.security.protocol"] = "SSL" if self.access.token is None else "SASL_SSL"
            if self.access.ca is not None:
                found["kafka.ssl.ca.location"] = self.access.ca
            if self.access.certificate is not None:
                found["kafka.ssl.certificate.location"] = self.access.certificate
            if self.access.key is not None:
                found["kafka.ssl.key.location"] = self.access.key
        return found


def topic_named(parts: tuple[str, ...]) -> TopicName:
    """The topic that SQL calls `topic`, `namespace.topic` or `tenant.namespace.topic`."""
    default = (DEFAULT_NAMESPACE.tenant, DEFAULT_NAMESPACE.name)
    full = (*default[: 3 - len(parts)], *parts)
    try:
        found = TopicName.parse("/".join(full))
    except InvalidNameError as bad:
        raise SqlError(f"{'.'.join(parts)} cannot be a topic: {bad.what}", hint=bad.hint) from None
    if found.partition is not None:
        raise SqlError(f"{'.'.join(parts)} is one partition", hint="name the topic, and filter by __partition")
    return found
