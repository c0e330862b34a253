"""What configs are asked for and set of: topics, and brokers, whose configs are only shown."""

from collections.abc import Callable, Mapping
from enum import IntEnum

from weir.gateway.kafka.admin.common import check_cluster, existing
from weir.gateway.kafka.admin.configs import changed
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.gateway.kafka.errors import Code, RefusedError
from weir.model.policies import Policies
from weir.model.registry import TopicRecord

#: What shall change, by what the topic has now: None for a config that goes back to its default.
Changes = Callable[[TopicRecord, Policies], Mapping[str, str | None]]


class ResourceType(IntEnum):
    """Kafka's numbers."""

    TOPIC = 2
    BROKER = 4


def check_here(settings: KafkaSettings, name: str) -> None:
    """A broker is named by its number; without one, all of them are meant."""
    if name not in ("", str(settings.node_id)):
        raise RefusedError(
            Code.INVALID_REQUEST, f"Unexpected broker id, expected {settings.node_id}, got {name[:20]}"
        )


async def alter(session: Session, kind: int, name: str, changes: Changes, *, validate_only: bool) -> None:
    """Change a topic's configs, all or none of them."""
    if kind == ResourceType.BROKER:
        check_cluster(session)
        check_here(session.services.settings, name)
        raise RefusedError(
            Code.INVALID_REQUEST,
            "a broker's configs are not set by clients",
            hint="see docs/configuration.md for where they are",
        )
    if kind != ResourceType.TOPIC:
        raise RefusedError(Code.INVALID_REQUEST, f"there are no configs of resources of type {kind}")
    if not name:
        raise RefusedError(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
    registry = session.services.registry
    record = await existing(session, name)
    below = registry.policies(record.name.namespace)

    def change(now: TopicRecord) -> TopicRecord:
        holds = now.policies.over(below)
        return changed(now, holds, changes(now, holds))

    if validate_only:
        change(record)
    else:
        await registry.topics.change(record.name, change)
