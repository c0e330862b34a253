"""EndTxn: commit a transaction, or abort it."""

from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.session import Session
from weir.gateway.kafka.transacting import fenced_code, identity, transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_FENCED_SINCE = 2


# Version 5 is for clients of transactions version 2, which begin a new epoch with each transaction. They are told
# by ApiVersions that it is not in force here, and send what others send.
@handler(ApiKey.END_TXN, versions=(0, 4))
async def end_txn(session: Session, request: m.EndTxnRequest, version: int) -> m.EndTxnResponse:
    who = identity(request.producer_id, request.producer_epoch)
    try:
        await transactions_of(session).end(
            request.transactional_id, who, commit=request.committed, role=session.role
        )
    except WeirError as failure:
        code = transaction_code(failure, fenced=fenced_code(version, _FENCED_SINCE))
        return m.EndTxnResponse(error_code=code)
    return m.EndTxnResponse(error_code=Code.NONE)
