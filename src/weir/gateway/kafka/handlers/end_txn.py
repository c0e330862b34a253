"""EndTxn: commit a transaction, or abort it. Since version 5 with a new epoch or producer id for the next one."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import fenced_code, identity, transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_FENCED_SINCE = 2
_EPOCH_SINCE = 5


@handler(ApiKey.END_TXN, versions=(0, 5))
async def end_txn(session: Session, request: m.EndTxnRequest, version: int) -> m.EndTxnResponse:
    transactions, name = transactions_of(session), request.transactional_id
    who = identity(request.producer_id, request.producer_epoch)
    try:
        if version >= _EPOCH_SINCE:
            found = await transactions.end_epoch(name, who, commit=request.committed)
            return m.EndTxnResponse(producer_id=found.producer_id, producer_epoch=found.epoch)
        await transactions.end(name, who, commit=request.committed)
    except WeirError as failure:
        code = transaction_code(failure, fenced=fenced_code(version, _FENCED_SINCE))
        return m.EndTxnResponse(error_code=code)
    return m.EndTxnResponse(error_code=Code.NONE)
