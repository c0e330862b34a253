"""FLOW, ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES: a consumer's credit and answers."""

from weir.gateway.pulsar.consuming import ConsumerLink
from weir.gateway.pulsar.registry import at_once
from weir.gateway.pulsar.session import Session
from weir.gateway.pulsar.unacked import Range
from weir.gateway.pulsar.values import place_of
from weir.wire.pulsar.proto import api


@at_once(api.CommandFlow)
def flow(session: Session, command: api.CommandFlow) -> None:
    link = session.consumers.get(command.consumer_id)
    if isinstance(link, ConsumerLink):  # else it was closed, and its client will learn so
        link.flow(command.messagePermits)


@at_once(api.CommandAck)
def ack(session: Session, command: api.CommandAck) -> None:
    if session.consumers.retired(command.consumer_id) and not command.HasField("request_id"):
        return
    session.consumers.live(command.consumer_id).acking.take(command)


@at_once(api.CommandRedeliverUnacknowledgedMessages)
def redeliver(session: Session, command: api.CommandRedeliverUnacknowledgedMessages) -> None:
    link = session.consumers.get(command.consumer_id)
    if not isinstance(link, ConsumerLink):
        return
    if command.HasField("consumer_epoch"):
        link.epoch = command.consumer_epoch
    if not command.message_ids:
        link.unacked.clear()
        link.consumer.redeliver()
        return
    ranges: list[Range] = []
    for at in command.message_ids:
        ranges += link.unacked.give_back(place_of(at))
    if ranges:
        link.consumer.redeliver(ranges)
