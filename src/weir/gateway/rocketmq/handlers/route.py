"""Routes of topics: QueryRoute and QueryAssignment."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from weir.broker.api.broker import Owner
from weir.gateway.rocketmq.call import Call, calls
from weir.gateway.rocketmq.errors import ok
from weir.gateway.rocketmq.message_validation import ALL, NEW_TYPES, accepted_types
from weir.gateway.rocketmq.names import group_of, topic_of
from weir.model.topics import TopicName
from weir.wire.rocketmq import rocketmq_pb2 as api

#: Queue ID that stands for all queues of a broker.
ANY_QUEUE = -1


@calls("QueryRoute", api.QueryRouteRequest, api.QueryRouteResponse)
async def query_route(call: Call, request: Any) -> Any:
    topic = topic_of(request.topic)
    response = api.QueryRouteResponse(status=ok())
    types = await _types(call, topic)
    for number, owner in enumerate(await _owners(call, topic)):
        _fill(response.message_queues.add(), request.topic, number, types)
        _place(call, response.message_queues[-1], owner)
    return response


@calls("QueryAssignment", api.QueryAssignmentRequest, api.QueryAssignmentResponse)
async def query_assignment(call: Call, request: Any) -> Any:
    """Assign every broker with queues of the topic to every consumer. A receive gets ready messages of all queues
    of a broker, so queues are not divided between consumers."""
    topic = topic_of(request.topic)
    group_of(request.group)
    response = api.QueryAssignmentResponse(status=ok())
    told: set[tuple[str, int]] = set()
    types = await _types(call, topic)
    for owner in await _owners(call, topic):
        address = _address(call, owner)
        if address not in told:
            told.add(address)
            queue = response.assignments.add().message_queue
            _fill(queue, request.topic, ANY_QUEUE, types)
            _place(call, queue, owner)
    return response


async def _owners(call: Call, topic: TopicName) -> Sequence[Owner]:
    """The owner of each queue; creates the topic if policy allows it."""
    broker = call.session.services.broker
    partitions = await broker.partitions(topic, role=call.role)
    if not partitions:
        return [await broker.owner(topic, role=call.role)]
    return broker.owners_now(topic, range(partitions))


async def _types(call: Call, topic: TopicName) -> Sequence[int]:
    await call.session.services.broker.partitions(topic, role=call.role)
    types = accepted_types(await call.session.services.registry.topics.look(topic))
    if types is not ALL or call.knows_new_types:
        return types
    return [kind for kind in ALL if kind not in NEW_TYPES]


def _fill(queue: Any, topic: Any, number: int, types: Sequence[int]) -> None:
    queue.topic.CopyFrom(topic)
    queue.id = number
    queue.permission = api.Permission.READ_WRITE
    queue.accept_message_types.extend(types)


def _place(call: Call, queue: Any, owner: Owner) -> None:
    queue.broker.name = owner.broker_id or call.session.services.broker_name
    host, port = _address(call, owner)
    queue.broker.endpoints.scheme = _scheme(host)
    queue.broker.endpoints.addresses.add(host=host, port=port)


def _address(call: Call, owner: Owner) -> tuple[str, int]:
    """The address of the broker's listener with the same name as the client's."""
    if not owner.here:
        url = owner.url(call.session.settings.name)
        host, colon, port = url.rpartition(":")
        if colon and port.isdigit():
            return host.strip("[]"), int(port)
    return call.session.advertised


def _scheme(host: str) -> Any:
    try:
        return api.AddressScheme.IPv4 if ip_address(host).version == 4 else api.AddressScheme.IPv6
    except ValueError:
        return api.AddressScheme.DOMAIN_NAME
