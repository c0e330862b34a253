"""ListGroups: every group that the client may know of."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.grouping import STATES, groups_of
from weir.gateway.kafka.registry import handler
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

#: The only kind there is here.
_TYPE = "classic"
_Group = m.ListGroupsResponse.ListedGroup


@handler(ApiKey.LIST_GROUPS, versions=(0, 5))
async def list_groups(session: Session, request: m.ListGroupsRequest, version: int) -> m.ListGroupsResponse:
    groups = groups_of(session)
    states = [state.lower() for state in request.states_filter]
    types = [kind.lower() for kind in request.types_filter]
    if types and _TYPE not in types:
        return m.ListGroupsResponse(groups=[])
    return m.ListGroupsResponse(
        groups=[
            _Group(
                group_id=info.name,
                protocol_type=info.protocol_type,
                group_state=STATES[info.state],
                group_type=_TYPE,
            )
            for info in await groups.all()
            if not states or STATES[info.state].lower() in states
        ]
    )
