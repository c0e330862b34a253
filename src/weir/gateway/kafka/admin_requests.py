"""What the administrators' calls have in common: who may, for how long, how often, and what it comes to.

What a role may do, as the bit sets that some answers carry.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from weir.broker.api.metadata import Registry
from weir.broker.api.security import Authoriser
from weir.gateway.kafka.errors import Code, RefusedError, code_of, text_of
from weir.gateway.kafka.session import Session
from weir.model.errors import NotAllowedError, NotAuthorisedError, TooManyError, WeirError
from weir.model.registry import Action, TopicRecord
from weir.model.topics import TopicName

T = TypeVar("T")
R = TypeVar("R")

#: Topics of one request that are worked on at the same time, before others get a turn.
_AT_ONCE = 16
#: The answer to what a request names more than once.
NAMED_TWICE = (Code.INVALID_REQUEST, "the request names this more than once")
#: What one request may name.
_MOST_NAMED = 10_000


def administered(session: Session, name: str) -> TopicName:
    """The topic that is meant, whether there is one or not, if the client may administer it."""
    base = session.services.catalog.base(name)
    session.services.authoriser.check_admin(session.role, base)
    return base


async def existing(session: Session, name: str) -> TopicRecord:
    """The topic, if the client may administer it. Who may not does not learn whether there is one."""
    administered(session, name)
    return await session.services.catalog.look(name)


def check_cluster(session: Session) -> None:
    """For what concerns the cluster as a whole."""
    try:
        session.services.authoriser.check_superuser(session.role)
    except NotAuthorisedError as denied:
        raise RefusedError(Code.CLUSTER_AUTHORIZATION_FAILED, denied.what, hint=denied.hint) from denied


def check_count(registry: Registry, partitions: int) -> None:
    """Whether a topic can have so many partitions."""
    try:
        registry.topics.check_partitions(partitions)
    except (NotAllowedError, TooManyError) as refused:
        raise RefusedError(Code.INVALID_PARTITIONS, refused.what, hint=refused.hint) from refused


def check_assignments(session: Session, assignments: Iterable[Sequence[int]]) -> None:
    """Each partition's replicas: brokers that there are, each once, and as many for all partitions, as Kafka wants
    it. Who leads a partition is decided by its bundle, whatever they say."""
    there = {info.node_id for info in session.services.broker.brokers()} | {session.nodes.here}
    counts = set()
    for brokers in assignments:
        if not brokers or len(set(brokers)) != len(brokers) or not there.issuperset(brokers):
            raise RefusedError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"a partition cannot be on brokers {list(brokers)[:20]}; there are brokers {sorted(there)[:20]}",
            )
        counts.add(len(brokers))
    if len(counts) > 1:
        raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, "partitions have different numbers of replicas")


def check_replication(session: Session, factor: int) -> None:
    """As Kafka's controller, with its words. A broker whose lease has just ended counts: it may be restarting."""
    broker = session.services.broker
    brokers = {info.broker_id for info in (*broker.brokers(), *broker.former_brokers())}
    count = max(1, len(brokers))
    if factor > count:
        raise RefusedError(
            Code.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {count} broker(s) are registered.",
        )


def check_named(count: int, most: int = _MOST_NAMED) -> None:
    """A short request must not ask for an answer without end, or for all of the broker's time."""
    if count > most:
        raise RefusedError(Code.INVALID_REQUEST, f"a request names {count} things, {most} are allowed")


def named_once(items: Sequence[T], key: Callable[[T], Hashable]) -> tuple[list[T], list[T]]:
    """Those that a request names once; and one of each that it names more often, since nobody can tell which of
    them is meant."""
    check_named(len(items))
    twice = said_twice(map(key, items))
    once = [item for item in items if key(item) not in twice]
    return once, list({key(item): item for item in items if key(item) in twice}.values())


def said_twice(names: Iterable[Hashable]) -> set[Hashable]:
    """What a request names more than once: it is refused, as nobody can tell which one is meant."""
    return {name for name, count in Counter(names).items() if count > 1}


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Whoever gives up waiting must not leave something half done."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody waits any more
    return await asyncio.shield(task)


async def each(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], failed: Callable[[T, int, str], R], timeout_ms: int
) -> list[R]:
    """Every item's outcome, in order. What takes longer than the client waits goes on; the client is told that it
    does."""
    check_named(len(items))
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000

    async def one(item: T) -> R:
        try:
            async with asyncio.timeout_at(deadline):
                return await work(item)
        except TimeoutError:
            return failed(item, Code.REQUEST_TIMED_OUT, "it takes longer than the request waits, and goes on")
        except WeirError as failure:
            return failed(item, code_of(failure), text_of(failure))

    results: list[R] = []
    for first in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*(one(item) for item in items[first : first + _AT_ONCE]))
    return results


class Operation(IntEnum):
    """Kafka's numbers of what can be allowed; each is the place of its bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


#: Said where nobody asked.
NOT_ASKED = -(2**31)

_OF_TOPIC_ADMINS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OF_SUPERUSERS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def topic_operations(authoriser: Authoriser, role: str, topic: TopicName) -> int:
    if authoriser.may_administer(role, topic):
        return bits(*_OF_TOPIC_ADMINS)
    allowed = 0
    if authoriser.may(role, Action.CONSUME, topic):
        allowed |= bits(Operation.READ, Operation.DESCRIBE)
    if authoriser.may(role, Action.PRODUCE, topic):
        allowed |= bits(Operation.WRITE, Operation.DESCRIBE)
    return allowed


def cluster_operations(authoriser: Authoriser, role: str) -> int:
    return bits(*_OF_SUPERUSERS) if authoriser.is_superuser(role) else bits(Operation.IDEMPOTENT_WRITE)


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)
