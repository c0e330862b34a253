"""FLOW, ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES: a consumer's credit and answers."""

from weir.gateway.pulsar.consuming import ConsumerLink
from weir.gateway.pulsar.registry import at_once
from weir.gateway.pulsar.session import Session
from weir.gateway.pulsar.unacked import Range
from weir.gateway.pulsar.values import place_of
from weir.runtime.turns import UNIT_ELEMENTS, UNITS, Work
from weir.wire.pulsar.proto import api

#: Ids, or ranges of offsets, between two looks at whether the turn is over.
_AT_A_TIME = 512


@at_once(api.CommandFlow)
def flow(session: Session, command: api.CommandFlow) -> None:
    link = session.consumers.get(command.consumer_id)
    if isinstance(link, ConsumerLink):  # else it was closed, and its client will learn so
        link.flow(command.messagePermits)


@at_once(api.CommandAck)
def ack(session: Session, command: api.CommandAck) -> Work | None:
    if session.consumers.retired(command.consumer_id) and not command.HasField("request_id"):
        return None
    return session.consumers.live(command.consumer_id).acking.take(command)


@at_once(api.CommandRedeliverUnacknowledgedMessages)
def redeliver(session: Session, command: api.CommandRedeliverUnacknowledgedMessages) -> Work | None:
    link = session.consumers.get(command.consumer_id)
    if not isinstance(link, ConsumerLink):
        return None
    if command.HasField("consumer_epoch"):
        link.epoch = command.consumer_epoch
    if command.message_ids:
        return _redeliver(link, command)
    link.unacked.clear()
    link.consumer.redeliver()
    return None


def _redeliver(link: ConsumerLink, command: api.CommandRedeliverUnacknowledgedMessages) -> Work:
    ranges: list[Range] = []
    for number, at in enumerate(command.message_ids, 1):
        ranges += link.unacked.give_back(place_of(at))
        if not number % _AT_A_TIME:
            yield _AT_A_TIME // UNIT_ELEMENTS
    if link.alone:  # in order, everything is delivered again, whichever messages are named
        del ranges[1:]
    for start in range(0, len(ranges), _AT_A_TIME):
        if link.over:
            return
        link.consumer.redeliver(ranges[start : start + _AT_A_TIME])
        yield UNITS  # what came back goes out again: much more than giving it back
