"""Shared parts of the admin APIs: authorization, request limits, timeouts, and authorized-operation bit sets."""

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

#: Topics of one request that the gateway processes concurrently before it yields.
_AT_ONCE = 16
#: Code and message for an item that a request names more than once.
NAMED_TWICE = (Code.INVALID_REQUEST, "the request names this more than once")
#: Items that one request may name.
_MOST_NAMED = 10_000


def administered(session: Session, name: str) -> TopicName:
    """The name of a topic that the client may administer; the topic need not exist. NotAuthorisedError."""
    base = session.services.catalog.base(name)
    session.services.authoriser.check_admin(session.role, base)
    return base


async def existing(session: Session, name: str) -> TopicRecord:
    """An existing topic that the client may administer. The check comes first, so that an unauthorized client does
    not learn whether the topic exists."""
    administered(session, name)
    return await session.services.catalog.look(name)


def check_cluster(session: Session) -> None:
    """Require a superuser, for operations on the whole cluster."""
    try:
        session.services.authoriser.check_superuser(session.role)
    except NotAuthorisedError as denied:
        raise RefusedError(Code.CLUSTER_AUTHORIZATION_FAILED, denied.what, hint=denied.hint) from denied


def check_count(registry: Registry, partitions: int) -> None:
    """Raise RefusedError if a topic cannot have this many partitions."""
    try:
        registry.topics.check_partitions(partitions)
    except (NotAllowedError, TooManyError) as refused:
        raise RefusedError(Code.INVALID_PARTITIONS, refused.what, hint=refused.hint) from refused


def check_assignments(session: Session, assignments: Iterable[Sequence[int]]) -> None:
    """Validate replica assignments as Kafka does: known brokers, each once, the same number for all partitions.
    They have no effect: the bundle of a partition decides its leader."""
    there = {info.node_id for info in session.services.broker.brokers()} | {session.nodes.here}
    counts = set()
    for brokers in assignments:
        if not brokers or len(set(brokers)) != len(brokers) or not there.issuperset(brokers):
            raise RefusedError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"a partition cannot be on brokers {list(brokers)[:20]}; the brokers are {sorted(there)[:20]}",
            )
        counts.add(len(brokers))
    if len(counts) > 1:
        raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, "partitions have different numbers of replicas")


def check_replication(session: Session, factor: int) -> None:
    """Check the replication factor with the message of Kafka's controller. A broker whose lease has just expired
    counts, because it may be restarting."""
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
    """Bound the items of a request, so that a short request cannot cause a huge response or block the broker."""
    if count > most:
        raise RefusedError(Code.INVALID_REQUEST, f"a request names {count} items, {most} are allowed")


def named_once(items: Sequence[T], key: Callable[[T], Hashable]) -> tuple[list[T], list[T]]:
    """Split items into those that a request names once, and one item of each key that it names more often, which
    is ambiguous."""
    check_named(len(items))
    twice = said_twice(map(key, items))
    once = [item for item in items if key(item) not in twice]
    return once, list({key(item): item for item in items if key(item) in twice}.values())


def said_twice(names: Iterable[Hashable]) -> set[Hashable]:
    """Names that occur more than once; the request is ambiguous for them and must be refused."""
    return {name for name, count in Counter(names).items() if count > 1}


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Complete the work even if the caller is cancelled, so that no change stays incomplete."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved even without a waiter
    return await asyncio.shield(task)


async def each(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], failed: Callable[[T, int, str], R], timeout_ms: int
) -> list[R]:
    """Every item's result, in order. Work that exceeds the request's timeout continues, and its result is
    REQUEST_TIMED_OUT."""
    check_named(len(items))
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000

    async def one(item: T) -> R:
        try:
            async with asyncio.timeout_at(deadline):
                return await work(item)
        except TimeoutError:
            return failed(item, Code.REQUEST_TIMED_OUT, "the request timed out; the operation continues")
        except WeirError as failure:
            return failed(item, code_of(failure), text_of(failure))

    results: list[R] = []
    for first in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*(one(item) for item in items[first : first + _AT_ONCE]))
    return results


class Operation(IntEnum):
    """Kafka's operation numbers; each is the index of its bit."""

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


#: Kafka's value for operations that the request did not include.
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
