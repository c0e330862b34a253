"""SyncGroup: the leader brings everyone's share, everyone gets their own."""

from weir.broker.api import SyncRequest
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.grouping import assigned_parts, group_code, groups_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import InconsistentGroupProtocolError, WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_NAMES_PROTOCOL_SINCE = 5


@handler(ApiKey.SYNC_GROUP, versions=(0, 5))
async def sync_group(session: Session, request: m.SyncGroupRequest, version: int) -> m.SyncGroupResponse:
    shares = {share.member_id: bytes(share.assignment) for share in request.assignments}
    asked = SyncRequest(
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=shares,
        parts=await assigned_parts(session, request.protocol_type, shares),
    )
    try:
        if version >= _NAMES_PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name):
            raise InconsistentGroupProtocolError("a member says which protocol it goes by")
        synced = await groups_of(session).sync(request.group_id, asked)
    except WeirError as failure:
        return m.SyncGroupResponse(error_code=group_code(failure), assignment=b"")
    return m.SyncGroupResponse(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
    )
