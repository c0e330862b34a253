"""What configs are asked for and set of: topics, and brokers, whose configs are only shown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from weir.gateway.kafka.admin.common import check_cluster, existing
from weir.gateway.kafka.admin.config_table import TABLE
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


async def alter(
    session: Session, kind: int, name: str, named: Iterable[str], changes: Changes, *, validate_only: bool
) -> None:
    """Change a topic's configs, all or none of them. `named`: the configs that the request names."""
    if kind == ResourceType.BROKER:
        check_cluster(session)
        check_here(session.services.settings, name)
        raise RefusedError(Code.INVALID_REQUEST, _unchangeable(list(named)))
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


#: Configs of topics, by the name of the broker's config of the same meaning.
_OF_TOPICS = {config.broker_name: config.name for config in TABLE if config.broker_name}
#: Named in one message.
_MOST_LISTED = 10


def _unchangeable(names: Sequence[str]) -> str:
    """Which of a broker's configs a client cannot change, and which configs it can change instead."""
    refused = ", ".join(name[:100] for name in names[:_MOST_LISTED])
    if len(names) > _MOST_LISTED:
        refused += f" and {len(names) - _MOST_LISTED} more"
    of_topics = {name: found for name in names if (found := _OF_TOPICS.get(name))}
    if of_topics:
        instead = "; ".join(
            f"instead of {name}, set {found} of a topic" for name, found in sorted(of_topics.items())
        )
    else:
        instead = f"these can be changed, for each topic: {', '.join(sorted(_OF_TOPICS.values()))}"
    return (
        f"Cannot update these configs dynamically: {refused}. Clients cannot change any config of a broker: "
        "they are set where Weir is started (docs/reference/configuration.md). "
        f"{instead[:1].upper()}{instead[1:]}."
    )
