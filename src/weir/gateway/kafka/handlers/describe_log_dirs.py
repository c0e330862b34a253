"""DescribeLogDirs: how much partitions hold. Weir keeps all of them in one place."""

from weir.broker.api import Topic
from weir.gateway.kafka.admin.common import check_cluster, check_named
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Partition = m.DescribeLogDirsResponse.DescribeLogDirsPartition
_Topic = m.DescribeLogDirsResponse.DescribeLogDirsTopic

#: Clients want a path; where the bookies keep it is not theirs to know.
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
    topics: dict[str, _Topic] = {}
    for name, index, size in parts:
        topic = topics.setdefault(name, _Topic(name=name))
        topic.partitions.append(_Partition(partition_index=index, partition_size=size, offset_lag=0))
    result = m.DescribeLogDirsResponse.DescribeLogDirsResult(
        error_code=Code.NONE, log_dir=LOG_DIR, topics=list(topics.values())
    )
    return m.DescribeLogDirsResponse(results=[result])


def _served(session: Session) -> list[tuple[str, int, int]]:
    """Every partition that is in use; to load all the others, just to weigh them, would cost too much."""
    catalog = session.services.catalog
    found = []
    for topic in session.services.broker.loaded:
        try:
            name = catalog.name_of(topic.name)
            catalog.topic(name)
        except WeirError:
            continue  # not a topic for Kafka's clients
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
                continue  # Kafka leaves out what it does not have
            finally:
                await session.turns.next()
            found.append((wanted.topic, index, _size(topic)))
    return found


def _size(topic: Topic) -> int:
    return 0 if topic.stored is None else topic.stored.size_bytes
