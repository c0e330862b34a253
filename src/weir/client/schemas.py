"""The schemas of a topic, asked of the admin REST by code that blocks: Spark's driver."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weir.client.admin import Access, ask_v2, join
from weir.model.errors import SchemaNotFoundError, WireError
from weir.model.topics import DEFAULT_NAMESPACE, TopicName

#: Letters that Kafka's topics have. Weir's have others, too: of RocketMQ's dead letters, of queues.
_KAFKAS = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a topic's schema: its type, by the registry's word for it, and its definition."""

    version: int
    kind: str
    definition: str
    properties: Mapping[str, str] = field(default_factory=dict)


def topic_of(kafka_name: str) -> TopicName:
    """The topic that Kafka's clients call so: `orders`, `tenant..namespace..orders`, `tenant/namespace/orders`."""
    parts = kafka_name.split("..")
    is_short = "/" not in kafka_name and len(parts) == 3 and all(parts)
    return TopicName.parse("/".join(parts) if is_short else kafka_name)


def kafka_name(topic: TopicName) -> str:
    """The name by which Kafka's clients know the topic. One that has no such name is known by slashes: brokers
    understand that, but do not list it."""
    namespace = topic.namespace
    name = topic.local
    if namespace != DEFAULT_NAMESPACE:
        name = f"{namespace.tenant}..{namespace.name}..{topic.local}"
    if _KAFKAS.fullmatch(name) and topic_of(name) == topic.base:
        return name
    return f"{namespace.tenant}/{namespace.name}/{topic.local}"


def schemas_by(access: Access, topic: TopicName) -> Sequence[TopicSchema]:
    """All versions since the last deletion, the latest last; SchemaNotFoundError if there are none."""
    path = join("schemas", topic.namespace.tenant, topic.namespace.name, topic.local, "schemas")
    answer = ask_v2(replace(access, patience_s=0), "GET", path)
    listed = answer.get("getSchemaResponses") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise WireError(f"{access.url} does not tell schemas as expected")
    if not listed:
        raise SchemaNotFoundError(
            f"{topic} has no schema", hint="leave valueFormat out, or upload one: weir schemas"
        )
    found = [
        TopicSchema(int(one["version"]), str(one["type"]), str(one["data"]), one.get("properties") or {})
        for one in listed
    ]
    return sorted(found, key=lambda one: one.version)
