"""What the handlers of consumer groups have in common: who may, what is said when not, what consumers say."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from weir.broker.api import GroupInfo, Groups, GroupState
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError, code_of
from weir.model import errors
from weir.model.ids import Buffer
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.kafka.consumer import decode_assignment, decode_subscription

#: The protocol type of groups whose members say and are given what `weir.wire.kafka.consumer` reads.
CONSUMER = "consumer"

#: In Kafka's words.
STATES: Mapping[GroupState, str] = {
    GroupState.EMPTY: "Empty",
    GroupState.JOINING: "PreparingRebalance",
    GroupState.SYNCING: "CompletingRebalance",
    GroupState.STABLE: "Stable",
    GroupState.DEAD: "Dead",
}

#: What clients meet by looking for the coordinator again. What another broker has, or what could not be stored,
#: has other codes where messages are produced and fetched.
_LOOK_AGAIN = (
    errors.NotOwnerError,
    errors.TopicClosedError,
    errors.StreamError,
    errors.LedgerError,
    errors.StorageFullError,
    errors.BookieError,
    errors.MetaError,
)


def groups_of(session: Session) -> Groups:
    """Groups as the client's role may use them: there is no other way to them from here."""
    groups = session.services.groups
    if groups is None:
        raise RefusedError(Code.COORDINATOR_NOT_AVAILABLE, "consumer groups are not served here")
    return groups.of(session.role)


def group_code(failure: BaseException) -> int:
    """Kafka's code for what went wrong with a group."""
    if isinstance(failure, _LOOK_AGAIN):
        return Code.NOT_COORDINATOR
    if isinstance(failure, errors.NotAuthorisedError):
        return Code.GROUP_AUTHORIZATION_FAILED
    return code_of(failure)


def position_code(failure: BaseException) -> int:
    """Of what went wrong with a position on one partition."""
    return Code.NOT_COORDINATOR if isinstance(failure, _LOOK_AGAIN) else code_of(failure)


# --- who may ------------------------------------------------------------------------------------------------


async def may_use(session: Session, group: str, parts: Iterable[TopicName]) -> bool:
    try:
        await check_topics(session, group, parts)
    except errors.NotAuthorisedError:
        return False
    return True


async def check_topics(session: Session, group: str, parts: Iterable[TopicName]) -> None:
    services = session.services
    for base in dict.fromkeys(part.base for part in parts):
        if await services.registry.topics.look(base) is not None:  # of those deleted since, no grants are left
            services.guard.check(session.role, base, Action.CONSUME, subscription=group)


async def part_of(session: Session, group: str, name: str, index: int) -> TopicName:
    """A partition, if the client may consume it."""
    catalog = session.services.catalog
    session.services.guard.check(session.role, catalog.base(name), Action.CONSUME, subscription=group)
    return await catalog.look_part(name, index)


# --- what consumers say -------------------------------------------------------------------------------------


async def assigned_parts(
    session: Session, protocol_type: str | None, shares: Mapping[str, bytes]
) -> dict[str, list[TopicName]]:
    """Which partitions a leader gave to whom, as far as that can be read: only stats depend on it."""
    if protocol_type not in (None, CONSUMER):
        return {}
    return {member: await _parts_in(session, share) for member, share in shares.items()}


async def _parts_in(session: Session, share: Buffer) -> list[TopicName]:
    catalog = session.services.catalog
    found: list[TopicName] = []
    try:
        for topic in decode_assignment(share).assigned_partitions:
            record = await catalog.look(topic.topic)
            found += [catalog.part_of(record, index) for index in topic.partitions]
    except errors.WeirError:
        return found
    return found


def topics_said(session: Session, protocol_type: str, protocols: Iterable[Buffer]) -> list[TopicName]:
    """Which topics a member says that it reads, as far as that can be read."""
    if protocol_type != CONSUMER:
        return []
    found: dict[TopicName, None] = {}
    for metadata in protocols:
        try:
            for name in decode_subscription(metadata).topics:
                found[session.services.catalog.base(name)] = None
        except errors.WeirError:
            continue
    return list(found)


def subscribed_topics(info: GroupInfo) -> Sequence[str] | None:
    """The topics that members of a group read; None if that cannot be told."""
    if info.state is GroupState.EMPTY:
        return ()
    if info.protocol_type != CONSUMER:
        return None
    try:
        return [topic for member in info.members for topic in decode_subscription(member.metadata).topics]
    except errors.WireError:
        return None


def topics_read(catalog: Catalog, info: GroupInfo) -> Collection[TopicName] | None:
    """The same, as they are called here."""
    try:
        names = subscribed_topics(info)
        return None if names is None else {catalog.base(name) for name in dict.fromkeys(names)}
    except errors.WeirError:
        return None
