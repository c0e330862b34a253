"""Half messages: EndTransaction (commit, rollback), their preparation, and transaction checks.

A transaction check asks a producer for the state of a half message, with RecoverOrphanedTransactionCommand on its
telemetry stream.
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
    """Commit or roll back a half message. An unspecified resolution (the producer does not know yet) has no
    effect: the broker checks again later."""
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
        raise Refused(api.Code.INVALID_TRANSACTION_ID, "the topic does not store messages")
    try:
        await found.stored.half.decide(HeldId(handle.ledger, handle.entry), decision, role=call.role)
    except (NotHeldError, HalfDecidedError) as refused:
        raise Refused(api.Code.INVALID_TRANSACTION_ID, refused.what) from None
    return api.EndTransactionResponse(status=ok())


def group_of_producers(topic: TopicName) -> str:
    """The producer group for transaction checks. RocketMQ 5 has no producer groups: any producer of the topic can
    answer a check."""
    return f"rocketmq:{topic.base}"


def preparation_of(topic: TopicName, said: Any) -> Preparation:
    recovery_ms = None
    if said.HasField("orphaned_transaction_recovery_duration"):
        recovery_ms = ms_of(said.orphaned_transaction_recovery_duration)
    return Preparation(group_of_producers(topic), recovery_ms)


class ProducerChecks:
    """Implements `HalfChecker`: sends transaction checks to one client over its telemetry stream."""

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
    """Register the producer for transaction checks of the topics in its settings."""
    if settings.HasField("publishing"):
        for resource in settings.publishing.topics:
            _register(call, client, topic_of(resource))


def may_be_asked(call: Call, topic: TopicName) -> None:
    """Register the sender of a half message for transaction checks, even if its settings lack the topic."""
    client = call.session.services.clients.find(call.client_id)
    if client is not None and topic not in client.checked:
        _register(call, client, topic)


def _register(call: Call, client: Client, topic: TopicName) -> None:
    client.checked.add(topic)
    checkers = call.session.services.broker.half_checkers
    client.ends.append(checkers.register(group_of_producers(topic), ProducerChecks(client), role=call.role))
