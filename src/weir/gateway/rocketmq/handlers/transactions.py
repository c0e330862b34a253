"""EndTransaction: a half message is committed or rolled back."""

from functools import partial
from typing import Any

from weir.gateway.rocketmq.cluster.routing import at_owner, queue_name
from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.names import topic_of
from weir.gateway.rocketmq.registry import calls
from weir.model.batch import HeldId
from weir.model.errors import HalfDecidedError, NotHeldError, WireError
from weir.model.half import Decision
from weir.model.topics import TopicName
from weir.wire.rocketmq.handles import PlaceHandle, half_of
from weir.wire.rocketmq.proto import api

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
