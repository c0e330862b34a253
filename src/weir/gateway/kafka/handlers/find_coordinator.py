"""FindCoordinator: the broker to ask for a group, or for a transactional id."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, text_of
from weir.gateway.kafka.grouping import group_code, groups_of
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_SEVERAL_SINCE = 4
_GROUP, _TRANSACTION = 0, 1
_Found = m.FindCoordinatorResponse.Coordinator


@handler(ApiKey.FIND_COORDINATOR, versions=(0, 6))
async def find_coordinator(
    session: Session, request: m.FindCoordinatorRequest, version: int
) -> m.FindCoordinatorResponse:
    keys = request.coordinator_keys if version >= _SEVERAL_SINCE else [request.key]
    found = []
    for key in keys:
        found.append(await _find(session, request.key_type, key))
        await session.turns.pause(LOOK_UP_UNITS)
    if version >= _SEVERAL_SINCE:
        return m.FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return m.FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(session: Session, key_type: int, key: str) -> _Found:
    if key_type not in (_GROUP, _TRANSACTION):
        return _refused(key, Code.INVALID_REQUEST, "only groups and transactions have coordinators here")
    try:
        has_transactions = session.services.transactions is not None  # both are in one place
        transactional = key_type == _TRANSACTION and has_transactions
        coordinator = transactions_of(session) if transactional else groups_of(session)
        node = session.nodes.of(await coordinator.owner(key))
    except WeirError as failure:
        code = group_code(failure) if key_type == _GROUP else transaction_code(failure)
        return _refused(key, code, text_of(failure))
    if node is None:
        return _refused(key, Code.COORDINATOR_NOT_AVAILABLE, "its broker has no listener like this one")
    return _Found(key=key, node_id=node.node_id, host=node.host, port=node.port)


def _refused(key: str, code: int, text: str) -> _Found:
    return _Found(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text)
