"""The schemas of the topics that a query reads, asked of the registry on the driver."""

from weir.client.blocking import Access
from weir.client.kafka.cluster import Cluster
from weir.client.kafka.settings import KafkaSettings, TlsFiles
from weir.client.registry import schemas_by, topic_of
from weir.model.errors import ConfigError
from weir.spark.source.options import SourceOptions
from weir.spark.source.planning import partitions_of
from weir.spark.values.typed import ValueSchema, value_schema


def access_by(url: str, kafka: KafkaSettings, patience_s: float = 60.0) -> Access:
    """The admin REST, by what a query comes in with to the brokers."""
    token = None if kafka.login is None else kafka.login.password
    tls = kafka.tls or TlsFiles()
    return Access(url, token, tls.ca, patience_s, tls.certificate, tls.key)


def value_schemas(options: SourceOptions) -> dict[str, ValueSchema]:
    """By topic; empty if the values stay bytes. ConfigError if the topics' values differ in type."""
    registry = options.registry
    if registry is None:
        return {}
    with Cluster(options.kafka) as cluster:
        topics = sorted({partition.topic for partition in partitions_of(cluster, options)})
    access = access_by(registry.url, options.kafka)
    found = {}
    for topic in topics:
        versions = schemas_by(access, topic_of(registry.topic or topic))
        found[topic] = value_schema(topic, list(versions), permissive=registry.permissive)
    for topic in topics[1:]:
        if (found[topic].type, found[topic].key_type) != (found[topics[0]].type, found[topics[0]].key_type):
            raise ConfigError(
                f"the values of {topics[0]} and {topic}, or their keys, differ in type",
                hint="read them one by one, and unite them",
            )
    if not found:
        raise ConfigError("no topic has values to be typed", hint="name topics that exist")
    return found
