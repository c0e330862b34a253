"""CreateTopics: partitioned topics, with configs."""

from collections.abc import Mapping
from contextlib import suppress

from weir.gateway.kafka.admin.broker_configs import defaults_of
from weir.gateway.kafka.admin.common import (
    NAMED_TWICE,
    administered,
    check_assignments,
    check_count,
    check_replication,
    each,
    named_once,
    to_its_end,
)
from weir.gateway.kafka.admin.configs import new_topic, shown
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.model.errors import TopicExistsError, TopicNotFoundError, WeirError
from weir.model.policies import Policies
from weir.model.registry import TopicRecord
from weir.model.topics import TopicName
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Topic = m.CreateTopicsRequest.CreatableTopic
_Result = m.CreateTopicsResponse.CreatableTopicResult
_Config = m.CreateTopicsResponse.CreatableTopicConfigs

_UNSAID = -1
#: Kafka takes no more replicas than this for a number.
_MOST_REPLICAS = 32_767


@handler(ApiKey.CREATE_TOPICS, versions=(2, 7))
async def create_topics(session: Session, request: m.CreateTopicsRequest, version: int) -> m.CreateTopicsResponse:
    once, twice = named_once(request.topics, lambda topic: topic.name)

    async def create(topic: _Topic) -> _Result:
        return await _create(session, topic, validate_only=request.validate_only)

    made = await each(once, create, _failed, request.timeout_ms)
    return m.CreateTopicsResponse(topics=made + [_failed(topic, *NAMED_TWICE) for topic in twice])


async def _create(session: Session, topic: _Topic, *, validate_only: bool) -> _Result:
    services = session.services
    base = administered(session, topic.name)
    services.catalog.name_of(base)  # one that could not be listed shall not be made
    try:
        policies, properties = new_topic(_configs(topic), services.registry.policies(base.namespace))
        partitions = _partitions(session, topic, base)
        check_count(services.registry, partitions)
    except WeirError:
        await _check_absent(session, topic.name, base)  # what is wrong besides matters less
        raise
    if validate_only:
        await _check_absent(session, topic.name, base)
        services.registry.namespaces.get(base.namespace)
        if await services.registry.topics.look(base) is not None:
            raise TopicExistsError(f"Topic '{topic.name}' is being deleted.")
        return _made(session, topic.name, TopicRecord(base, partitions, policies, properties), real=False)
    record = await to_its_end(_register(session, base, partitions, policies, properties))
    return _made(session, topic.name, record)


async def _check_absent(session: Session, name: str, base: TopicName) -> None:
    there = await session.services.registry.topics.look(base)
    if there is not None and not there.deleting:
        raise TopicExistsError(f"Topic '{name}' already exists.")


async def _register(
    session: Session, base: TopicName, partitions: int, policies: Policies, properties: Mapping[str, str]
) -> TopicRecord:
    registry, broker = session.services.registry, session.services.broker
    while True:
        try:
            return await registry.topics.create(
                base, partitions=partitions, policies=policies, properties=properties
            )
        except TopicExistsError as exists:
            found = await registry.topics.look(base)
            if found is not None and not found.deleting:
                name = session.services.catalog.name_of(base)
                raise TopicExistsError(f"Topic '{name}' already exists.") from exists
            with suppress(TopicNotFoundError):  # a deletion that was cut short: end it, and try again
                await broker.delete(base, force=True)


def _partitions(session: Session, topic: _Topic, base: TopicName) -> int:
    if topic.assignments:
        if topic.num_partitions != _UNSAID or topic.replication_factor != _UNSAID:
            raise RefusedError(
                Code.INVALID_REQUEST, "both an assignment and a number of partitions or replicas were given"
            )
        return _assigned(session, topic)
    if topic.replication_factor != _UNSAID and not 0 < topic.replication_factor <= _MOST_REPLICAS:
        raise RefusedError(Code.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    check_replication(session, topic.replication_factor)
    if topic.num_partitions == _UNSAID:
        policy = session.services.registry.policies(base.namespace).auto_topic_creation
        return max(1, policy.partitions) if policy is not None else 1
    if topic.num_partitions < 1:
        raise RefusedError(Code.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    return topic.num_partitions


def _assigned(session: Session, topic: _Topic) -> int:
    """Bundles decide who leads a partition, so an assignment is only checked: it names brokers that there are."""
    if sorted(one.partition_index for one in topic.assignments) != list(range(len(topic.assignments))):
        raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0 on, without a gap")
    check_assignments(session, [one.broker_ids for one in topic.assignments])
    return len(topic.assignments)


def _configs(topic: _Topic) -> dict[str, str]:
    said: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise RefusedError(Code.INVALID_CONFIG, f"Null value not supported for topic configs: {config.name}")
        said[config.name] = config.value
    return said


def _made(session: Session, name: str, record: TopicRecord, *, real: bool = True) -> _Result:
    services = session.services
    holds = record.policies.over(services.registry.policies(record.name.namespace))
    return _Result(
        name=name,
        topic_id=services.catalog.id_of(record) if real else bytes(16),
        error_message=None,
        num_partitions=record.partitions,
        replication_factor=1,
        configs=[
            _Config(name=one.config.name, value=one.value, config_source=one.source)
            for one in shown(record, holds, defaults_of(services.settings))
        ],
    )


def _failed(topic: _Topic, code: int, text: str) -> _Result:
    return _Result(name=topic.name, error_code=code, error_message=text, num_partitions=-1, replication_factor=-1)
