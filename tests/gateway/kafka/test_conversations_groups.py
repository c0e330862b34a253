"""Transcripts of consumer groups, over a real broker in simulated time: every version of every request, refusals,
and who may."""

import asyncio

import pytest

from weir.broker.security.authentication import SecuritySettings
from weir.gateway.kafka.errors import Code
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.testing.broker.group_stage import Table, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_Fetch = m.OffsetFetchRequest


# --- membership, in every version ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_every_group_and_transaction_is_this_broker(version: int) -> None:
    async def conversation(table: Table) -> None:
        member = await table.member()
        for kind in (0, 1) if version else (0,):
            request = m.FindCoordinatorRequest(key="a", key_type=kind, coordinator_keys=["a", "b"])
            answer = await member.call(ApiKey.FIND_COORDINATOR, version, request)
            found = answer.coordinators if version >= 4 else [answer]
            assert [(one.error_code, one.node_id, one.host, one.port) for one in found] == [
                (Code.NONE, 0, "server", 9092)
            ] * len(found)
            assert [one.key for one in answer.coordinators] == (["a", "b"] if version >= 4 else [])
        if version:
            request = m.FindCoordinatorRequest(key="a", key_type=2, coordinator_keys=["a"])
            answer = await member.call(ApiKey.FIND_COORDINATOR, version, request)
            refused = answer.coordinators[0] if version >= 4 else answer
            assert refused.error_code == Code.INVALID_REQUEST

    play(conversation)


@pytest.mark.parametrize("version", range(10))
def test_two_members_join_sync_beat_and_leave(version: int) -> None:
    """JoinGroup in this version, the others in versions as old."""
    sync, beat, leave = min(version, 5), min(version, 4), min(version, 5)

    async def conversation(table: Table) -> None:
        await table.topic()
        one, two = await table.member(), await table.member()
        a, b = await asyncio.gather(one.join(version), two.join(version))
        assert a.error_code == b.error_code == Code.NONE
        assert (a.generation_id, b.generation_id) == (1, 1)
        assert a.protocol_name == b.protocol_name == "range"
        leader, follower = (a, b) if a.leader == a.member_id else (b, a)
        assert leader.members[0].member_id == leader.member_id
        assert len(leader.members) == 2
        assert follower.members == []
        first, second = (one, two) if leader is a else (two, one)
        shares = {leader.member_id.replace("-", "_"): [0], follower.member_id.replace("-", "_"): [1]}
        got, also = await asyncio.gather(first.sync(leader, sync, **shares), second.sync(follower, sync))
        assert got.error_code == also.error_code == Code.NONE
        assert bytes(got.assignment) != bytes(also.assignment)
        assert await first.beat(leader, beat) == Code.NONE
        answer = await second.leave((follower.member_id, None), version=leave)
        assert answer.error_code == Code.NONE
        assert [one.error_code for one in answer.members] == ([Code.NONE] if leave >= 3 else [])
        assert await first.beat(leader, beat) == Code.REBALANCE_IN_PROGRESS
        again = await first.join(version, member_id=leader.member_id)
        assert (again.generation_id, len(again.members)) == (2, 1)
        assert await first.beat(leader, beat) == Code.ILLEGAL_GENERATION
        gone = await first.leave(("nobody", None), version=leave)
        codes = [one.error_code for one in gone.members] if leave >= 3 else [gone.error_code]
        assert codes == [Code.UNKNOWN_MEMBER_ID]

    play(conversation)


def test_static_members_are_fenced_and_removed_by_name() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        one, two = await table.member(), await table.member()
        a = await one.settle(group_instance_id="static")
        back = await two.join(group_instance_id="static")
        assert (back.generation_id, back.skip_assignment, back.leader) == (1, True, back.member_id)
        request = m.HeartbeatRequest(
            group_id="g", generation_id=1, member_id=a.member_id, group_instance_id="static"
        )
        assert (await one.call(ApiKey.HEARTBEAT, 4, request)).error_code == Code.FENCED_INSTANCE_ID
        answer = await one.leave(("", "static"), ("", "unknown"))
        assert [(m.group_instance_id, m.error_code) for m in answer.members] == [
            ("static", Code.NONE),
            ("unknown", Code.UNKNOWN_MEMBER_ID),
        ]

    play(conversation)


def test_a_member_is_told_why_it_may_not_join() -> None:
    async def conversation(table: Table) -> None:
        peer = await table.member()
        assert (await peer.join(session_timeout_ms=10)).error_code == Code.INVALID_SESSION_TIMEOUT
        assert (await peer.join(group="")).error_code == Code.INVALID_GROUP_ID
        assert (await peer.join(protocols=[])).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert (await peer.join(member_id="made-up")).error_code == Code.UNKNOWN_MEMBER_ID
        joined = await peer.settle()
        late = await table.member()
        assert (await late.join()).error_code == Code.GROUP_MAX_SIZE_REACHED
        request = m.SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=joined.member_id,
            protocol_type="connect",
            protocol_name="range",
        )
        answer = await peer.call(ApiKey.SYNC_GROUP, 5, request)
        assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert await peer.beat(joined, group="other") == Code.UNKNOWN_MEMBER_ID

    play(conversation, max_members=1)


# --- positions, in every version -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_a_member_commits(version: int) -> None:
    async def conversation(table: Table) -> None:
        topic_id = await table.topic()
        peer = await table.member()
        joined = await peer.settle()
        by_id = {"topic_id": topic_id} if version >= 10 else {}
        codes = await peer.commit({0: 5, 1: 7, 2: 1}, joined, version, **by_id)
        assert codes[:2] == [Code.NONE, Code.NONE]
        assert codes[2] == (Code.UNKNOWN_TOPIC_ID if version >= 10 else Code.UNKNOWN_TOPIC_OR_PARTITION)
        assert await peer.committed([0, 1]) == {0: 5, 1: 7}
        stale = m.JoinGroupResponse(generation_id=0, member_id=joined.member_id)
        assert await peer.commit({0: 1}, stale, version, **by_id) == [Code.ILLEGAL_GENERATION]
        assert await peer.commit({0: 1}, None, version, **by_id) == [Code.UNKNOWN_MEMBER_ID]
        unknown = {"topic_id": bytes(15) + b"x"} if version >= 10 else {"topic": "nothing"}
        (code,) = await peer.commit({0: 1}, joined, version, **unknown)
        assert code == (Code.UNKNOWN_TOPIC_ID if version >= 10 else Code.UNKNOWN_TOPIC_OR_PARTITION)
        (code,) = await peer.commit({0: 1}, joined, version, metadata="x" * 5000, **by_id)
        assert code == Code.OFFSET_METADATA_TOO_LARGE
        assert await peer.committed([0, 1]) == {0: 5, 1: 7}

    play(conversation)


@pytest.mark.parametrize("version", range(1, 11))
def test_positions_are_fetched_of_some_partitions_or_of_all(version: int) -> None:
    async def conversation(table: Table) -> None:
        topic_id = await table.topic()
        await table.topic("other", 1)
        peer = await table.member()
        assert await peer.commit({1: 7}) == [Code.NONE]  # nobody is in the group
        assert await peer.commit({0: 9}, topic="other") == [Code.NONE]
        by_id = {"topic_id": topic_id} if version >= 10 else {}
        assert await peer.committed([0, 1], version, **by_id) == {0: -1, 1: 7}
        if version >= 2:
            assert await peer.committed(None, version) == {1: 7, 0: 9}
        assert await peer.committed([0, 1], version, group="another", **by_id) == {0: -1, 1: -1}
        unknown = {"topic_id": bytes(15) + b"x"} if version >= 10 else {"topic": "nothing"}
        expected = Code.UNKNOWN_TOPIC_ID if version >= 10 else -1
        assert await peer.committed([0], version, **unknown) == {0: expected}

    play(conversation)


def test_several_groups_are_fetched_at_once_and_each_has_its_own_error() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        peer = await table.member()
        await peer.commit({0: 1}, group="a")
        await peer.commit({0: 2}, group="b", metadata=None)
        groups = [_Fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("a", "b", "", "none")]
        answer = await peer.call(ApiKey.OFFSET_FETCH, 8, _Fetch(groups=groups, require_stable=True))
        told = [
            (
                group.group_id,
                group.error_code,
                [
                    (p.committed_offset, p.metadata, p.committed_leader_epoch)
                    for t in group.topics
                    for p in t.partitions
                ],
            )
            for group in answer.groups
        ]
        assert told == [
            ("a", Code.NONE, [(1, "note", 0)]),
            ("b", Code.NONE, [(2, "", 0)]),
            ("", Code.INVALID_GROUP_ID, []),
            ("none", Code.NONE, []),
        ]
        old = _Fetch(group_id="", topics=[_Fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])])
        answer = await peer.call(ApiKey.OFFSET_FETCH, 1, old)
        assert answer.topics[0].partitions[0].error_code == Code.INVALID_GROUP_ID

    play(conversation)


def test_a_position_that_a_transaction_moves_is_unstable_for_those_who_ask() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        peer = await table.member()
        await peer.commit({0: 1})

        async def joined() -> int:
            return 1

        part = TopicName.parse("orders").at(0)
        await table.groups.offsets.prepare("g", 7, {part: CommittedOffset(2)}, join=joined)
        topics = [_Fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
        for stable, code in ((True, Code.UNSTABLE_OFFSET_COMMIT), (False, Code.NONE)):
            request = _Fetch(group_id="g", topics=topics, require_stable=stable)
            answer = await peer.call(ApiKey.OFFSET_FETCH, 7, request)
            assert answer.topics[0].partitions[0].error_code == code

    play(conversation)


# --- administration --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described(version: int) -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        peer = await table.member()
        joined = await peer.settle()
        asks = {"include_authorized_operations": True} if version >= 3 else {}
        told = await peer.described(version, **asks)
        assert (told.error_code, told.group_state, told.protocol_type, told.protocol_data) == (
            Code.NONE,
            "Stable",
            "consumer",
            "range",
        )
        (member,) = told.members
        assert (member.member_id, member.client_id) == (joined.member_id, "peer")
        assert member.client_host.startswith("/")
        assert bytes(member.member_assignment)
        assert bytes(member.member_metadata)
        if version >= 3:
            assert told.authorized_operations == 0b1_0100_1000
        missing = await peer.described(version, group="none")
        assert missing.group_state == "Dead"
        assert missing.error_code == (Code.GROUP_ID_NOT_FOUND if version >= 6 else Code.NONE)

    play(conversation)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_by_their_states_and_types(version: int) -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        peer = await table.member()
        await peer.settle()
        await peer.commit({0: 1}, group="simple")
        with_state = version >= 4
        assert await peer.groups(version) == [
            ("g", "Stable" if with_state else ""),
            ("simple", "Empty" if with_state else ""),
        ]
        if version >= 4:
            assert await peer.groups(version, states_filter=["empty"]) == [("simple", "Empty")]
            assert await peer.groups(version, states_filter=["Dead"]) == []
        if version >= 5:
            assert len(await peer.groups(version, types_filter=["Classic"])) == 2
            assert await peer.groups(version, types_filter=["consumer"]) == []

    play(conversation)


@pytest.mark.parametrize("version", range(3))
def test_groups_without_members_are_deleted(version: int) -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        peer = await table.member()
        joined = await peer.settle()
        await peer.commit({0: 1}, joined)
        assert await peer.deleted("g", "none", version=version) == [Code.NON_EMPTY_GROUP, Code.GROUP_ID_NOT_FOUND]
        await peer.leave((joined.member_id, None))
        assert await peer.deleted("g", version=version) == [Code.NONE]
        assert await peer.committed([0]) == {0: -1}
        assert await peer.groups() == []

    play(conversation)


def test_positions_are_deleted_where_no_member_reads() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await table.topic("other", 1)
        peer = await table.member()
        await peer.commit({0: 4}, topic="other")
        joined = await peer.settle()
        await peer.commit({0: 1, 1: 2}, joined)
        assert await peer.offsets_deleted([0]) == [Code.GROUP_SUBSCRIBED_TO_TOPIC]
        assert await peer.offsets_deleted([0, 3], topic="other") == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert await peer.committed([0], topic="other") == {0: -1}
        await peer.leave((joined.member_id, None))
        assert await peer.offsets_deleted([0]) == [Code.NONE]
        assert await peer.committed([0, 1]) == {0: -1, 1: 2}
        assert await peer.offsets_deleted([0], group="none") == Code.GROUP_ID_NOT_FOUND

    play(conversation)


def test_the_positions_of_a_group_that_does_not_consume_topics_are_deleted_only_when_it_is_empty() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        peer = await table.member()
        joined = await peer.join(protocol_type="connect")
        await peer.commit({0: 1}, joined)
        assert await peer.offsets_deleted([0]) == Code.NON_EMPTY_GROUP

    play(conversation)


def test_a_subscription_of_other_consumers_is_not_deleted_under_them() -> None:
    async def conversation(table: Table) -> None:
        from weir.broker.api.consumers import StartAt, SubscribeRequest

        await table.topic()
        peer = await table.member()
        await peer.commit({0: 1})
        topic = await table.broker.load(TopicName.parse("orders").at(0))
        await topic.subscribe(SubscribeRequest("r", "g", start=StartAt()))
        assert await peer.offsets_deleted([0]) == [Code.GROUP_SUBSCRIBED_TO_TOPIC]
        assert await peer.deleted("g") == [Code.NON_EMPTY_GROUP]

    play(conversation)


def test_a_gateway_without_a_coordinator_says_so() -> None:
    from weir.testing.kafka.stage import Stage
    from weir.testing.kafka.stage import play as play_plain

    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        request = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="x")
        assert (await peer.call(ApiKey.HEARTBEAT, 4, request)).error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert (
            await peer.call(ApiKey.LIST_GROUPS, 4, m.ListGroupsRequest())
        ).error_code == Code.COORDINATOR_NOT_AVAILABLE

    play_plain(conversation)


# --- who may ---------------------------------------------------------------------------------------------------


def test_a_role_uses_groups_of_what_it_may_consume_and_no_others() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await table.topic("other", 1)
        await table.registry.grants.grant(TopicName.parse("orders"), "alice", [Action.CONSUME])
        await table.registry.grants.grant(TopicName.parse("other"), "bob", [Action.CONSUME])
        alice, bob, root = [await table.member(role) for role in ("alice", "bob", "root")]
        joined = await alice.settle()
        assert await alice.commit({0: 1}, joined) == [Code.NONE]
        assert await alice.commit({0: 1}, joined, topic="other") == [Code.TOPIC_AUTHORIZATION_FAILED]
        assert await alice.committed([0], topic="other") == {0: Code.TOPIC_AUTHORIZATION_FAILED}
        # To bob the group is not there, but he cannot make one of its name.
        assert (await bob.join()).error_code == Code.GROUP_AUTHORIZATION_FAILED
        assert (await bob.described()).error_code == Code.GROUP_ID_NOT_FOUND
        assert await bob.deleted("g") == [Code.GROUP_ID_NOT_FOUND]
        left = await bob.leave(("", "static"))
        assert [member.error_code for member in left.members] == [Code.UNKNOWN_MEMBER_ID]
        assert await bob.committed([0]) == {0: Code.TOPIC_AUTHORIZATION_FAILED}
        assert await bob.committed(None) == {}
        assert await bob.offsets_deleted([0], topic="orders") != [Code.NONE]
        assert await bob.groups() == []
        for peer in (alice, root):
            assert await peer.groups() == [("g", "Stable")]
            assert (await peer.described()).error_code == Code.NONE
            assert await peer.committed(None) == {0: 1}
        # While it is empty he cannot make it his by a position of his own.
        await alice.leave((joined.member_id, None))
        assert await bob.commit({0: 1}, topic="other") == [Code.GROUP_AUTHORIZATION_FAILED]
        assert await alice.commit({1: 1}) == [Code.NONE]
        # The group's topic goes; what is left of the group keeps nobody out.
        await table.registry.grants.grant(TopicName.parse("other"), "alice", [Action.CONSUME])
        await table.broker.delete(TopicName.parse("orders"), force=True)
        assert await alice.groups() == [("g", "Empty")]
        assert await root.deleted("g") == [Code.NONE]

    play(conversation, security=SecuritySettings(authentication=True, authorisation=True, superusers=("root",)))
