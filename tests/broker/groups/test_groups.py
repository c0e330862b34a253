"""Consumer groups, as transcripts in simulated time: members join, get shares, fall silent, come back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from weir.broker.api.groups import GroupState, Joined, JoinRequest, SyncRequest
from weir.broker.coordination.partition_ops import LocalParts
from weir.broker.coordination.shards import COORDINATOR, CoordinatorShards
from weir.broker.groups.group import STATES, GroupEvent, GroupSettings, next_state
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.groups.group_offsets import GroupOffsets
from weir.model.errors import (
    GroupFullError,
    GroupNotEmptyError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupError,
    InvariantError,
    MemberFencedError,
    MemberIdRequiredError,
    NotAllowedError,
    NotOwnerError,
    RebalanceInProgressError,
    SessionTimeoutError,
    SubscriptionBusyError,
    TooManyError,
    UnknownGroupError,
    UnknownMemberError,
    WireError,
)
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.wire.snapshots.groups import decode_group

T = TopicName.parse("t")
ASK = JoinRequest("consumer", {"range": b"mine"}, session_s=10, rebalance_s=60, client_id="c", client_host="here")


@dataclass
class Party:
    """A coordinator, and its members' side of the conversation."""

    bench: Any
    broker: Any
    groups: GroupCoordinator
    asked: list[Any] = field(default_factory=list)

    @property
    def clock(self) -> Any:
        return self.bench.runtime.clock

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    def join(self, **more: Any) -> "asyncio.Task[Joined]":
        self.asked.append(asyncio.ensure_future(self.groups.join("g", replace(ASK, **more))))
        return self.asked[-1]

    async def end(self) -> None:
        for asked in self.asked:
            asked.cancel()
        await asyncio.gather(*self.asked, return_exceptions=True)
        await self.groups.close()
        await self.broker.close()

    async def share(self, leader: Joined, others: dict[str, Joined], **shares: bytes) -> dict[str, bytes]:
        """The leader divides, everyone syncs; answers what each was given, by name."""
        ids = {name: joined.member_id for name, joined in others.items()}
        given = {ids[name]: share for name, share in shares.items()}
        answers = await asyncio.gather(
            *(
                self.groups.sync(
                    "g",
                    SyncRequest(
                        joined.generation,
                        joined.member_id,
                        assignments=given if joined.member_id == leader.member_id else {},
                    ),
                )
                for joined in others.values()
            )
        )
        return {name: answer.assignment for name, answer in zip(others, answers, strict=True)}

    async def two(self, **more: Any) -> tuple[Joined, Joined]:
        """A stable group of two; the first leads."""
        a, b = await asyncio.gather(self.join(**more), self.join(**more))
        await self.share(a, {"a": a, "b": b}, a=b"A", b=b"B")
        return a, b

    async def beat(self, joined: Joined, instance_id: str | None = None) -> None:
        await self.groups.heartbeat("g", joined.member_id, joined.generation, instance_id)

    async def beat_for(self, seconds: float, *joined: Joined) -> None:
        for _ in range(int(seconds)):
            await self.sleep(1)
            for one in joined:
                await self.beat(one)

    async def state(self) -> GroupState:
        return (await self.groups.describe("g")).state


async def party_of(bench: Any, **settings: Any) -> Party:
    context = await bench.context()
    from weir.broker.broker import Broker
    from weir.broker.standalone import PlainRegistry, SoleOwner

    broker = Broker(context, PlainRegistry(), SoleOwner())
    shards = CoordinatorShards(broker)
    offsets = GroupOffsets(LocalParts(broker, bench.runtime.clock), shards, bench.runtime.clock)
    groups = GroupCoordinator(bench.runtime, shards, offsets, context.members, GroupSettings(**settings))
    groups.start()
    await broker.load(T)
    return Party(bench, broker, groups)


@pytest.fixture
def tell(run: Callable) -> Callable[..., None]:
    """Run a transcript."""

    def tell_it(story: Callable[[Party], Any], **settings: Any) -> None:
        async def scenario(bench: Any) -> None:
            party = await party_of(bench, **settings)
            await story(party)
            await party.end()

        run(scenario)

    return tell_it


# --- joining and dividing ----------------------------------------------------------------------------------------


def test_members_that_come_together_are_in_one_generation_and_get_what_the_leader_gave_them(
    tell: Callable,
) -> None:
    async def story(party: Party) -> None:
        a, b = await asyncio.gather(party.join(), party.join(protocols={"range": b"yours"}))
        assert a.generation == b.generation == 1
        assert a.leader == b.leader == a.member_id
        assert a.protocol == b.protocol == "range"
        assert [(m, said) for m, _, said in a.members] == [(a.member_id, b"mine"), (b.member_id, b"yours")]
        assert b.members == []
        assert await party.state() is GroupState.SYNCING
        assert await party.share(a, {"a": a, "b": b}, a=b"A", b=b"B") == {"a": b"A", "b": b"B"}
        info = await party.groups.describe("g")
        assert info.state is GroupState.STABLE
        assert [(m.metadata, m.assignment, m.client_host) for m in info.members] == [
            (b"mine", b"A", "here"),
            (b"yours", b"B", "here"),
        ]
        await party.beat(a)
        again = await party.groups.sync("g", SyncRequest(1, b.member_id))  # its answer was lost
        assert again.assignment == b"B"

    tell(story)


def test_a_new_member_is_told_its_id_and_joins_again_with_it(tell: Callable) -> None:
    async def story(party: Party) -> None:
        with pytest.raises(MemberIdRequiredError) as told:
            await party.join(id_first=True)
        assert told.value.member_id.startswith("c-")
        joined = await party.join(member_id=told.value.member_id, id_first=True)
        assert joined.member_id == told.value.member_id
        with pytest.raises(UnknownMemberError):
            await party.join(member_id="c-made-up", id_first=True)
        # An id that nobody comes back with holds nothing up for longer than a session.
        with pytest.raises(MemberIdRequiredError) as lost:
            await party.join(id_first=True)
        await party.share(joined, {"a": joined}, a=b"A")
        late = party.join(session_s=30)
        await party.sleep(1)
        with pytest.raises(RebalanceInProgressError):
            await party.beat(joined)
        again = party.join(member_id=joined.member_id)
        await party.sleep(1)
        assert not late.done()
        await party.sleep(10)
        assert (await late).generation == (await again).generation == 2
        with pytest.raises(UnknownMemberError):
            await party.join(member_id=lost.value.member_id)

    tell(story)


def test_who_comes_later_makes_the_others_join_again(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a = await party.join()
        await party.share(a, {"a": a}, a=b"all")
        late = party.join()
        await party.sleep(1)
        with pytest.raises(RebalanceInProgressError):
            await party.beat(a)
        with pytest.raises(RebalanceInProgressError):
            await party.groups.sync("g", SyncRequest(1, a.member_id))
        again, b = await asyncio.gather(party.join(member_id=a.member_id), late)
        assert again.generation == b.generation == 2
        assert again.leader == a.member_id
        with pytest.raises(IllegalGenerationError):
            await party.beat(a)
        assert await party.share(again, {"a": again, "b": b}, b=b"rest") == {"a": b"", "b": b"rest"}

    tell(story)


def test_an_empty_group_waits_a_little_for_others_and_a_little_more_when_they_come(tell: Callable) -> None:
    async def story(party: Party) -> None:
        began = party.clock.monotonic()
        joining = [party.join()]
        for _ in range(3):
            await party.sleep(2)
            joining.append(party.join())
        joined = await asyncio.gather(*joining)
        assert [one.generation for one in joined] == [1] * 4
        assert 9 <= party.clock.monotonic() - began < 13

    tell(story, initial_delay_s=3)


def test_a_member_that_stays_alone_waits_no_longer_than_that(tell: Callable) -> None:
    async def story(party: Party) -> None:
        began = party.clock.monotonic()
        await party.join()
        assert 3 <= party.clock.monotonic() - began < 3.5

    tell(story, initial_delay_s=3)


def test_waiting_for_others_ends_with_the_rebalance_time_out(tell: Callable) -> None:
    async def story(party: Party) -> None:
        began = party.clock.monotonic()
        joining = [party.join(rebalance_s=5)]
        for _ in range(4):
            await party.sleep(2)
            joining.append(party.join(rebalance_s=5))
        first = await joining[0]
        assert first.generation == 1
        assert party.clock.monotonic() - began < 8.5

    tell(story, initial_delay_s=3)


def test_a_group_may_be_made_to_wait_for_nobody(tell: Callable) -> None:
    async def story(party: Party) -> None:
        began = party.clock.monotonic()
        assert (await party.join()).generation == 1
        assert party.clock.monotonic() - began < 0.1

    tell(story, initial_delay_s=0)


def test_the_protocol_that_most_members_like_best_of_those_all_know_is_chosen(tell: Callable) -> None:
    async def story(party: Party) -> None:
        both = {"sticky": b"s", "range": b"r"}
        joined = await asyncio.gather(
            party.join(protocols={"sticky": b"s", "range": b"r", "odd": b""}),
            party.join(protocols={"odd": b"", "range": b"r", "sticky": b"s"}),
            party.join(protocols={"range": b"r", "sticky": b"s"}),
            party.join(protocols=both),
            party.join(protocols=both),
        )
        assert {one.protocol for one in joined} == {"sticky"}
        with pytest.raises(InconsistentGroupProtocolError):
            await party.join(protocols={"odd": b""})
        with pytest.raises(InconsistentGroupProtocolError):
            await party.join(protocol_type="connect")
        for nothing in ({"protocols": {}}, {"protocol_type": ""}):
            with pytest.raises(InconsistentGroupProtocolError):
                await party.join(**nothing)

    tell(story)


def test_a_member_that_asks_again_in_the_same_words_is_answered_without_dividing_anew(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await asyncio.gather(party.join(), party.join())
        assert await party.join(member_id=b.member_id) == b  # the answer was lost
        assert await party.join(member_id=a.member_id) == a
        await party.share(a, {"a": a, "b": b}, a=b"A", b=b"B")
        assert (await party.join(member_id=b.member_id)).generation == 1
        # The leader has seen something change; a member says something new: both have the work divided anew.
        leading = party.join(member_id=a.member_id)
        again = await party.join(member_id=b.member_id)
        assert (again.generation, (await leading).generation) == (2, 2)
        await party.share(again, {"a": await leading, "b": again})
        changed = party.join(member_id=b.member_id, protocols={"range": b"new"})
        await party.sleep(1)
        assert await party.state() is GroupState.JOINING
        await party.join(member_id=a.member_id)
        assert (await changed).generation == 3

    tell(story)


def test_a_leader_that_brings_no_shares_in_time_is_out(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await asyncio.gather(party.join(session_s=1000), party.join(session_s=1000))
        waiting = asyncio.ensure_future(party.groups.sync("g", SyncRequest(1, b.member_id)))
        with pytest.raises(RebalanceInProgressError):
            await waiting
        again = await party.join(member_id=b.member_id)
        assert (again.generation, again.leader) == (2, b.member_id)
        with pytest.raises(UnknownMemberError):
            await party.beat(a)

    tell(story)


def test_a_member_that_does_not_join_again_in_time_is_out(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await party.two(session_s=1000, rebalance_s=20)
        began = party.clock.monotonic()
        c = party.join(rebalance_s=20)
        again, late = await asyncio.gather(party.join(member_id=a.member_id, rebalance_s=20), c)
        assert party.clock.monotonic() - began >= 20
        assert again.generation == late.generation == 2
        with pytest.raises(UnknownMemberError):
            await party.groups.sync("g", SyncRequest(2, b.member_id))

    tell(story)


def test_who_goes_away_while_waiting_for_the_first_time_is_not_counted(tell: Callable) -> None:
    async def story(party: Party) -> None:
        gone, stays = party.join(), party.join()
        await party.sleep(0.1)
        gone.cancel()
        joined = await stays
        assert [m for m, _, _ in joined.members] == [joined.member_id]

    tell(story)


# --- silence and leaving -----------------------------------------------------------------------------------------


def test_a_silent_member_is_out_after_its_session_and_the_others_divide_its_share(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await party.two()
        with pytest.raises(RebalanceInProgressError):
            await party.beat_for(60, a)
        again = await party.join(member_id=a.member_id)
        assert (again.generation, len(again.members)) == (2, 1)
        with pytest.raises(UnknownMemberError):
            await party.beat(b)
        with pytest.raises(UnknownMemberError):
            await party.groups.commit("g", {T: CommittedOffset(1)}, member_id=b.member_id, generation=1)

    tell(story)


def test_heartbeats_and_commits_keep_a_member_in(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await party.two()
        for offset in range(15):
            await party.sleep(5)
            await party.beat(a)
            await party.groups.commit("g", {T: CommittedOffset(offset)}, member_id=b.member_id, generation=1)
        assert await party.state() is GroupState.STABLE

    tell(story)


def test_members_leave_one_by_one_or_together_and_the_last_leaves_an_empty_group(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await party.two()
        results = await party.groups.leave("g", [("nobody", None), (b.member_id, None)])
        assert [type(result) for result in results] == [UnknownMemberError, type(None)]
        again = await party.join(member_id=a.member_id)
        assert len(again.members) == 1
        await party.groups.leave("g", [(a.member_id, None)])
        info = await party.groups.describe("g")
        assert (info.state, info.members, info.protocol_type) == (GroupState.EMPTY, [], "consumer")
        assert [type(r) for r in await party.groups.leave("none", [("x", None)])] == [UnknownMemberError]

    tell(story)


def test_a_given_id_can_be_returned(tell: Callable) -> None:
    async def story(party: Party) -> None:
        with pytest.raises(MemberIdRequiredError) as told:
            await party.join(id_first=True)
        assert await party.groups.leave("g", [(told.value.member_id, None)]) == [None]
        with pytest.raises(UnknownMemberError):
            await party.join(member_id=told.value.member_id)

    tell(story)


# --- static members ----------------------------------------------------------------------------------------------


def test_a_static_member_that_restarts_goes_on_with_its_share_and_nobody_else_notices(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await asyncio.gather(party.join(instance_id="one"), party.join(instance_id="two"))
        await party.share(a, {"a": a, "b": b}, a=b"A", b=b"B")
        back = await party.join(instance_id="two")
        assert (back.generation, back.leader) == (1, a.member_id)
        assert back.member_id != b.member_id
        got = await party.groups.sync("g", SyncRequest(1, back.member_id, "two"))
        assert got.assignment == b"B"
        await party.beat(a, "one")
        with pytest.raises(MemberFencedError):
            await party.beat(b, "two")
        with pytest.raises(MemberFencedError):
            await party.join(member_id=b.member_id, instance_id="two")
        with pytest.raises(MemberFencedError):
            await party.groups.commit(
                "g", {T: CommittedOffset(1)}, member_id=b.member_id, generation=1, instance_id="two"
            )
        with pytest.raises(UnknownMemberError):
            await party.beat(b)
        with pytest.raises(UnknownMemberError):
            await party.beat(back, "three")
        assert [type(r) for r in await party.groups.leave("g", [(b.member_id, "two")])] == [MemberFencedError]
        # An administrator names the instance alone.
        assert await party.groups.leave("g", [("", "two")]) == [None]
        with pytest.raises(RebalanceInProgressError):
            await party.beat(a, "one")

    tell(story)


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_static_leader_that_restarts_is_kept_from_dividing_what_nobody_awaits(
    tell: Callable, may_skip: bool
) -> None:
    async def story(party: Party) -> None:
        a, b = await asyncio.gather(party.join(instance_id="one"), party.join(instance_id="two"))
        await party.share(a, {"a": a, "b": b}, a=b"A", b=b"B")
        back = await party.join(instance_id="one", may_skip=may_skip)
        assert back.generation == 1
        if may_skip:
            assert (back.leader, back.skip, len(back.members)) == (back.member_id, True, 2)
        else:
            assert (back.leader, back.skip, len(back.members)) == (a.member_id, False, 0)
        got = await party.groups.sync("g", SyncRequest(1, back.member_id, "one"))
        assert got.assignment == b"A"

    tell(story)


def test_a_static_member_that_comes_back_with_another_favourite_divides_anew(tell: Callable) -> None:
    async def story(party: Party) -> None:
        two = {"range": b"", "sticky": b""}
        a = await party.join(instance_id="one", protocols=two)
        await party.share(a, {"a": a}, a=b"A")
        back = await party.join(instance_id="one", protocols={"sticky": b"", "range": b""})
        assert (back.generation, back.protocol, back.leader) == (2, "sticky", back.member_id)

    tell(story)


def test_a_static_member_that_comes_back_while_others_gather_or_divide_fences_its_former_self(
    tell: Callable,
) -> None:
    async def story(party: Party) -> None:
        first = party.join(instance_id="one")
        await party.sleep(0.1)
        second = party.join(instance_id="one")
        with pytest.raises(MemberFencedError):
            await first
        joined = await second
        waiting = party.join(instance_id="one")  # while the leader's shares are awaited
        with pytest.raises(MemberFencedError):
            await party.groups.sync("g", SyncRequest(1, joined.member_id, "one"))
        assert (await waiting).generation == 2

    tell(story)


def test_the_share_of_a_static_member_waits_for_it_until_its_session_ends(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await asyncio.gather(
            party.join(instance_id="one", session_s=10, rebalance_s=5),
            party.join(instance_id="two", session_s=100, rebalance_s=5),
        )
        await party.share(a, {"a": a, "b": b}, a=b"A", b=b"B")
        c = party.join(rebalance_s=5)
        back = party.join(member_id=a.member_id, instance_id="one", rebalance_s=5)
        again, late = await asyncio.gather(back, c)
        assert [m for m, _, _ in again.members] == [a.member_id, b.member_id, late.member_id]
        await party.share(again, {"a": again, "c": late})
        with pytest.raises(RebalanceInProgressError):
            await party.beat_for(120, late, replace(again))

    # The leader is static as well and heartbeats by its id alone: membership is by id, fencing by instance.
    tell(story)


# --- committing --------------------------------------------------------------------------------------------------


def test_members_commit_in_their_generation_and_others_only_while_there_are_none(tell: Callable) -> None:
    async def story(party: Party) -> None:
        groups = party.groups
        with pytest.raises(UnknownGroupError):
            await groups.commit("g", {T: CommittedOffset(1)}, member_id="x", generation=3)
        assert await groups.commit("g", {T: CommittedOffset(1)}) == {T: None}  # nobody is there
        assert await party.state() is GroupState.EMPTY
        a, b = await asyncio.gather(party.join(), party.join())
        member = {"member_id": b.member_id, "generation": 1}
        with pytest.raises(RebalanceInProgressError):
            await groups.commit("g", {T: CommittedOffset(2)}, **member)
        await groups.check_member("g", b.member_id, 1)  # a transaction may
        await party.share(a, {"a": a, "b": b}, a=b"A", b=b"B")
        assert await groups.commit("g", {T: CommittedOffset(2)}, **member) == {T: None}
        with pytest.raises(IllegalGenerationError):
            await groups.commit("g", {T: CommittedOffset(3)}, **{**member, "generation": 0})
        with pytest.raises(IllegalGenerationError):
            await groups.check_member("g", b.member_id, 0)
        with pytest.raises(UnknownMemberError):
            await groups.commit("g", {T: CommittedOffset(3)})
        await groups.check_member("g", "", -1)
        # While others are awaited a member may still say how far it came.
        late = party.join()
        await party.sleep(1)
        assert await groups.commit("g", {T: CommittedOffset(4)}, **member) == {T: None}
        assert (await groups.offsets.fetch("g", [T]))[T].offset == 4
        late.cancel()

    tell(story)


# --- restart -----------------------------------------------------------------------------------------------------


def test_a_group_goes_on_after_a_restart_without_dividing_anew(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        party = await party_of(bench)
        a, b = await asyncio.gather(party.join(instance_id="one"), party.join())
        sync = SyncRequest(1, a.member_id, "one", assignments={b.member_id: b"B"}, parts={b.member_id: [T]})
        await asyncio.gather(party.groups.sync("g", sync), party.groups.sync("g", SyncRequest(1, b.member_id)))
        await party.groups.commit("g", {T: CommittedOffset(7)}, member_id=b.member_id, generation=1)

        after = await party_of(bench)  # the first is not closed: it loses its shard
        await after.beat(a, "one")
        await after.beat(b)
        assert (await after.groups.sync("g", SyncRequest(1, b.member_id))).assignment == b"B"
        stats = (await after.broker.load(T)).stats().subscriptions[0]
        assert [consumer.name for consumer in stats.consumers] == [b.member_id]
        with pytest.raises(MemberFencedError):
            await after.groups.heartbeat("g", b.member_id, 1, "one")
        # A member that was lost with the restart is out after its session.
        with pytest.raises(RebalanceInProgressError):
            await after.beat_for(60, b)

    run(scenario)


async def three(party: Party) -> tuple[Joined, Joined, Joined]:
    """A stable group of three; the first leads."""
    a, b, c = await asyncio.gather(party.join(), party.join(), party.join())
    await party.share(a, {"a": a, "b": b, "c": c}, a=b"A", b=b"B", c=b"C")
    return a, b, c


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_group_does_not_wait_for_a_member_that_left_before_its_coordinator_crashed(
    run: Callable, gone: int
) -> None:
    async def scenario(bench: Any) -> None:
        party = await party_of(bench)
        members = list(await three(party))
        left = members.pop(gone)
        assert await party.groups.leave("g", [(left.member_id, None)]) == [None]
        party.join()
        await party.sleep(0.3)

        after = await party_of(bench)  # the first is not closed: it crashed
        with pytest.raises(UnknownMemberError):
            await after.beat(left)
        for member in members:
            with pytest.raises(RebalanceInProgressError):  # they divide what the third had
                await after.beat(member)
        at = after.clock.monotonic()
        joined = await asyncio.gather(after.join(), *(after.join(member_id=m.member_id) for m in members))
        assert after.clock.monotonic() == at
        assert {one.generation for one in joined} == {2}
        leader = next(one for one in joined if one.members)
        await after.share(leader, dict(zip("xyz", joined, strict=True)), x=b"X", y=b"Y", z=b"Z")

        again = await party_of(bench)  # what was written with the shares counts, and nothing of before
        for one in joined:
            await again.beat(one)

    run(scenario)


def test_a_group_does_not_wait_for_a_silent_member_that_its_crashed_coordinator_had_given_up(
    run: Callable,
) -> None:
    async def scenario(bench: Any) -> None:
        party = await party_of(bench)
        a, b, c = await three(party)
        with pytest.raises(RebalanceInProgressError):
            await party.beat_for(60, a, b)
        await party.sleep(0.3)
        after = await party_of(bench)
        at = after.clock.monotonic()
        again = await asyncio.gather(*(after.join(member_id=member.member_id) for member in (a, b)))
        assert after.clock.monotonic() == at
        assert {one.generation for one in again} == {2}
        with pytest.raises(UnknownMemberError):
            await after.beat(c)

    run(scenario)


def test_a_group_whose_members_all_left_is_empty_for_the_next_coordinator(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        party = await party_of(bench)
        a, b = await party.two()
        await party.groups.commit("g", {T: CommittedOffset(1)}, member_id=a.member_id, generation=1)
        late = party.join()  # while it joins, the group is not empty
        await party.sleep(0.1)
        await party.groups.leave("g", [(a.member_id, None), (b.member_id, None)])
        after = await party_of(bench)
        assert (await after.groups.describe("g")).state in (GroupState.JOINING, GroupState.EMPTY)
        await after.sleep(1)
        assert (await after.groups.describe("g")).state is GroupState.EMPTY
        at = after.clock.monotonic()
        assert (await after.join()).generation > 1
        assert after.clock.monotonic() - at <= GroupSettings().initial_delay_s
        late.cancel()

    run(scenario)


def test_departures_of_one_moment_share_a_write_and_end_with_the_groups_next_record(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        party = await party_of(bench)
        members = await asyncio.gather(*(party.join() for _ in range(50)))
        await party.share(members[0], {str(at): one for at, one in enumerate(members)})
        shard = await CoordinatorShards(party.broker).of("g")
        writes = 0
        write = shard.state._write

        async def counted() -> None:
            nonlocal writes
            writes += 1
            await write()

        shard.state._write = counted
        leaving = members[1:]
        results = await asyncio.gather(*(party.groups.leave("g", [(m.member_id, None)]) for m in leaving))
        assert results == [[None]] * len(leaving)
        assert writes <= 2
        assert len(shard.state.keys("departure/")) == len(leaving)
        again = await party.join(member_id=members[0].member_id)
        await party.share(again, {"a": again}, a=b"A")
        assert shard.state.keys("departure/") == []

    run(scenario)


def test_an_empty_group_keeps_its_generation_over_a_restart(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        party = await party_of(bench)
        a = await party.join()
        await party.share(a, {"a": a}, a=b"A")
        await party.groups.commit("g", {T: CommittedOffset(1)}, member_id=a.member_id, generation=1)
        await party.groups.leave("g", [(a.member_id, None)])
        await party.sleep(1)
        after = await party_of(bench)
        info = await after.groups.describe("g")
        assert (info.state, info.generation, info.protocol_type) == (GroupState.EMPTY, 2, "consumer")
        assert (await after.join()).generation == 3

    run(scenario)


def test_what_was_promised_before_the_shares_were_durable_is_not_remembered(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        party = await party_of(bench)
        a = await party.join()
        await party.share(a, {"a": a}, a=b"A")
        late = party.join()
        await party.sleep(1)
        again, b = await asyncio.gather(party.join(member_id=a.member_id), late)
        after = await party_of(bench)
        with pytest.raises(IllegalGenerationError):
            await after.beat(again)
        with pytest.raises(UnknownMemberError):
            await after.beat(b)
        assert (await after.join(member_id=a.member_id)).generation == 2

    run(scenario)


def test_a_damaged_group_is_an_error_for_everyone_until_it_is_mended(tell: Callable) -> None:
    async def story(party: Party) -> None:
        shard = await CoordinatorShards(party.broker).of("g")
        shard.state.put("group/fine", b'{"version": 1}')
        for _ in range(2):
            with pytest.raises(WireError):
                await party.join()
        shard.state.delete("group/fine")
        assert (await party.join()).generation == 1

    tell(story)


def test_a_group_whose_home_is_lost_tells_those_who_wait(tell: Callable) -> None:
    async def story(party: Party) -> None:
        from weir.broker.coordination.shards import COORDINATOR

        a, b = await asyncio.gather(party.join(), party.join())
        waiting = asyncio.ensure_future(party.groups.sync("g", SyncRequest(1, b.member_id)))
        await party.sleep(0.1)
        await party.broker.unload(COORDINATOR)
        with pytest.raises(UnknownMemberError):  # it is here again, and knows what was written down: nothing
            await party.beat(a)
        with pytest.raises(NotOwnerError):
            await waiting

    tell(story)


# --- administration ----------------------------------------------------------------------------------------------


def test_groups_are_listed_described_and_deleted(tell: Callable) -> None:
    async def story(party: Party) -> None:
        groups = party.groups
        a, b = await party.two()
        await groups.commit("simple", {T: CommittedOffset(1)})
        assert [(g.name, g.state) for g in await groups.all()] == [
            ("g", GroupState.STABLE),
            ("simple", GroupState.EMPTY),
        ]
        for call in (groups.describe, groups.delete):
            with pytest.raises(UnknownGroupError):
                await call("none")
        with pytest.raises(GroupNotEmptyError):
            await groups.delete("g")
        await groups.leave("g", [(a.member_id, None), (b.member_id, None)])
        await groups.delete("g")
        consumer = await party.bench.consumer(await party.broker.load(T), "simple")
        with pytest.raises(GroupNotEmptyError):
            await groups.delete("simple")
        results = await groups.delete_offsets("simple", [T])
        assert isinstance(results[T], SubscriptionBusyError)
        await consumer.close()
        await groups.delete("simple")
        assert await groups.all() == []
        with pytest.raises(UnknownGroupError):
            await groups.delete_offsets("simple", [T])

    tell(story)


def test_an_empty_group_is_forgotten_after_its_retention_and_one_without_positions_at_once(tell: Callable) -> None:
    async def story(party: Party) -> None:
        groups = party.groups
        a, b = await party.two()
        await groups.commit("g", {T: CommittedOffset(1)}, member_id=a.member_id, generation=1)
        await groups.commit("simple", {T: CommittedOffset(1)})
        await groups.leave("g", [(a.member_id, None), (b.member_id, None)])
        other = await groups.join("other", ASK)
        await groups.leave("other", [(other.member_id, None)])
        await party.sleep(150)
        assert [g.name for g in await groups.all()] == ["g", "simple"]
        await party.sleep(700)
        await groups.commit("simple", {T: CommittedOffset(2)})
        await party.sleep(300)
        assert [g.name for g in await groups.all()] == ["simple"]
        assert list((await party.broker.load(T)).subscriptions) == ["simple"]
        await party.sleep(1000)
        assert await groups.all() == []
        assert list((await party.broker.load(T)).subscriptions) == []

    tell(story, retention_s=1000, sweep_s=100)


def test_positions_that_came_without_a_group_expire_as_well(tell: Callable) -> None:
    async def story(party: Party) -> None:
        await party.groups.all()
        await party.groups.offsets.commit("by transaction", {T: CommittedOffset(1)})
        assert [g.name for g in await party.groups.all()] == ["by transaction"]
        await party.sleep(800)
        assert list((await party.broker.load(T)).subscriptions) == ["by transaction"]
        await party.sleep(1500)
        assert await party.groups.all() == []
        assert list((await party.broker.load(T)).subscriptions) == []

    tell(story, retention_s=1000, sweep_s=100)


def test_members_show_as_consumers_of_the_subscription_with_their_lag(tell: Callable) -> None:
    async def story(party: Party) -> None:
        topic = await party.broker.load(T)
        await party.bench.publish(await party.bench.producer(topic), *"abcde")
        a, b = await asyncio.gather(party.join(client_id="app"), party.join(instance_id="two"))
        parts = {a.member_id: [T], b.member_id: []}
        await asyncio.gather(
            party.groups.sync("g", SyncRequest(1, a.member_id, assignments={}, parts=parts)),
            party.groups.sync("g", SyncRequest(1, b.member_id, "two")),
        )
        await party.groups.commit("g", {T: CommittedOffset(3)}, member_id=a.member_id, generation=1)
        stats = topic.stats().subscriptions[0]
        assert (stats.name, stats.backlog, stats.mark_delete) == ("g", 2, 2)
        assert [(c.name, c.address, c.properties) for c in stats.consumers] == [
            (a.member_id, "here", {"weir.client_id": "app", "weir.generation": "1"})
        ]
        with pytest.raises(SubscriptionBusyError):
            await topic.stored.delete_subscription("g")
        await party.groups.leave("g", [(a.member_id, None)])
        assert topic.stats().subscriptions[0].consumers == ()
        await topic.stored.delete_subscription("g")

    tell(story)


# --- limits and refusals -----------------------------------------------------------------------------------------


def test_limits_are_told(tell: Callable) -> None:
    async def story(party: Party) -> None:
        for session_s in (0.5, 4000):
            with pytest.raises(SessionTimeoutError):
                await party.join(session_s=session_s)
        for name in ("", "x" * 2000):
            with pytest.raises(InvalidGroupError):
                await party.groups.join(name, ASK)
        with pytest.raises(NotAllowedError):
            await party.join(protocols={"range": b"x" * 101})
        a, b = await asyncio.gather(party.join(), party.join())
        with pytest.raises(GroupFullError):
            await party.join()
        with pytest.raises(NotAllowedError):
            await party.groups.sync("g", SyncRequest(1, a.member_id, assignments={a.member_id: b"x" * 101}))
        for wrong in ({"protocol_type": "connect"}, {"protocol": "sticky"}):
            with pytest.raises(InconsistentGroupProtocolError):
                await party.groups.sync("g", SyncRequest(1, b.member_id, **wrong))
        with pytest.raises(TooManyError):
            await party.groups.join("another", ASK)
        # A refused first member leaves nothing behind.
        assert [g.name for g in await party.groups.all()] == ["g"]

    tell(story, max_members=2, max_groups=1, max_member_bytes=100, max_assigned_bytes=100)


def test_all_members_together_may_say_so_much_and_stats_remember_so_many_partitions(tell: Callable) -> None:
    async def story(party: Party) -> None:
        a, b = await asyncio.gather(party.join(protocols={"range": bytes(80)}), party.join())
        with pytest.raises(GroupFullError):
            await party.join(protocols={"range": bytes(80)})
        parts = [TopicName.parse(f"t{number}") for number in range(4)]
        shares = {a.member_id: [*parts, *parts][:3], b.member_id: parts}
        await asyncio.gather(
            party.groups.sync("g", SyncRequest(1, a.member_id, parts=shares)),
            party.groups.sync("g", SyncRequest(1, b.member_id)),
        )
        info = await party.groups.describe("g")
        assert [len(member.parts) for member in info.members] == [3, 2]

    tell(story, max_said_bytes=150, max_shown_parts=5)


def test_what_no_state_allows_is_a_bug() -> None:
    for state in GroupState:
        for event in GroupEvent:
            if event in STATES[state]:
                assert next_state(state, event) is STATES[state][event]
            else:
                with pytest.raises(InvariantError):
                    next_state(state, event)


@pytest.mark.parametrize("bad", [b"", b"[]", b'{"version": 1}', b'{"version": 2}', b"\xff"])
def test_a_damaged_record_is_named(bad: bytes) -> None:
    with pytest.raises(WireError):
        decode_group(bad)


def test_members_whose_heartbeats_came_while_the_process_stood_still_stay(tell: Callable) -> None:
    """A busy machine: the session's timer rings before the requests that wait in the sockets are read."""

    async def story(party: Party) -> None:
        joined = await party.join()
        await party.share(joined, {"a": joined}, a=b"all")
        await party.sleep(9.99)
        hardware = party.bench.world.node("broker").clock
        hardware.rate = 2e7
        await asyncio.sleep(1e-6)  # 20 s pass between two turns of the loop
        hardware.rate = 1.0
        await asyncio.sleep(0.1)
        await party.beat(joined)
        await party.sleep(8)
        assert await party.state() is GroupState.STABLE
        await party.sleep(10)
        assert await party.state() is GroupState.EMPTY  # a member that says nothing more is given up as ever

    tell(story, initial_delay_s=0)


# --- many members ------------------------------------------------------------------------------------------------


async def crowd(party: Party, size: int) -> list[Joined]:
    """A stable group of so many members, each with a share."""
    joined = await asyncio.gather(*(party.join() for _ in range(size)))
    shares = {str(at): f"share {at}".encode() for at in range(size)}
    leader = next(one for one in joined if one.members)
    given = await party.share(leader, {str(at): one for at, one in enumerate(joined)}, **shares)
    assert given == shares
    return list(joined)


def test_a_large_group_goes_on_as_it_was_written_down_without_members_that_left_while_it_was_written(
    tell: Callable,
) -> None:
    """Its record is encoded in turns of the loop, and so are its members answered."""

    async def story(party: Party) -> None:
        size = 600
        joined = await asyncio.gather(*(party.join() for _ in range(size)))
        leader = next(one for one in joined if one.members)
        assert [member_id for member_id, _, _ in leader.members] == [one.member_id for one in joined]
        given = {one.member_id: f"share {at}".encode() for at, one in enumerate(joined)}
        leads = asyncio.ensure_future(party.groups.sync("g", SyncRequest(1, leader.member_id, assignments=given)))
        party.asked.append(leads)
        while not party.groups._records._writing:
            await party.sleep(0)
        gone = joined[size // 2]
        assert await party.groups.leave("g", [(gone.member_id, None)]) == [None]
        with pytest.raises(RebalanceInProgressError):
            await leads
        while party.groups._records._writing:
            await party.sleep(0)
        await party.broker.unload(COORDINATOR)
        info = await party.groups.describe("g")
        assert [(member.member_id, member.assignment) for member in info.members] == [
            (member_id, share) for member_id, share in given.items() if member_id != gone.member_id
        ]

    tell(story)


def test_what_one_member_asks_does_not_look_at_the_others(tell: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from weir.broker.groups.members import Roster

    async def story(party: Party) -> None:
        members = await crowd(party, 50)
        scans = 0
        over_all = Roster.__iter__

        def counted(roster: Roster) -> Any:
            nonlocal scans
            scans += 1
            return over_all(roster)

        monkeypatch.setattr(Roster, "__iter__", counted)
        await party.beat(members[0])
        await party.groups.sync("g", SyncRequest(1, members[1].member_id))
        assert not scans
        await party.groups.leave("g", [(members[2].member_id, None)])  # the work is divided anew
        begun = scans
        for member in members[3:10]:
            assert await party.groups.leave("g", [(member.member_id, None)]) == [None]
        for member in members[10:20]:
            party.join(member_id=member.member_id)
        for _ in range(10):
            party.join()
        await party.sleep(0)
        assert len((await party.groups.describe("g")).members) == 52
        assert scans == begun + 1  # for the description

    tell(story)
