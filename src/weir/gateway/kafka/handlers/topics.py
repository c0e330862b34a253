"""Handlers that administer topics.

- CreateTopics creates partitioned topics with configs; CreatePartitions adds partitions and never removes any.
- DeleteTopics deletes topics, by name or id, with their messages, subscriptions and groups' offsets.
- DeleteRecords deletes all records before an offset, also those that consumers have not read.
- DescribeLogDirs reports the sizes of partitions, all in one log directory.
"""

from collections.abc import Mapping
from contextlib import suppress

from weir.broker.api.topics import Topic
from weir.gateway.kafka.admin_requests import (
    NAMED_TWICE,
    administered,
    check_assignments,
    check_cluster,
    check_count,
    check_named,
    check_replication,
    each,
    existing,
    named_once,
    to_its_end,
)
from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.configs import defaults_of, new_topic, shown
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.session import Session
from weir.model.errors import InvalidNameError, NotAllowedError, TopicExistsError, TopicNotFoundError, WeirError
from weir.model.policies import Cleanup, LogCompaction, Policies
from weir.model.registry import TopicRecord
from weir.model.topics import TopicName
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_Topic = m.CreateTopicsRequest.CreatableTopic
_Result = m.CreateTopicsResponse.CreatableTopicResult
_Config = m.CreateTopicsResponse.CreatableTopicConfigs

_UNSAID = -1
#: Kafka's largest replication factor (int16).
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
    services.catalog.name_of(base)  # refuse a topic that Kafka clients could not list
    try:
        policies, properties = new_topic(_configs(topic), services.registry.policies(base.namespace))
        partitions = _partitions(session, topic, base)
        check_count(services.registry, partitions)
    except WeirError:
        await _check_absent(session, topic.name, base)  # TopicExistsError takes precedence over other errors
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
            with suppress(TopicNotFoundError):  # complete an interrupted deletion, then retry
                await broker.delete(base, force=True)


def _partitions(session: Session, topic: _Topic, base: TopicName) -> int:
    if topic.assignments:
        if topic.num_partitions != _UNSAID or topic.replication_factor != _UNSAID:
            raise RefusedError(
                Code.INVALID_REQUEST, "set either assignments, or numbers of partitions and replicas, not both"
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
    """The number of assigned partitions. Bundles decide the leaders, so the assignment is only validated."""
    if sorted(one.partition_index for one in topic.assignments) != list(range(len(topic.assignments))):
        raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, "partition numbers must start at 0, without gaps")
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


_DeleteTopicsTopic = m.DeleteTopicsRequest.DeleteTopicState
_DeleteTopicsResult = m.DeleteTopicsResponse.DeletableTopicResult

_BY_ID_SINCE = 6
_NO_ID = bytes(16)


@handler(ApiKey.DELETE_TOPICS, versions=(1, 6))
async def delete_topics(session: Session, request: m.DeleteTopicsRequest, version: int) -> m.DeleteTopicsResponse:
    wanted = (
        request.topics
        if version >= _BY_ID_SINCE
        else [_DeleteTopicsTopic(name=name) for name in request.topic_names]
    )
    called = {id(topic): await _key(session, topic) for topic in wanted}
    once, twice = named_once(wanted, lambda topic: called[id(topic)])

    async def delete(topic: _DeleteTopicsTopic) -> _DeleteTopicsResult:
        record = await _meant(session, topic)
        topic_id = session.services.catalog.id_of(record)
        await session.services.broker.delete(record.name, force=True)
        return _DeleteTopicsResult(
            name=topic.name or session.services.catalog.name_of(record.name), topic_id=topic_id
        )

    gone = await each(once, delete, _delete_topics_failed, request.timeout_ms)
    return m.DeleteTopicsResponse(responses=gone + [_delete_topics_failed(topic, *NAMED_TWICE) for topic in twice])


async def _key(session: Session, topic: _DeleteTopicsTopic) -> str | bytes:
    """The key of a topic in the request: its id, even if the request names it."""
    if topic.name is None:
        return bytes(topic.topic_id)
    catalog = session.services.catalog
    try:
        record = await catalog.look(topic.name)
    except WeirError:
        return topic.name
    return catalog.id_of(record) if catalog.may_know(session.role, record.name) else topic.name


async def _meant(session: Session, topic: _DeleteTopicsTopic) -> TopicRecord:
    catalog = session.services.catalog
    named, known = topic.name is not None, bytes(topic.topic_id) != _NO_ID
    if named == known:
        what = "set a topic's name or its id, not both" if named else "neither a topic's name nor its id is set"
        raise RefusedError(Code.INVALID_REQUEST, what)
    if topic.name is not None:
        try:
            administered(session, topic.name)
        except InvalidNameError as bad:  # such a topic cannot exist
            raise TopicNotFoundError(bad.what, hint=bad.hint) from bad
        return await catalog.look(topic.name)
    record = await catalog.known_by_id(session.role, topic.topic_id)
    session.services.authoriser.check_admin(session.role, record.name)
    return record


def _delete_topics_failed(topic: _DeleteTopicsTopic, code: int, text: str) -> _DeleteTopicsResult:
    return _DeleteTopicsResult(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=text)


_CreatePartitionsTopic = m.CreatePartitionsRequest.CreatePartitionsTopic
_CreatePartitionsResult = m.CreatePartitionsResponse.CreatePartitionsTopicResult


@handler(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
async def create_partitions(
    session: Session, request: m.CreatePartitionsRequest, version: int
) -> m.CreatePartitionsResponse:
    once, twice = named_once(request.topics, lambda topic: topic.name)

    async def grow(topic: _CreatePartitionsTopic) -> _CreatePartitionsResult:
        record = await existing(session, topic.name)
        _check(session, topic, record)
        check_count(session.services.registry, topic.count)
        if not request.validate_only:
            try:
                await session.services.registry.topics.grow(record.name, topic.count)
            except NotAllowedError as refused:  # another client added partitions meanwhile
                raise RefusedError(Code.INVALID_PARTITIONS, refused.what, hint=refused.hint) from refused
        return _CreatePartitionsResult(name=topic.name)

    grown = await each(once, grow, _create_partitions_failed, request.timeout_ms)
    return m.CreatePartitionsResponse(
        results=grown + [_create_partitions_failed(topic, *NAMED_TWICE) for topic in twice]
    )


def _check(session: Session, topic: _CreatePartitionsTopic, record: TopicRecord) -> None:
    now = session.services.catalog.partitions_of(record)
    if topic.count <= now:
        raise RefusedError(
            Code.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {now} partition(s); {topic.count} would not be an increase.",
        )
    if not record.partitions:
        raise RefusedError(
            Code.INVALID_PARTITIONS,
            f"{record.name} is not a partitioned topic",
            hint="a client of another protocol created it; create a partitioned topic instead",
        )
    if topic.assignments is None:
        return
    if len(topic.assignments) != topic.count - now:
        raise RefusedError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"{topic.count - now} new partitions need as many assignments, not {len(topic.assignments)}",
        )
    check_assignments(session, [one.broker_ids for one in topic.assignments])


def _create_partitions_failed(topic: _CreatePartitionsTopic, code: int, text: str) -> _CreatePartitionsResult:
    return _CreatePartitionsResult(name=topic.name, error_code=code, error_message=text)


_Part = m.DeleteRecordsRequest.DeleteRecordsPartition
_DeleteRecordsResult = m.DeleteRecordsResponse.DeleteRecordsPartitionResult

#: The offset that stands for the end of the partition: delete all records.
_ALL = -1
_NO_OFFSET = -1
#: In Kafka the leader deletes at once, and the timeout covers only followers. Weir has no followers, so a client
#: with a shorter timeout gets the result, too.
_LEAST_TIMEOUT_MS = 10_000


@handler(ApiKey.DELETE_RECORDS, versions=(0, 2))
async def delete_records(
    session: Session, request: m.DeleteRecordsRequest, version: int
) -> m.DeleteRecordsResponse:
    wanted = [(topic.name, part) for topic in request.topics for part in topic.partitions]

    async def delete(one: tuple[str, _Part]) -> _DeleteRecordsResult:
        name, part = one
        return _DeleteRecordsResult(
            partition_index=part.partition_index, low_watermark=await _delete(session, name, part)
        )

    results = iter(await each(wanted, delete, _delete_records_failed, max(request.timeout_ms, _LEAST_TIMEOUT_MS)))
    return m.DeleteRecordsResponse(
        topics=[
            m.DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name, partitions=[next(results) for _ in topic.partitions]
            )
            for topic in request.topics
        ]
    )


async def _delete(session: Session, name: str, part: _Part) -> int:
    services = session.services
    where = services.catalog.part_of(await existing(session, name), part.partition_index)
    cleanup = ((await services.registry.look_policies(where)).log_compaction or LogCompaction()).cleanup
    if cleanup is Cleanup.COMPACT:
        raise RefusedError(
            Code.POLICY_VIOLATION,
            f"{name} is compacted: only compaction deletes its records",
            hint="set cleanup.policy=compact,delete",
        )
    topic = await services.broker.topic(where, role=session.role, create=False)
    stored = topic.stored
    if stored is None:
        raise RefusedError(Code.INVALID_REQUEST, f"{name} stores nothing")
    offset = topic.end_offset if part.offset == _ALL else part.offset
    if not 0 <= offset <= topic.end_offset:
        raise RefusedError(Code.OFFSET_OUT_OF_RANGE, f"{name} ends at {topic.end_offset}, not at {offset}")
    await to_its_end(stored.delete_before(offset))
    return topic.reader().start_offset


def _delete_records_failed(one: tuple[str, _Part], code: int, text: str) -> _DeleteRecordsResult:
    return _DeleteRecordsResult(partition_index=one[1].partition_index, low_watermark=_NO_OFFSET, error_code=code)


_Partition = m.DescribeLogDirsResponse.DescribeLogDirsPartition
_DescribeLogDirsTopic = m.DescribeLogDirsResponse.DescribeLogDirsTopic

#: Clients expect a path; the bookies' real paths are not for clients.
LOG_DIR = "/weir"


@handler(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 4))
async def describe_log_dirs(
    session: Session, request: m.DescribeLogDirsRequest, version: int
) -> m.DescribeLogDirsResponse:
    try:
        check_cluster(session)
    except RefusedError as denied:
        return m.DescribeLogDirsResponse(error_code=denied.code)
    parts = _served(session) if request.topics is None else await _named(session, request)
    topics: dict[str, _DescribeLogDirsTopic] = {}
    for name, index, size in parts:
        topic = topics.setdefault(name, _DescribeLogDirsTopic(name=name))
        topic.partitions.append(_Partition(partition_index=index, partition_size=size, offset_lag=0))
    result = m.DescribeLogDirsResponse.DescribeLogDirsResult(
        error_code=Code.NONE, log_dir=LOG_DIR, topics=list(topics.values())
    )
    return m.DescribeLogDirsResponse(results=[result])


def _served(session: Session) -> list[tuple[str, int, int]]:
    """Every loaded partition; loading all others only for their sizes would cost too much."""
    catalog = session.services.catalog
    found = []
    for topic in session.services.broker.loaded:
        try:
            name = catalog.name_of(topic.name)
            catalog.topic(name)
        except WeirError:
            continue  # Kafka clients cannot see this topic
        found.append((name, catalog.index_of(topic.name), _size(topic)))
    return sorted(found)


async def _named(session: Session, request: m.DescribeLogDirsRequest) -> list[tuple[str, int, int]]:
    catalog, broker = session.services.catalog, session.services.broker
    check_named(sum(len(wanted.partitions) for wanted in request.topics or ()))
    found = []
    for wanted in request.topics or ():
        for index in wanted.partitions:
            try:
                part: TopicName = await catalog.look_part(wanted.topic, index)
                topic = await broker.topic(part, role=session.role, create=False)
            except WeirError:
                continue  # like Kafka, omit unknown partitions
            finally:
                await session.turns.next()
            found.append((wanted.topic, index, _size(topic)))
    return found


def _size(topic: Topic) -> int:
    return 0 if topic.stored is None else topic.stored.size_bytes
