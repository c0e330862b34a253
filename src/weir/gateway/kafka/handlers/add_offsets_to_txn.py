"""AddOffsetsToTxn: a group whose positions a transaction is going to move."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.grouping import group_code, groups_of
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import fenced_code, identity, transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_FENCED_SINCE = 2


@handler(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4))
async def add_offsets_to_txn(
    session: Session, request: m.AddOffsetsToTxnRequest, version: int
) -> m.AddOffsetsToTxnResponse:
    try:
        group = await groups_of(session).kept(request.group_id)
    except WeirError as refused:
        return m.AddOffsetsToTxnResponse(error_code=group_code(refused))
    who = identity(request.producer_id, request.producer_epoch)
    try:
        await transactions_of(session).add_offsets(request.transactional_id, who, group)
    except WeirError as failure:
        code = transaction_code(failure, fenced=fenced_code(version, _FENCED_SINCE))
        return m.AddOffsetsToTxnResponse(error_code=code)
    return m.AddOffsetsToTxnResponse(error_code=Code.NONE)
