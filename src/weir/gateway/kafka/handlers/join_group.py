"""JoinGroup: a member comes, or comes again; answered once everyone has."""

from weir.broker.api import Joined, JoinRequest
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.grouping import group_code, groups_of, topics_said
from weir.gateway.kafka.registry import handler
from weir.model.errors import MemberIdRequiredError, WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_OWN_REBALANCE_TIMEOUT_SINCE = 1
_ID_FIRST_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_MAY_SKIP_SINCE = 9
_Member = m.JoinGroupResponse.JoinGroupResponseMember


@handler(ApiKey.JOIN_GROUP, versions=(0, 9))
async def join_group(session: Session, request: m.JoinGroupRequest, version: int) -> m.JoinGroupResponse:
    try:
        joined = await groups_of(session).join(request.group_id, _asked(session, request, version))
    except WeirError as failure:
        given = failure.member_id if isinstance(failure, MemberIdRequiredError) else request.member_id
        return m.JoinGroupResponse(
            error_code=group_code(failure),
            generation_id=-1,
            protocol_name=None if version >= _NULL_PROTOCOL_SINCE else "",
            leader="",
            member_id=given,
            members=[],
        )
    return _answer(joined)


def _asked(session: Session, request: m.JoinGroupRequest, version: int) -> JoinRequest:
    own_timeout = version >= _OWN_REBALANCE_TIMEOUT_SINCE
    rebalance_ms = request.rebalance_timeout_ms if own_timeout else request.session_timeout_ms
    return JoinRequest(
        protocol_type=request.protocol_type,
        protocols={protocol.name: bytes(protocol.metadata) for protocol in request.protocols},
        session_s=request.session_timeout_ms / 1000,
        rebalance_s=max(0, rebalance_ms) / 1000,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=session.client_id,
        client_host=session.peer.rpartition(":")[0],
        id_first=version >= _ID_FIRST_SINCE,
        may_skip=version >= _MAY_SKIP_SINCE,
        topics=topics_said(session, request.protocol_type, [protocol.metadata for protocol in request.protocols]),
    )


def _answer(joined: Joined) -> m.JoinGroupResponse:
    return m.JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip,
        member_id=joined.member_id,
        members=[
            _Member(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in joined.members
        ],
    )
