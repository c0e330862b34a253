"""Bodies of clusters, tenants, namespaces, topics and lookups, with Pulsar's field names.

Lists of topics as answers: read in pages, and cut into pages if the caller says so.

Names in paths, and the refusals that calls about them share.

Properties of namespaces, topics and subscriptions: bounded, as they live in the metadata.

Those of namespaces and topics whose names begin with `weir.` are the broker's own (how a queue was declared, and
policies of queues): they are neither shown nor changed here.

Message ids of the admin API and offsets, both ways.

Deleting topics and namespaces, with everything that belongs to them.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from weir.admin.context import AdminContext
from weir.broker.api.topics import Position, Topic
from weir.model.batch import Batch
from weir.model.errors import InvalidNameError, TopicNotFoundError
from weir.model.topics import Domain, NamespaceName, TopicName, check_entity_name
from weir.rest.http import Response
from weir.rest.responses import MAX_ANSWER_BYTES
from weir.rest.routes import Int, Long, Positive, Query, RefusedError

V2 = "/admin/v2"
NAMESPACE = f"{V2}/namespaces/{{tenant}}/{{namespace}}"

BAD_NAME = {412: "not a valid name, or not possible"}
ABOUT_TENANT = {404: "no such tenant", **BAD_NAME}
ABOUT_NAMESPACE = {404: "no such tenant or namespace", **BAD_NAME}
ABOUT_TOPIC = {307: "another broker has the topic", 404: "no such namespace, topic or subscription", **BAD_NAME}
ABOUT_ONE_TOPIC = {405: "not of a partitioned topic; name its partitions", **ABOUT_TOPIC}
CONFLICT = {409: "exists, is not empty, or was changed at the same time"}

_MAX_SUBSCRIPTION_CHARS = 1024


def topic_path(domain: Domain) -> str:
    return f"{V2}/{domain.value}/{{tenant}}/{{namespace}}/{{topic}}"


def tenant_of(path: Mapping[str, Any]) -> str:
    return check_entity_name(path["tenant"], "tenant")


def namespace_of(path: Mapping[str, Any]) -> NamespaceName:
    """InvalidNameError if the path names none."""
    return NamespaceName(tenant_of(path), check_entity_name(path["namespace"], "namespace"))


def topic_of(path: Mapping[str, Any], domain: Domain = Domain.PERSISTENT) -> TopicName:
    """InvalidNameError if the path names none."""
    return TopicName.parse(f"{domain.value}://{namespace_of(path)}/{path['topic']}")


def subscription_of(path: Mapping[str, Any]) -> str:
    name: str = path["subscription"]
    if len(name) > _MAX_SUBSCRIPTION_CHARS or any(c < " " or c == "\x7f" for c in name):
        raise InvalidNameError(f"{name[:80]!r} is not a subscription name", hint="leave control characters out")
    return name


_MAX_COUNT = 1_000
_MAX_CHARS = 64 * 1024
_OWN = "weir."


def bounded(properties: Mapping[str, str] | None) -> dict[str, str]:
    """The same; 412 if they are too many or too long."""
    found = dict(properties or {})
    if len(found) > _MAX_COUNT:
        raise RefusedError(412, f"there can be {_MAX_COUNT} properties at the most, not {len(found)}")
    if sum(len(name) + len(value) for name, value in found.items()) > _MAX_CHARS:
        raise RefusedError(412, f"properties have {_MAX_CHARS} characters at the most, all together")
    return found


def users_own(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that are not the broker's."""
    return {name: value for name, value in properties.items() if not name.startswith(_OWN)}


def brokers_own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(_OWN)}


def given(properties: Mapping[str, str] | None) -> dict[str, str]:
    """What a user says; 412 if it is too much, or if one is the broker's."""
    own = next(iter(brokers_own(properties or {})), None)
    if own is not None:
        raise RefusedError(412, f"property {own[:80]!r} is the broker's own", hint=f"use a name without {_OWN!r}")
    return bounded(properties)


ActionName = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
Permissions = dict[str, list[ActionName]]
Properties = dict[str, str]


class ClusterData(Struct):
    serviceUrl: str | None = None
    serviceUrlTls: str | None = None
    brokerServiceUrl: str | None = None
    brokerServiceUrlTls: str | None = None


class TenantInfo(Struct):
    adminRoles: list[str] = field(default_factory=list)
    allowedClusters: list[str] = field(default_factory=list)


class PartitionedTopicMetadata(Struct):
    partitions: Int
    properties: Properties | None = None


class MessageIdBody(Struct):
    """A message's place; the largest numbers stand for the end, -1 for the beginning."""

    ledgerId: Long
    entryId: Long
    partitionIndex: Int = -1
    batchIndex: Int = -1


class ResetCursorData(Struct):
    """A place to move to. `isExcluded`: right after it."""

    ledgerId: Long = 2**63 - 1
    entryId: Long = 2**63 - 1
    partitionIndex: Int = -1
    batchIndex: Int = -1
    isExcluded: bool = False
    properties: Properties | None = None


class LongRunningProcessStatus(Struct):
    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    lastError: str = ""


class LookupData(Struct):
    brokerUrl: str | None = None
    brokerUrlTls: str | None = None
    httpUrl: str | None = None
    httpUrlTls: str | None = None
    nativeUrl: str | None = None


class BundlesData(Struct):
    """Ranges of a namespace's topics by the hash of their names; for a new namespace the number is enough."""

    boundaries: list[str] = field(default_factory=list)
    numBundles: Int = 0


class BrokerInfoBody(Struct):
    brokerId: str
    serviceUrl: str


class InstanceBody(Struct):
    """Tells one start of a server from every other."""

    instance: str


class OwnershipStatus(Struct):
    """Of a bundle that a broker has."""

    broker_assignment: Literal["primary", "secondary", "shared"] = "shared"
    is_controlled: bool = False
    is_active: bool = True


class HeldMessage(Struct):
    """A batch that waits for its moment. `due`: milliseconds since 1970, null: until a decision."""

    id: str
    due: int | None
    messages: int
    bytes: int


class HeldPage(Struct):
    """`next`: what to give as `after` for the following ones; null at the end."""

    held: list[HeldMessage]
    next: str | None = None


class HeldCountBody(Struct):
    batches: int
    messages: int


#: Weir's own, beside Pulsar's parameters.
PAGE_QUERY = (
    Query("limit", Positive, "at most about so many: the page ends with the topic that makes it as long"),
    Query("after", str, "only topics that come after this one: the last of the page before"),
)


def after_of(query: Mapping[str, Any]) -> TopicName | None:
    """The topic that a page begins after; InvalidNameError."""
    return TopicName.parse(query["after"]).base if query["after"] else None


async def names_answer(
    pages: AsyncIterator[list[TopicName]],
    query: Mapping[str, Any],
    takes: Callable[[TopicName], bool] = lambda name: True,
) -> Response:
    """The names as JSON, written as they are read."""
    limit = query["limit"]
    parts: list[bytes] = []
    size = found = 0
    async for page in pages:
        names = [str(name) for name in page if takes(name)]
        if limit is not None and found + len(names) > limit:
            names = _cut(page, takes, limit - found)
        found += len(names)
        if names:
            parts.append(msgspec.json.encode(names)[1:-1])
            size += len(parts[-1]) + 1
        if size > MAX_ANSWER_BYTES:
            raise RefusedError(
                413,
                f"the answer has more than {MAX_ANSWER_BYTES} bytes",
                hint="ask for pages, with limit and after",
            )
        if limit is not None and found >= limit:
            break
    return Response(200, b"[" + b",".join(parts) + b"]")


def _cut(page: list[TopicName], takes: Callable[[TopicName], bool], limit: int) -> list[str]:
    """The first names, up to the last partition of the topic that makes them as many."""
    names: list[str] = []
    last: TopicName | None = None
    for name in page:
        if len(names) >= limit and name.base != last:
            break
        if takes(name):
            names.append(str(name))
            last = name.base
    return names


async def delete_topic(context: AdminContext, name: TopicName, *, force: bool) -> None:
    """With its messages, subscriptions, grants and schemas."""
    await context.broker.delete(name, force=force)


async def delete_namespace(context: AdminContext, name: NamespaceName, *, force: bool) -> None:
    """NotEmptyError if it has topics, unless forced."""
    context.registry.namespaces.get(name)
    if force:
        async for record in context.registry.topics.of(name):
            try:
                await delete_topic(context, record.name, force=True)
            except TopicNotFoundError:
                continue  # somebody else was faster
    await context.registry.delete_namespace(name)


async def offset_at(topic: Topic, at: ResetCursorData, *, after: bool = False) -> int:
    """The offset of a message, or of the one after it if the id says so, or `after` does."""
    base = topic.offset_of(at.ledgerId, at.entryId)
    if at.ledgerId < 0:
        return base
    if at.batchIndex >= 0:
        base = min(base + at.batchIndex, topic.end_offset)
    if not (at.isExcluded or after) or base >= topic.end_offset:
        return base
    if at.batchIndex >= 0:
        return base + 1
    batch = await batch_at(topic, base)
    return base if batch is None else batch.end_offset


async def batch_at(topic: Topic, offset: int) -> Batch | None:
    """The batch that holds an offset; None if there is none."""
    if not topic.start_offset <= offset < topic.end_offset:
        return None
    found = await topic.read(offset, 1)
    return found[0] if found else None


def id_body(topic: Topic, position: Position) -> MessageIdBody:
    partition = -1 if topic.name.partition is None else topic.name.partition
    return MessageIdBody(position.ledger, position.entry, partition, position.batch_index)


def id_at(topic: Topic, offset: int) -> MessageIdBody:
    """Of an offset; of the end: where the next message will be."""
    return id_body(topic, Position(*topic.position_of(offset)))
