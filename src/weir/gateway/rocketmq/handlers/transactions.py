"""EndTransaction: a half message is committed or rolled back.

Asking a producer what became of a half message: RecoverOrphanedTransactionCommand on its telemetry stream.

Preparing a half message: who is asked about it, and when first.
"""

from functools import partial
from typing import Any

from weir.broker.api.topics import HalfCheck
from weir.gateway.rocketmq.call import Call, calls
from weir.gateway.rocketmq.clients import Client
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.forwarding import at_owner, queue_name
from weir.gateway.rocketmq.names import resource_of, topic_of
from weir.model.batch import HeldId
from weir.model.errors import HalfDecidedError, NotHeldError, WireError
from weir.model.messages import Decision, Preparation
from weir.model.topics import TopicName
from weir.wire.formats.table import messages_of
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.handles import PlaceHandle, half_of
from weir.wire.rocketmq.message import outgoing_of
from weir.wire.rocketmq.proto import ms_of

_DECISIONS = {
    api.TransactionResolution.COMMIT: Decision.COMMIT,
    api.TransactionResolution.ROLLBACK: Decision.ROLL_BACK,
}


@calls("EndTransaction", api.EndTransactionRequest, api.EndTransactionResponse)
async def end_transaction(call: Call, request: Any) -> Any:
    """One that says nothing (the answer to a question that the producer cannot answer yet) decides nothing: it is
    asked again later."""
    topic = topic_of(request.topic)
    if not request.transaction_id:
        raise Refused(api.Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    try:
        handle = half_of(request.transaction_id)
    except WireError:
        raise Refused(api.Code.INVALID_TRANSACTION_ID, "transaction id is invalid") from None
    decision = _DECISIONS.get(request.resolution)
    if decision is None:
        return api.EndTransactionResponse(status=ok())
    queue = await queue_name(call, topic, handle.partition, create=False)
    return await at_owner(call, queue, request, partial(_decided, call, queue, handle, decision))


async def _decided(call: Call, queue: TopicName, handle: PlaceHandle, decision: Decision) -> Any:
    found = await call.session.services.broker.topic(queue, role=call.role, create=False)
    if found.stored is None:
        raise Refused(api.Code.INVALID_TRANSACTION_ID, "the topic keeps no messages")
    try:
        await found.stored.half.decide(HeldId(handle.ledger, handle.entry), decision, role=call.role)
    except (NotHeldError, HalfDecidedError) as refused:
        raise Refused(api.Code.INVALID_TRANSACTION_ID, refused.what) from None
    return api.EndTransactionResponse(status=ok())


def group_of_producers(topic: TopicName) -> str:
    """RocketMQ 5 knows no groups of producers: whoever publishes to a topic can be asked."""
    return f"rocketmq:{topic.base}"


def preparation_of(topic: TopicName, said: Any) -> Preparation:
    recovery_ms = None
    if said.HasField("orphaned_transaction_recovery_duration"):
        recovery_ms = ms_of(said.orphaned_transaction_recovery_duration)
    return Preparation(group_of_producers(topic), recovery_ms)


class ProducerChecks:
    """Fills `HalfChecker`: one client, asked over its stream."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def check_half(self, check: HalfCheck) -> bool:
        topic, held = check.topic, check.message.id
        partition = topic.partition or 0
        message = outgoing_of(messages_of(check.batch)[0], resource_of(topic), partition=partition, offset=0)
        handle = PlaceHandle(partition, held.ledger, held.entry, message.system_properties.message_id)
        command = api.RecoverOrphanedTransactionCommand(message=message, transaction_id=handle.encode_half())
        return self._client.tell(api.TelemetryCommand(recover_orphaned_transaction_command=command))


def register_checks(call: Call, client: Client, settings: Any) -> None:
    """The producer can be asked about the half messages of the topics that it publishes to."""
    if settings.HasField("publishing"):
        for resource in settings.publishing.topics:
            _register(call, client, topic_of(resource))


def may_be_asked(call: Call, topic: TopicName) -> None:
    """Who sends a half message can be asked about it, whether it has told before that it would."""
    client = call.session.services.clients.find(call.client_id)
    if client is not None and topic not in client.checked:
        _register(call, client, topic)


def _register(call: Call, client: Client, topic: TopicName) -> None:
    client.checked.add(topic)
    checkers = call.session.services.broker.half_checkers
    client.ends.append(checkers.register(group_of_producers(topic), ProducerChecks(client), role=call.role))
