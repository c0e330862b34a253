"""Heartbeat: a member lives; it is told when to join again."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.grouping import group_code, groups_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey


@handler(ApiKey.HEARTBEAT, versions=(0, 4))
async def heartbeat(session: Session, request: m.HeartbeatRequest, version: int) -> m.HeartbeatResponse:
    try:
        await groups_of(session).heartbeat(
            request.group_id, request.member_id, request.generation_id, request.group_instance_id
        )
    except WeirError as failure:
        return m.HeartbeatResponse(error_code=group_code(failure))
    return m.HeartbeatResponse()
