"""Whose groups and transactional ids are: no stranger takes, sees, kicks or blocks one (adr/0023)."""

from collections.abc import Callable, Coroutine
from typing import Any

from weir.broker.api.groups import JoinRequest
from weir.broker.security.authentication import SecuritySettings
from weir.gateway.kafka.errors import Code
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.testing.broker.group_stage import Member, Table
from weir.testing.broker.group_stage import play as play_groups
from weir.testing.kafka.transaction_stage import SECURE, Stage, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

ORDERS = TopicName.parse("orders")
BOTH = (Action.PRODUCE, Action.CONSUME)


def guarded(conversation: Callable[[Table], Coroutine[Any, Any, None]], **settings: Any) -> None:
    security = SecuritySettings(authentication=True, authorisation=True, superusers=("root",))
    play_groups(conversation, security=security, **settings)


async def tenant(table: Any, name: str, *roles: str) -> TopicName:
    """A tenant with a topic that these may use."""
    topic = TopicName.parse(f"persistent://{name}/sales/orders")
    await table.registry.tenants.create(name)
    await table.registry.namespaces.create(topic.namespace)
    await table.registry.topics.create(topic, partitions=2)
    for role in roles:
        await table.registry.grants.grant(topic, role, BOTH)
    return topic


async def connect_worker(member: Member, group: str = "g") -> Any:
    """A member of a group that is not `consumer`, joined, with no share yet."""
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="sessioned", metadata=b"?")
    return await member.join(3, group=group, protocol_type="connect", protocols=[protocol])


def test_a_role_without_grants_has_no_groups_and_sees_none() -> None:
    """Neither one in its first rebalance, nor one that is not `consumer`."""

    async def conversation(table: Table) -> None:
        await table.topic()
        await table.registry.grants.grant(ORDERS, "owner", BOTH)
        owner, stranger = await table.member("owner"), await table.member("stranger")
        first = await owner.join(group="first")
        worker = await connect_worker(await table.member("owner"), "connect")
        for group, member in (("first", first), ("connect", worker)):
            assert (await stranger.described(group=group)).error_code == Code.GROUP_AUTHORIZATION_FAILED
            assert (await stranger.leave((member.member_id, None), group=group)).error_code == (
                Code.GROUP_AUTHORIZATION_FAILED
            )
            assert await stranger.beat(member, group=group) == Code.GROUP_AUTHORIZATION_FAILED
            assert (await stranger.sync(member, group=group)).error_code == Code.GROUP_AUTHORIZATION_FAILED
            assert (await stranger.join(group=group)).error_code == Code.GROUP_AUTHORIZATION_FAILED
            assert await stranger.deleted(group) == [Code.GROUP_AUTHORIZATION_FAILED]
            assert await owner.beat(member, group=group) == Code.NONE
        assert await stranger.groups() == []
        assert (await stranger.join(group="new")).error_code == Code.GROUP_AUTHORIZATION_FAILED
        assert sorted(name for name, _ in await owner.groups()) == ["connect", "first"]

    guarded(conversation)


def test_a_neighbour_of_the_tenant_cannot_kick_members_that_have_nothing_yet() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await table.topic("other", 1)
        await table.registry.grants.grant(ORDERS, "owner", BOTH)
        await table.registry.grants.grant(TopicName.parse("other"), "neighbour", BOTH)
        owner, neighbour = await table.member("owner"), await table.member("neighbour")
        worker = await connect_worker(owner)
        left = await neighbour.leave((worker.member_id, None))
        assert [member.error_code for member in left.members] == [Code.UNKNOWN_MEMBER_ID]
        assert (await connect_worker(neighbour)).error_code == Code.GROUP_AUTHORIZATION_FAILED
        assert await neighbour.groups() == []
        assert await owner.beat(worker) == Code.NONE

    guarded(conversation)


def test_groups_of_the_same_name_are_each_tenants_own() -> None:
    """Whoever comes first: nobody is refused, nobody sees the other's."""

    async def conversation(table: Table) -> None:
        await table.topic()
        await table.registry.grants.grant(ORDERS, "stranger", BOTH)
        await tenant(table, "acme", "ann")
        stranger, ann, root = [await table.member(role) for role in ("stranger", "ann", "root")]
        taken = await stranger.settle()
        mine = await ann.join(3)
        assert (taken.error_code, mine.error_code) == (Code.NONE, Code.NONE)
        assert len(mine.members) == 1
        assert (await ann.sync(mine)).error_code == Code.NONE
        assert await ann.commit({0: 7}, mine, topic="acme..sales..orders") == [Code.NONE]
        assert await ann.committed(None) == {0: 7}
        assert await stranger.committed(None) == {}
        left = await stranger.leave((mine.member_id, None))
        assert [member.error_code for member in left.members] == [Code.UNKNOWN_MEMBER_ID]
        assert await ann.beat(mine) == Code.NONE
        assert [name for name, _ in await ann.groups()] == ["g"]
        assert [name for name, _ in await root.groups()] == ["acme/g", "g"]
        described = await root.described(group="acme/g")
        assert [member.member_id for member in described.members] == [mine.member_id]
        # The position is a subscription of the name that the client said.
        topic: Any = await table.broker.load(TopicName.parse("persistent://acme/sales/orders-partition-0"))
        assert list(topic.subscriptions) == ["g"]

    guarded(conversation)


def test_a_grant_elsewhere_does_not_change_whose_names_a_role_uses() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await tenant(table, "zeta", "ann")
        ann = await table.member("ann")
        joined = await ann.join(3)
        await table.registry.grants.grant(ORDERS, "ann", BOTH)
        assert await ann.beat(joined) == Code.NONE
        await table.registry.grants.revoke(TopicName.parse("persistent://zeta/sales/orders"), "ann")
        assert await ann.beat(joined) == Code.UNKNOWN_MEMBER_ID  # it is of another tenant now

    guarded(conversation)


def test_a_group_kept_before_names_were_tenants_is_found() -> None:
    async def conversation(table: Table) -> None:
        topic = await tenant(table, "acme", "ann")
        await table.groups.commit("old", {topic.at(0): CommittedOffset(5)})
        ann = await table.member("ann")
        assert await ann.groups() == [("old", "Empty")]
        assert await ann.committed(None, group="old") == {0: 5}
        assert (await ann.described(group="old")).error_code == Code.NONE
        assert (await ann.join(3, group="old")).error_code == Code.NONE

    guarded(conversation)


def test_who_founded_a_group_is_not_locked_out_of_it_by_those_who_come() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await table.topic("other", 1)
        for topic, role in (("orders", "founder"), ("orders", "guest"), ("other", "guest")):
            await table.registry.grants.grant(TopicName.parse(topic), role, BOTH)
        founder, guest = await table.member("founder"), await table.member("guest")
        assert await founder.commit({0: 1}) == [Code.NONE]
        assert await guest.commit({0: 1}, topic="other") == [Code.NONE]
        assert (await founder.described()).error_code == Code.NONE
        assert await founder.commit({0: 2}) == [Code.NONE]
        await table.registry.grants.revoke(ORDERS, "founder")
        await table.registry.grants.grant(TopicName.parse("none"), "founder", BOTH)
        assert await founder.commit({0: 3}) == [Code.TOPIC_AUTHORIZATION_FAILED]
        assert (await founder.described()).error_code == Code.GROUP_ID_NOT_FOUND

    guarded(conversation)


def test_a_role_makes_so_many_groups_and_no_more() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        for role in ("many", "other"):
            await table.registry.grants.grant(ORDERS, role, BOTH)
        many, other, root = [await table.member(role) for role in ("many", "other", "root")]
        assert (await many.join(3, group="one")).error_code == Code.NONE
        assert await many.commit({0: 1}, group="two") == [Code.NONE]
        assert (await many.join(3, group="three")).error_code == Code.POLICY_VIOLATION
        assert await many.commit({0: 1}, group="three") == [Code.POLICY_VIOLATION]
        assert await many.commit({0: 2}, group="two") == [Code.NONE]
        for peer, group in ((other, "three"), (root, "four"), (root, "five"), (root, "six")):
            assert (await peer.join(3, group=group)).error_code == Code.NONE
        assert await many.deleted("two") == [Code.NONE]
        assert await many.commit({0: 1}, group="seven") == [Code.NONE]

    guarded(conversation, max_groups_per_role=2)


def test_a_member_shows_only_on_topics_that_its_role_may_consume() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await table.topic("other", 1)
        await table.registry.grants.grant(TopicName.parse("other"), "stranger", BOTH)
        table.groups.start()
        stranger = await table.member("stranger")
        await stranger.settle()  # takes partitions of `orders`, or says so
        shown = table.groups._members
        assert dict(shown.on(ORDERS.at(0))) == {}
        await table.registry.grants.grant(ORDERS, "owner", BOTH)
        owner = await table.member("owner")
        await owner.settle(group="mine")
        assert list(shown.on(ORDERS.at(0))) == ["mine"]
        await table.registry.grants.revoke(ORDERS, "owner")
        while shown.on(ORDERS.at(0)):
            await table.runtime.clock.sleep(0.01)

    guarded(conversation)


def test_a_restarted_coordinator_knows_whose_groups_are() -> None:
    from weir.broker.groups.classic_group import Group, encode_group, restore
    from weir.broker.groups.group import GroupSettings
    from weir.wire.snapshots.groups import decode_group

    async def conversation(table: Table) -> None:
        def group() -> Group:
            return Group(
                "g",
                table.runtime.clock,
                GroupSettings(),
                store=lambda _: None,  # type: ignore[arg-type,return-value]
                store_departures=lambda *_: None,  # type: ignore[arg-type,return-value]
                changed=lambda _: None,
                changed_some=lambda *_: None,
            )

        made = group()
        made.role = "ann"
        waiter = made.join(JoinRequest("connect", {"x": b""}, 10, 10, role="ann"), lambda: "m")
        record = decode_group(encode_group(made))
        again = group()
        restore(again, record)
        assert (again.role, [member.role for member in again.members]) == ("ann", ["ann"])
        waiter.cancel()

    play_groups(conversation)


# --- transactional ids ------------------------------------------------------------------------------------------


def test_a_stranger_cannot_take_a_transactional_id_from_its_owner() -> None:
    """Nor can a neighbour who may write to the same topics."""

    async def conversation(stage: Stage) -> None:
        await tenant(stage, "acme", "ann", "stranger")
        stranger, nobody, ann, root = [await stage.client(role) for role in ("stranger", "nobody", "ann", "root")]
        assert await nobody.init() == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await stranger.init() == Code.NONE
        assert await ann.init() == Code.NONE
        assert await ann.add({"acme..sales..orders": [0]}) == [Code.NONE]
        stranger.who = ann.who
        assert await stranger.end() == Code.INVALID_PRODUCER_ID_MAPPING
        assert await stranger.listed() == [("x", "Empty")]
        assert await ann.listed() == [("x", "Ongoing")]
        assert await nobody.listed() == []
        assert sorted(await root.listed()) == [("ann/x", "Ongoing"), ("x", "Empty")]
        assert [one.transactional_id for one in await root.describe("ann/x")] == ["ann/x"]
        assert await ann.end() == Code.NONE

    play(conversation, security=SECURE)


def test_a_transactional_id_kept_before_is_its_users_still() -> None:
    async def conversation(stage: Stage) -> None:
        await tenant(stage, "acme", "ann")
        before = await stage.transactions.init("x", role="ann")
        ann = await stage.client("ann")
        assert await ann.init() == Code.NONE
        assert ann.who == (before.producer_id, before.epoch + 1)  # it fences what was there
        assert await ann.listed() == [("x", "Empty")]

    play(conversation, security=SECURE)


def test_an_administrator_who_uses_an_id_does_not_take_it_from_its_owner() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        await stage.registry.grants.grant(ORDERS, "ann", BOTH)
        ann, root = await stage.client("ann"), await stage.client("root")
        assert await ann.init() == Code.NONE
        assert await root.init() == Code.NONE
        assert await ann.init() == Code.NONE

    play(conversation, security=SECURE)


def test_positions_in_a_transaction_are_those_of_the_tenants_group() -> None:
    async def conversation(stage: Stage) -> None:
        await tenant(stage, "acme", "ann")
        ann = await stage.client("ann")
        assert await ann.init() == Code.NONE
        assert await ann.add_offsets() == Code.NONE
        moved = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=4, committed_metadata=""
        )
        request = m.TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=ann.who[0],
            producer_epoch=ann.who[1],
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name="acme..sales..orders", partitions=[moved]
                )
            ],
        )
        answer = await ann.call(ApiKey.TXN_OFFSET_COMMIT, 3, request)
        assert answer.topics[0].partitions[0].error_code == Code.NONE
        assert await ann.end() == Code.NONE
        wanted = m.OffsetFetchRequest(
            groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]
        )
        found = (await ann.call(ApiKey.OFFSET_FETCH, 9, wanted)).groups[0]
        assert [part.committed_offset for topic in found.topics for part in topic.partitions] == [4]

    play(conversation, security=SECURE)
