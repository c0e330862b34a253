"""Handlers of PRODUCER, SEND and CLOSE_PRODUCER."""

import asyncio

from weir.broker.api.producers import AccessMode, Producer, ProducerRequest
from weir.gateway.pulsar.command_table import at_once, later
from weir.gateway.pulsar.errors import pairs, schema_from_wire
from weir.gateway.pulsar.links import Opening
from weir.gateway.pulsar.producers import ProducerLink
from weir.gateway.pulsar.session import Session
from weir.model.errors import (
    ProducerClosedError,
    StreamBusyError,
    StreamTerminatedError,
)
from weir.model.topics import TopicName
from weir.runtime.tasks import OPEN_UNITS
from weir.wire.pulsar import pulsar_api_pb2 as api

_ACCESS = {
    api.Shared: AccessMode.SHARED,
    api.Exclusive: AccessMode.EXCLUSIVE,
    api.WaitForExclusive: AccessMode.WAIT_FOR_EXCLUSIVE,
    api.ExclusiveWithFencing: AccessMode.EXCLUSIVE_WITH_FENCING,
}


@later(api.CommandProducer)
async def producer(session: Session, command: api.CommandProducer) -> api.CommandProducerSuccess | None:
    there = session.producers.get(command.producer_id)
    if isinstance(there, Opening):
        raise StreamBusyError(f"the creation of producer {command.producer_id} is in progress")
    if there is not None:  # the client missed the response and repeats the request
        return _success(command, there.producer)
    opening = session.producers.begin(command.producer_id)
    try:
        made = await _produce(session, command)
    except BaseException:
        session.producers.end(command.producer_id, opening)
        raise
    link = ProducerLink(session, command.producer_id, TopicName.parse(command.topic), made)
    if not session.producers.put(command.producer_id, opening, link):
        session.producers.end(command.producer_id, opening)
        await made.close()
        raise ProducerClosedError("the client closed the producer during its creation")
    session.tasks.spawn(link.follow(), "follow")
    return await _when_ready(session, command, link)


async def _produce(session: Session, command: api.CommandProducer) -> Producer:
    topic = await session.broker.topic(TopicName.parse(command.topic), role=session.role)
    await session.turns.pause(OPEN_UNITS)  # thousands may have waited for the topic
    if topic.terminated:  # otherwise the client would send, fail, reconnect and resend in an endless loop
        raise StreamTerminatedError(f"{topic.name} is terminated")
    return await topic.produce(
        ProducerRequest(
            role=session.role,
            name=command.producer_name or None,
            access=_ACCESS[command.producer_access_mode],
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
            schema=schema_from_wire(command.schema) if command.HasField("schema") else None,
            encrypted=command.encrypted,
            properties=pairs(command.metadata),
            initial_subscription=command.initial_subscription_name or None,
            address=session.peer,
            client_version=session.client_version,
            name_is_given=bool(command.producer_name) and command.user_provided_producer_name,
        )
    )


async def _when_ready(
    session: Session, command: api.CommandProducer, link: ProducerLink
) -> api.CommandProducerSuccess | None:
    """Respond at once if the producer must wait for exclusive access, and again when it gets it."""
    waiting = asyncio.ensure_future(link.producer.wait_admitted())
    try:
        await asyncio.wait([waiting], timeout=0)
        if not waiting.done():
            session.answer(_success(command, link.producer, ready=False))
        await waiting
    except BaseException:
        waiting.cancel()
        if session.producers.end(command.producer_id, link):
            await link.close()
        raise
    if session.producers.get(command.producer_id) is not link:
        return None  # closed meanwhile; the client was notified
    link.ready = True
    return _success(command, link.producer)


def _success(command: api.CommandProducer, made: Producer, *, ready: bool = True) -> api.CommandProducerSuccess:
    return api.CommandProducerSuccess(
        request_id=command.request_id,
        producer_name=made.name,
        last_sequence_id=made.last_sequence,
        schema_version=made.schema_version,
        topic_epoch=made.topic_epoch,
        producer_ready=ready,
    )


@at_once(api.CommandSend)
def send(session: Session, command: api.CommandSend, message: memoryview) -> None:
    if session.producers.retired(command.producer_id):
        return  # sent before the client got CLOSE_PRODUCER; it resends after the reconnect
    sender = session.sender = session.producers.live(command.producer_id)
    sender.send(command, message)


@later(api.CommandCloseProducer)
async def close_producer(session: Session, command: api.CommandCloseProducer) -> api.CommandSuccess:
    link = session.producers.get(command.producer_id)
    if isinstance(link, Opening):
        link.abandoned = True
        session.producers.end(command.producer_id, link)
    elif link is not None:
        await link.settled()
        if session.producers.end(command.producer_id, link):
            await link.close()
    return api.CommandSuccess(request_id=command.request_id)
