"""InitProducerId: who an idempotent or transactional producer is from now on."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import fenced_code, identity, transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_FENCED_SINCE = 4


@handler(ApiKey.INIT_PRODUCER_ID, versions=(0, 6))
async def init_producer_id(
    session: Session, request: m.InitProducerIdRequest, version: int
) -> m.InitProducerIdResponse:
    # As a broker of Kafka 4.1 answers on which two-phase commit is not allowed to anybody.
    if request.enable2_pc:
        return _refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.keep_prepared_txn:
        return _refused(Code.UNSUPPORTED_VERSION)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return _refused(Code.INVALID_REQUEST)
    expected = identity(request.producer_id, request.producer_epoch) if request.producer_id >= 0 else None
    try:
        found = await transactions_of(session).init(
            request.transactional_id,
            timeout_ms=request.transaction_timeout_ms,
            expected=expected,
        )
    except WeirError as failure:
        return _refused(transaction_code(failure, fenced=fenced_code(version, _FENCED_SINCE)))
    return m.InitProducerIdResponse(producer_id=found.producer_id, producer_epoch=found.epoch)


def _refused(code: int) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
