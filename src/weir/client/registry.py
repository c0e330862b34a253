"""The schemas of a topic, asked of the admin REST by code that blocks: Spark's driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weir.client.admin import join
from weir.client.blocking import Access, ask_v2
from weir.model.errors import SchemaNotFoundError, WireError
from weir.model.topics import TopicName


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a topic's schema: its type, by the registry's word for it, and its definition."""

    version: int
    kind: str
    definition: str
    properties: Mapping[str, str] = field(default_factory=dict)


def topic_of(kafka_name: str) -> TopicName:
    """The topic that Kafka's clients call so: `orders`, or `tenant..namespace..orders`."""
    parts = kafka_name.split("..")
    return TopicName.parse("/".join(parts) if len(parts) == 3 and all(parts) else kafka_name)


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
