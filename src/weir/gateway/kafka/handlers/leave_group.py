"""LeaveGroup: members go, by themselves or sent by an administrator."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.grouping import group_code, groups_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_SEVERAL_SINCE = 3
_Result = m.LeaveGroupResponse.MemberResponse


@handler(ApiKey.LEAVE_GROUP, versions=(0, 5))
async def leave_group(session: Session, request: m.LeaveGroupRequest, version: int) -> m.LeaveGroupResponse:
    several = version >= _SEVERAL_SINCE
    leaving = (
        [(member.member_id, member.group_instance_id) for member in request.members]
        if several
        else [(request.member_id, None)]
    )
    try:
        results = await groups_of(session).leave(request.group_id, leaving)
    except WeirError as failure:
        return m.LeaveGroupResponse(error_code=group_code(failure))
    codes = [Code.NONE if failure is None else group_code(failure) for failure in results]
    if not several:
        return m.LeaveGroupResponse(error_code=codes[0])
    return m.LeaveGroupResponse(
        members=[
            _Result(member_id=member_id, group_instance_id=instance_id, error_code=code)
            for (member_id, instance_id), code in zip(leaving, codes, strict=True)
        ]
    )
