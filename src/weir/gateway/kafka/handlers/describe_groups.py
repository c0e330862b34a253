"""DescribeGroups: who is in them, and what each member was given."""

from weir.broker.api import GroupInfo, GroupState
from weir.gateway.kafka.admin.operations import NOT_ASKED, Operation, bits
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, text_of
from weir.gateway.kafka.grouping import STATES, group_code, groups_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import UnknownGroupError, WeirError
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_UNKNOWN_IS_ERROR_SINCE = 6
_ALLOWED = bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE)
_Group = m.DescribeGroupsResponse.DescribedGroup
_Member = m.DescribeGroupsResponse.DescribedGroupMember


@handler(ApiKey.DESCRIBE_GROUPS, versions=(0, 6))
async def describe_groups(
    session: Session, request: m.DescribeGroupsRequest, version: int
) -> m.DescribeGroupsResponse:
    told = []
    for name in dict.fromkeys(request.groups):
        told.append(await _describe(session, name, version))
        await session.turns.pause(LOOK_UP_UNITS)
    if request.include_authorized_operations:
        for group in told:
            group.authorized_operations = _ALLOWED if group.error_code == Code.NONE else NOT_ASKED
    return m.DescribeGroupsResponse(groups=told)


async def _describe(session: Session, name: str, version: int) -> _Group:
    try:
        return _told(await groups_of(session).describe(name))
    except UnknownGroupError as unknown:
        # Before there was a code for it here, a group that does not exist was a dead one.
        known_code = version >= _UNKNOWN_IS_ERROR_SINCE
        code, text = (Code.GROUP_ID_NOT_FOUND, text_of(unknown)) if known_code else (Code.NONE, None)
        return _refused(name, code, text, "Dead")
    except WeirError as failure:
        return _refused(name, group_code(failure), text_of(failure), "")


def _told(info: GroupInfo) -> _Group:
    stable = info.state is GroupState.STABLE  # else what they go by, and what of, is about to change
    return _Group(
        group_id=info.name,
        group_state=STATES[info.state],
        protocol_type=info.protocol_type,
        protocol_data=info.protocol if stable else "",
        members=[
            _Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=f"/{member.client_host}",
                member_metadata=member.metadata if stable else b"",
                member_assignment=member.assignment,
            )
            for member in info.members
        ],
        authorized_operations=NOT_ASKED,
    )


def _refused(name: str, code: int, text: str | None, state: str) -> _Group:
    return _Group(
        error_code=code,
        error_message=text,
        group_id=name,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=NOT_ASKED,
    )
