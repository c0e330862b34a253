"""EndTransaction: a half message is committed or rolled back."""

from typing import Any

from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.names import topic_of
from weir.gateway.rocketmq.registry import calls
from weir.model.batch import HeldId
from weir.model.errors import HalfDecidedError, NotHeldError, WireError
from weir.model.half import Decision
from weir.wire.rocketmq.handles import half_of
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
    broker = call.session.services.broker
    partitions = await broker.partitions(topic, role=call.role, create=False)
    found = await broker.topic(topic.at(handle.partition) if partitions else topic, role=call.role, create=False)
    if found.stored is None:
        raise Refused(api.Code.INVALID_TRANSACTION_ID, "the topic keeps no messages")
    try:
        await found.stored.half.decide(HeldId(handle.ledger, handle.entry), decision, role=call.role)
    except (NotHeldError, HalfDecidedError) as refused:
        raise Refused(api.Code.INVALID_TRANSACTION_ID, refused.what) from None
    return api.EndTransactionResponse(status=ok())
