"""ListTransactions: the transactional ids that this broker coordinates, as far as the client may use them."""

from weir.broker.api import TransactionInfo, TransactionState
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import id_matcher, transaction_code, transactions_of
from weir.model.errors import NotAllowedError, WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_STATES = {state.value: state for state in TransactionState}
_Told = m.ListTransactionsResponse.TransactionState


@handler(ApiKey.LIST_TRANSACTIONS, versions=(0, 2))
async def list_transactions(
    session: Session, request: m.ListTransactionsRequest, version: int
) -> m.ListTransactionsResponse:
    try:
        transactions = transactions_of(session)
        matches = id_matcher(request.transactional_id_pattern)
        found = await transactions.all()
    except NotAllowedError:
        return m.ListTransactionsResponse(error_code=Code.INVALID_REGULAR_EXPRESSION)
    except WeirError as failure:
        return m.ListTransactionsResponse(error_code=transaction_code(failure))
    now_ms = session.clock.wall_ms()
    return m.ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATES],
        transaction_states=[
            _Told(transactional_id=one.id, producer_id=one.producer_id, transaction_state=one.state.value)
            for one in found
            if _wanted(one, request, now_ms) and matches(one.id)
        ],
    )


def _wanted(one: TransactionInfo, request: m.ListTransactionsRequest, now_ms: int) -> bool:
    if request.state_filters and one.state.value not in request.state_filters:
        return False
    if request.producer_id_filters and one.producer_id not in request.producer_id_filters:
        return False
    return request.duration_filter < 0 or (
        one.started_ms >= 0 and now_ms - one.started_ms > request.duration_filter
    )
