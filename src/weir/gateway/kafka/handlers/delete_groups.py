"""DeleteGroups: groups without members go, with all of their positions."""

from weir.gateway.kafka.admin.common import to_its_end
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import text_of
from weir.gateway.kafka.grouping import group_code, groups_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Result = m.DeleteGroupsResponse.DeletableGroupResult


@handler(ApiKey.DELETE_GROUPS, versions=(0, 2))
async def delete_groups(session: Session, request: m.DeleteGroupsRequest, version: int) -> m.DeleteGroupsResponse:
    results = []
    for name in dict.fromkeys(request.groups_names):
        results.append(await _delete(session, name))
        await session.turns.pause(LOOK_UP_UNITS)
    return m.DeleteGroupsResponse(results=results)


async def _delete(session: Session, name: str) -> _Result:
    try:
        await to_its_end(groups_of(session).delete(name))
    except WeirError as failure:
        return _Result(group_id=name, error_code=group_code(failure), error_message=text_of(failure))
    return _Result(group_id=name)
