"""What Apache Kafka 4.1.1 answers where a group is asked for something odd; each was seen there."""

from typing import Any

import pytest

from weir.gateway.kafka.admin_requests import NOT_ASKED
from weir.gateway.kafka.errors import Code
from weir.model.batch import Stamp
from weir.testing.broker.group_stage import Member, Table, play
from weir.testing.kafka.stage import batch_of
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import encode_subscription

_Protocol = m.JoinGroupRequest.JoinGroupRequestProtocol


def _protocol(name: str) -> Any:
    said = encode_subscription(0, m.ConsumerProtocolSubscription(topics=["orders"]))
    return _Protocol(name=name, metadata=said)


async def _begins_to_join(peer: Member, admin: Member) -> None:
    """A second member comes, and waits for the first."""
    request = m.JoinGroupRequest(
        group_id="g",
        protocol_type="consumer",
        protocols=[_protocol("range")],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
    )
    peer.ask(ApiKey.JOIN_GROUP, 3, request)
    for _ in range(100):  # it comes by a connection of its own
        if (await admin.described()).group_state == "PreparingRebalance":
            return
    raise AssertionError("nobody came")


def test_the_only_member_cannot_turn_to_a_protocol_that_it_did_not_know_before() -> None:
    async def conversation(table: Table) -> None:
        member = await table.member()
        joined = await member.settle()
        for change in ({"protocols": [_protocol("sticky")]}, {"protocol_type": "connect"}):
            again = await member.join(member_id=joined.member_id, **change)
            assert (again.error_code, again.generation_id) == (Code.INCONSISTENT_GROUP_PROTOCOL, -1)
        assert await member.beat(joined) == Code.NONE
        assert (await member.described()).group_state == "Stable"
        both = await member.join(member_id=joined.member_id, protocols=[_protocol("sticky"), _protocol("range")])
        assert (both.error_code, both.protocol_name) == (Code.NONE, "sticky")

    play(conversation)


def test_what_a_group_goes_by_is_told_only_while_it_is_stable() -> None:
    async def conversation(table: Table) -> None:
        first, second, admin = [await table.member() for _ in range(3)]
        joined = await first.join()
        await _is(admin, "CompletingRebalance", "", shown=False)
        await first.sync(joined, 5, **{joined.member_id.replace("-", "_"): [0]})
        await _is(admin, "Stable", "range", shown=True)
        await _begins_to_join(second, admin)
        await _is(admin, "PreparingRebalance", "", shown=False)
        shares = {one.member_id: bool(one.member_assignment) for one in (await admin.described()).members}
        assert shares.pop(joined.member_id)  # until it comes again
        assert not any(shares.values())

    play(conversation)


async def _is(admin: Member, state: str, protocol: str, *, shown: bool) -> None:
    told = await admin.described()
    assert (told.group_state, told.protocol_type, told.protocol_data) == (state, "consumer", protocol)
    assert all(bool(one.member_metadata) is shown for one in told.members)


@pytest.mark.parametrize("missing", [{"protocol_type": None}, {"protocol_name": None}], ids=["type", "name"])
def test_a_member_that_syncs_says_what_it_goes_by(missing: dict[str, None]) -> None:
    async def conversation(table: Table) -> None:
        member = await table.member()
        joined = await member.join()
        asked = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        refused = await member.call(ApiKey.SYNC_GROUP, 5, m.SyncGroupRequest(**{**asked, **missing}))
        assert refused.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        older = await member.call(ApiKey.SYNC_GROUP, 4, m.SyncGroupRequest(**asked))
        assert older.error_code == Code.NONE

    play(conversation)


def test_positions_on_topics_that_nobody_reads_are_deleted_also_while_members_join() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await table.topic("former", 1)
        member, second, admin = [await table.member() for _ in range(3)]
        joined = await member.settle()
        await member.commit({0: 1}, joined)
        await member.commit({0: 1}, joined, topic="former")
        await _begins_to_join(second, admin)
        assert await admin.offsets_deleted([0]) == [Code.GROUP_SUBSCRIBED_TO_TOPIC]
        assert await admin.offsets_deleted([0], topic="former") == [Code.NONE]

    play(conversation)


def test_positions_on_topics_that_members_do_not_read_any_more_expire() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        await table.topic("former", 1)
        member = await table.member()
        joined = await member.settle()
        await member.commit({0: 1}, joined)
        await member.commit({0: 1}, joined, topic="former")

        async def stays(seconds: int) -> None:
            for _ in range(seconds // 5):
                await table.runtime.clock.sleep(5)
                assert await member.beat(joined) == Code.NONE

        table.groups.start()
        await stays(90)
        assert await member.committed([0], topic="former") == {0: 1}
        await stays(30)
        assert await member.committed([0], topic="former") == {0: -1}
        assert await member.committed([0]) == {0: 1}

    play(conversation, retention_s=100, sweep_s=10)


def test_metadata_is_measured_in_characters() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        member = await table.member()
        assert await member.commit({0: 1}, metadata="ü" * 4096) == [Code.NONE]
        assert await member.commit({0: 2}, metadata="ü" * 4097) == [Code.OFFSET_METADATA_TOO_LARGE]
        assert await member.committed([0]) == {0: 1}

    play(conversation)


@pytest.mark.parametrize(("version", "code"), [(8, Code.ILLEGAL_GENERATION), (9, Code.GROUP_ID_NOT_FOUND)])
def test_a_member_of_a_group_that_there_is_not_commits_in_vain(version: int, code: int) -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        member = await table.member()
        ghost = m.JoinGroupResponse(generation_id=1, member_id="ghost")
        assert await member.commit({0: 1}, ghost, version) == [code]
        assert await member.groups() == []

    play(conversation)


def test_what_may_be_done_with_a_group_that_there_is_not_is_not_said() -> None:
    async def conversation(table: Table) -> None:
        member = await table.member()
        unknown = await member.described(include_authorized_operations=True)
        assert (unknown.error_code, unknown.authorized_operations) == (Code.GROUP_ID_NOT_FOUND, NOT_ASKED)
        dead = await member.described(5, include_authorized_operations=True)
        assert (dead.error_code, dead.group_state) == (Code.NONE, "Dead")
        assert dead.authorized_operations > 0

    play(conversation)


# --- idempotent producers -------------------------------------------------------------------------------------


def _part(answer: Any) -> tuple[int, int]:
    return answer.error_code, answer.base_offset


def test_what_comes_wrongly_to_an_idempotent_topic_does_not_hold_up_what_comes_rightly() -> None:
    async def conversation(table: Table) -> None:
        await table.topic()
        peer = await table.member()

        async def send(sequence: int, *values: bytes, epoch: int = 0) -> tuple[int, int]:
            peer.produce("orders", batch_of(*values, stamp=Stamp(7, epoch, sequence)))
            return _part(await peer.produced())

        refused = (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await send(0, b"a", b"b", b"c") == (Code.NONE, 0)
        assert await send(3, b"d", b"e") == (Code.NONE, 3)
        assert await send(0, b"a", b"b", b"c") == (Code.NONE, 0)  # again
        assert await send(0, b"a", b"b") == refused  # neither again nor next
        assert await send(4, b"e", b"f") == refused
        assert await send(9, b"j") == refused
        assert await send(5, b"f") == (Code.NONE, 5)
        assert await send(1, b"x", epoch=1) == refused
        assert await send(6, b"g") == (Code.NONE, 6)
        assert await send(0, b"h", epoch=1) == (Code.NONE, 7)
        for sequence in (7, 8):  # of a former life, whichever it is
            assert await send(sequence, b"h") == (Code.INVALID_PRODUCER_EPOCH, -1)
        assert await send(1, b"i", epoch=1) == (Code.NONE, 8)

    play(conversation)
