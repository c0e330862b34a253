"""Handlers of consumer groups: Join, Sync, Heartbeat, Leave, List, Describe and Delete.

The first part has what all of them share: error codes, authorization, and decoding of subscriptions and
assignments.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from weir.broker.api.groups import GroupInfo, Groups, GroupState, Joined, JoinRequest, SyncRequest
from weir.gateway.kafka.admin_requests import NOT_ASKED, Operation, bits, to_its_end
from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.errors import Code, RefusedError, code_of, text_of
from weir.gateway.kafka.metadata import Catalog
from weir.gateway.kafka.session import Session
from weir.model import errors
from weir.model.errors import InconsistentGroupProtocolError, MemberIdRequiredError, UnknownGroupError, WeirError
from weir.model.ids import Buffer
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.tasks import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import decode_assignment, decode_subscription

#: The protocol type of groups with subscriptions and assignments that `weir.wire.kafka.codec` decodes.
CONSUMER = "consumer"

#: Kafka's names of the group states.
STATES: Mapping[GroupState, str] = {
    GroupState.EMPTY: "Empty",
    GroupState.JOINING: "PreparingRebalance",
    GroupState.SYNCING: "CompletingRebalance",
    GroupState.STABLE: "Stable",
    GroupState.DEAD: "Dead",
}

#: Failures after which a client should look up the coordinator again. In produce and fetch the same failures have
#: other codes.
_LOOK_AGAIN = (
    errors.NotOwnerError,
    errors.TopicClosedError,
    errors.StreamError,
    errors.LedgerError,
    errors.StorageFullError,
    errors.BookieError,
    errors.MetaError,
)


def groups_of(session: Session) -> Groups:
    """The groups service, restricted to the client's role: the handlers use it in no other way."""
    groups = session.services.groups
    if groups is None:
        raise RefusedError(Code.COORDINATOR_NOT_AVAILABLE, "this broker does not serve consumer groups")
    return groups.of(session.role)


def group_code(failure: BaseException) -> int:
    """Kafka's code for a failed group request."""
    if isinstance(failure, _LOOK_AGAIN):
        return Code.NOT_COORDINATOR
    if isinstance(failure, errors.NotAuthorisedError):
        return Code.GROUP_AUTHORIZATION_FAILED
    return code_of(failure)


def position_code(failure: BaseException) -> int:
    """Kafka's code for a failure of one partition's committed offset."""
    return Code.NOT_COORDINATOR if isinstance(failure, _LOOK_AGAIN) else code_of(failure)


# --- authorization ------------------------------------------------------------------------------------------


async def may_use(session: Session, group: str, parts: Iterable[TopicName]) -> bool:
    try:
        await check_topics(session, group, parts)
    except errors.NotAuthorisedError:
        return False
    return True


async def check_topics(session: Session, group: str, parts: Iterable[TopicName]) -> None:
    services = session.services
    for base in dict.fromkeys(part.base for part in parts):
        if await services.registry.topics.look(base) is not None:  # a deleted topic has no grants
            services.guard.check(session.role, base, Action.CONSUME, subscription=group)


async def part_of(session: Session, group: str, name: str, index: int) -> TopicName:
    """A partition that the client may consume; NotAuthorisedError."""
    catalog = session.services.catalog
    session.services.guard.check(session.role, catalog.base(name), Action.CONSUME, subscription=group)
    return await catalog.look_part(name, index)


# --- subscriptions and assignments --------------------------------------------------------------------------


async def assigned_parts(
    session: Session, protocol_type: str | None, shares: Mapping[str, bytes]
) -> dict[str, list[TopicName]]:
    """The partitions that the leader assigned to each member, if they can be decoded; only stats use them."""
    if protocol_type not in (None, CONSUMER):
        return {}
    return {member: await _parts_in(session, share) for member, share in shares.items()}


async def _parts_in(session: Session, share: Buffer) -> list[TopicName]:
    catalog = session.services.catalog
    found: list[TopicName] = []
    try:
        for topic in decode_assignment(share).assigned_partitions:
            record = await catalog.look(topic.topic)
            found += [catalog.part_of(record, index) for index in topic.partitions]
    except errors.WeirError:
        return found
    return found


def topics_said(session: Session, protocol_type: str, protocols: Iterable[Buffer]) -> list[TopicName]:
    """The topics in a member's subscription, as far as it can be decoded."""
    if protocol_type != CONSUMER:
        return []
    found: dict[TopicName, None] = {}
    for metadata in protocols:
        try:
            for name in decode_subscription(metadata).topics:
                found[session.services.catalog.base(name)] = None
        except errors.WeirError:
            continue
    return list(found)


def subscribed_topics(info: GroupInfo) -> Sequence[str] | None:
    """The topics that the members of a group subscribe to; None if their metadata cannot be decoded."""
    if info.state is GroupState.EMPTY:
        return ()
    if info.protocol_type != CONSUMER:
        return None
    try:
        return [topic for member in info.members for topic in decode_subscription(member.metadata).topics]
    except errors.WireError:
        return None


def topics_read(catalog: Catalog, info: GroupInfo) -> Collection[TopicName] | None:
    """The same topics by their Weir names."""
    try:
        names = subscribed_topics(info)
        return None if names is None else {catalog.base(name) for name in dict.fromkeys(names)}
    except errors.WeirError:
        return None


_OWN_REBALANCE_TIMEOUT_SINCE = 1
_ID_FIRST_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_MAY_SKIP_SINCE = 9
_JoinGroupMember = m.JoinGroupResponse.JoinGroupResponseMember


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
            _JoinGroupMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in joined.members
        ],
    )


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
            raise InconsistentGroupProtocolError("SyncGroup needs a protocol type and a protocol name")
        synced = await groups_of(session).sync(request.group_id, asked)
    except WeirError as failure:
        return m.SyncGroupResponse(error_code=group_code(failure), assignment=b"")
    return m.SyncGroupResponse(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
    )


@handler(ApiKey.HEARTBEAT, versions=(0, 4))
async def heartbeat(session: Session, request: m.HeartbeatRequest, version: int) -> m.HeartbeatResponse:
    try:
        await groups_of(session).heartbeat(
            request.group_id, request.member_id, request.generation_id, request.group_instance_id
        )
    except WeirError as failure:
        return m.HeartbeatResponse(error_code=group_code(failure))
    return m.HeartbeatResponse()


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


#: The only group type that Weir supports.
_TYPE = "classic"
_ListGroupsGroup = m.ListGroupsResponse.ListedGroup


@handler(ApiKey.LIST_GROUPS, versions=(0, 5))
async def list_groups(session: Session, request: m.ListGroupsRequest, version: int) -> m.ListGroupsResponse:
    groups = groups_of(session)
    states = [state.lower() for state in request.states_filter]
    types = [kind.lower() for kind in request.types_filter]
    if types and _TYPE not in types:
        return m.ListGroupsResponse(groups=[])
    return m.ListGroupsResponse(
        groups=[
            _ListGroupsGroup(
                group_id=info.name,
                protocol_type=info.protocol_type,
                group_state=STATES[info.state],
                group_type=_TYPE,
            )
            for info in await groups.all()
            if not states or STATES[info.state].lower() in states
        ]
    )


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
        # Older versions have no error code for an unknown group: they report it as dead.
        known_code = version >= _UNKNOWN_IS_ERROR_SINCE
        code, text = (Code.GROUP_ID_NOT_FOUND, text_of(unknown)) if known_code else (Code.NONE, None)
        return _refused(name, code, text, "Dead")
    except WeirError as failure:
        return _refused(name, group_code(failure), text_of(failure), "")


def _told(info: GroupInfo) -> _Group:
    stable = info.state is GroupState.STABLE  # during a rebalance, protocol and subscriptions are about to change
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


_DeleteGroupsResult = m.DeleteGroupsResponse.DeletableGroupResult


@handler(ApiKey.DELETE_GROUPS, versions=(0, 2))
async def delete_groups(session: Session, request: m.DeleteGroupsRequest, version: int) -> m.DeleteGroupsResponse:
    results = []
    for name in dict.fromkeys(request.groups_names):
        results.append(await _delete(session, name))
        await session.turns.pause(LOOK_UP_UNITS)
    return m.DeleteGroupsResponse(results=results)


async def _delete(session: Session, name: str) -> _DeleteGroupsResult:
    try:
        await to_its_end(groups_of(session).delete(name))
    except WeirError as failure:
        return _DeleteGroupsResult(group_id=name, error_code=group_code(failure), error_message=text_of(failure))
    return _DeleteGroupsResult(group_id=name)
