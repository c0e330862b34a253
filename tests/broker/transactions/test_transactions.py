"""The coordinator of transactions: all or nothing over partitions and positions, whoever dies and when."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.api.transactions import ProducerIdentity
from weir.broker.coordination.shards import COORDINATOR
from weir.broker.standalone import PlainRegistry
from weir.broker.transactions.transaction import (
    MAX_EPOCH,
    STATES,
    Transaction,
    TransactionEvent,
    TransactionSettings,
    decode_transaction,
    encode_transaction,
    next_state,
)
from weir.model.errors import (
    BookieUnavailableError,
    InvalidNameError,
    NotAllowedError,
    NotAuthorisedError,
    NotInTransactionError,
    NotOwnerError,
    SinkOfOtherQueryError,
    StaleEpochError,
    TransactionBusyError,
    TransactionStateError,
    TransactionTimeoutError,
    UnknownProducerError,
    UnknownTransactionError,
    UnstablePositionError,
    WireError,
)
from weir.model.transactions import CommittedOffset, TransactionState
from weir.testing.broker.transaction_stage import T0, T1, T2, Coordinator, CrashingClient, Outside, crash_run

S = TransactionState

# --- the table ------------------------------------------------------------------------------------------------


def test_every_state_and_event_leads_somewhere_or_is_refused() -> None:
    for state in TransactionState:
        for event in TransactionEvent:
            if event in STATES[state]:
                assert next_state(state, event) is STATES[state][event]
            else:
                with pytest.raises(TransactionStateError):
                    next_state(state, event)
    assert STATES.keys() == set(TransactionState)


def test_a_record_comes_back_as_it_was_and_junk_is_named_so() -> None:
    moved = {"g": {T0: CommittedOffset(5, 1, "note")}}
    one = Transaction("x", 4, 3, 1000, "me", S.PREPARE_COMMIT, 2, 10, 20, {T0: None, T1.at(3): None}, moved)
    again = decode_transaction("x", encode_transaction(one))
    assert (again.parts, again.groups, again.info()) == (one.parts, one.groups, one.info())
    for junk in (b"", b"{}", b"[]", b'{"version": 1}', b'{"version": 9}', encode_transaction(one)[:-5]):
        with pytest.raises(WireError):
            decode_transaction("x", junk)


@given(st.binary(max_size=50))
def test_no_bytes_but_a_record_are_taken_for_one(junk: bytes) -> None:
    with pytest.raises(WireError):
        decode_transaction("x", junk)


# --- producers ------------------------------------------------------------------------------------------------


def test_producer_ids_are_never_given_twice_even_after_a_crash(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        found = []
        for _ in range(3):
            coordinator = await Coordinator.make(bench)
            found += [(await coordinator.transactions.init(None)).producer_id for _ in range(12)]
            found.append((await coordinator.transactions.init(f"x{len(found)}")).producer_id)
        assert len(set(found)) == len(found)

    run(scenario)


def test_each_new_producer_of_an_id_fences_those_before_it(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        first = await transactions.init("x")
        second = await transactions.init("x")
        assert second == ProducerIdentity(first.producer_id, first.epoch + 1)
        with pytest.raises(StaleEpochError):
            await transactions.add_partitions("x", first, [T0])
        with pytest.raises(StaleEpochError):
            await transactions.end("x", first, commit=True)
        with pytest.raises(UnknownProducerError):
            await transactions.add_partitions("y", first, [T0])
        with pytest.raises(UnknownProducerError):
            await transactions.add_partitions("x", ProducerIdentity(99999, 0), [T0])
        with pytest.raises(InvalidNameError):
            await transactions.init("")
        for timeout_ms in (0, -1, 15 * 60_000 + 1):
            with pytest.raises(TransactionTimeoutError):
                await transactions.init("x", timeout_ms=timeout_ms)

    run(scenario)


def test_a_new_producer_aborts_what_the_one_before_left_open(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        first = await coordinator.transactions.init("x")
        await coordinator.begin(first, T0, T1)
        second = await coordinator.transactions.init("x")
        assert second.epoch == first.epoch + 2  # one fences, one is the new one's
        with pytest.raises(StaleEpochError):
            await coordinator.write(first, T0, "too late")
        await coordinator.begin(second, T0, T1, text="new")
        await coordinator.transactions.end("x", second, commit=True)
        assert [await coordinator.seen(part) for part in (T0, T1)] == [["new"], ["new"]]

    run(scenario)


def test_a_producer_that_goes_on_gets_the_next_epoch_and_may_ask_again(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        transactions = (await Coordinator.make(bench)).transactions
        first = await transactions.init("x")
        second = await transactions.init("x", expected=first)
        assert second.epoch == first.epoch + 1
        assert await transactions.init("x", expected=first) == second  # the answer was lost
        third = await transactions.init("x")  # another producer
        with pytest.raises(StaleEpochError):
            await transactions.init("x", expected=second)
        with pytest.raises(StaleEpochError):
            await transactions.init("x", expected=first)
        assert (await transactions.init("x", expected=third)).epoch == third.epoch + 1

    run(scenario)


def test_a_producer_that_goes_on_may_leave_a_transaction_open(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        first = await coordinator.transactions.init("x")
        await coordinator.begin(first, T0)
        second = await coordinator.transactions.init("x", expected=first)
        assert second.epoch == first.epoch + 1
        await coordinator.begin(second, T0, text="new")
        await coordinator.transactions.end("x", second, commit=True)
        assert await coordinator.seen(T0) == ["new"]

    run(scenario)


def test_when_epochs_are_used_up_the_id_gets_a_new_producer_id(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        first = await transactions.init("x")
        shard = next(iter(transactions._shards._loaded.values()))
        shard.by_id["x"].epoch = MAX_EPOCH - 1
        last = await transactions.init("x")
        assert last == ProducerIdentity(first.producer_id, MAX_EPOCH)
        await coordinator.begin(last, T0)
        fresh = await transactions.init("x")
        assert fresh.epoch == 0
        assert fresh.producer_id > first.producer_id
        await coordinator.begin(fresh, T0, text="new")
        await transactions.end("x", fresh, commit=True)
        assert await coordinator.seen(T0) == ["new"]
        with pytest.raises(UnknownProducerError):
            await transactions.add_partitions("x", last, [T0])

    run(scenario)


def test_an_id_is_its_first_users_where_roles_matter(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench, may_use_all=lambda role: role == "admin")
        transactions = coordinator.transactions
        mine = await transactions.init("x", role="me")
        with pytest.raises(NotAuthorisedError):
            await transactions.init("x", role="you")
        with pytest.raises(NotAuthorisedError):
            await transactions.add_partitions("x", mine, [T0], role="you")
        await transactions.add_partitions("x", mine, [T0], role="admin")
        await transactions.end("x", mine, commit=True, role="me")

    run(scenario)


# --- transactions ---------------------------------------------------------------------------------------------


def test_partitions_and_positions_commit_together_and_abort_together(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions, offsets = coordinator.transactions, coordinator.offsets
        await coordinator.topic(T2)
        who = await transactions.init("x")
        for number, commit in enumerate([True, False, True]):
            await coordinator.begin(who, T0, T1, text=f"m{number}")
            await transactions.add_offsets("x", who, "g")
            await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(number + 1, 3, "note")})
            unstable = await offsets.fetch("g", [T2], stable=True)
            assert isinstance(unstable[T2], UnstablePositionError)
            await transactions.end("x", who, commit=commit)
            await transactions.end("x", who, commit=commit)  # the answer was lost
            with pytest.raises(TransactionStateError):
                await transactions.end("x", who, commit=not commit)
            found = (await offsets.fetch("g", [T2], stable=True))[T2]
            assert isinstance(found, CommittedOffset)
            assert (found.offset, found.leader_epoch, found.metadata) == (number + commit, 3, "note")
        assert await coordinator.seen(T0) == await coordinator.seen(T1) == ["m0", "m2"]
        info = await transactions.describe("x")
        assert (info.state, info.parts, info.groups, info.started_ms) == (S.COMPLETE_COMMIT, (), (), -1)

    run(scenario)


def test_only_what_belongs_to_an_open_transaction_can_be_written(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        who = await transactions.init("x")
        with pytest.raises(TransactionStateError):
            await coordinator.write(who, T0, "nothing was begun")
        with pytest.raises(TransactionStateError):
            await transactions.end("x", who, commit=True)
        with pytest.raises(TransactionStateError):
            await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(1)})
        await coordinator.begin(who, T0)
        with pytest.raises(TransactionStateError):
            await coordinator.write(who, T1, "not added")
        await transactions.end("x", who, commit=True)
        with pytest.raises(TransactionStateError):
            await coordinator.write(who, T0, "over")
        with pytest.raises(TransactionStateError):
            await coordinator.write(await transactions.init(None), T0, "without a transactional id")
        topic = await coordinator.topic(T0)
        assert topic.stable_offset == topic.end_offset == 2

    run(scenario)


def test_what_was_decided_while_a_partition_was_down_is_done_when_it_is_back(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench, TransactionSettings(end_wait_s=1.0))
        transactions = coordinator.transactions
        who = await transactions.init("x")
        await coordinator.begin(who, T0, T1)
        topic = await coordinator.topic(T1)
        end = topic.end_transaction
        down = True

        async def flaky(*args: Any, **more: Any) -> None:
            if down:
                raise BookieUnavailableError("down")
            await end(*args, **more)

        topic.end_transaction = flaky  # type: ignore[method-assign]
        await transactions.end("x", who, commit=True)  # decided
        assert (await transactions.describe("x")).state is S.PREPARE_COMMIT
        with pytest.raises(TransactionBusyError):
            await transactions.add_partitions("x", who, [T0])
        with pytest.raises(TransactionBusyError):
            await transactions.end("x", who, commit=True)
        with pytest.raises(TransactionBusyError):
            await transactions.init("x")
        assert await coordinator.seen(T0) == ["m"]
        down = False
        await coordinator.settled()
        assert await coordinator.seen(T1) == ["m"]
        assert (await transactions.init("x")).epoch == who.epoch + 1

    run(scenario)


def test_no_marker_is_sent_before_the_decision_is_durable(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        who = await coordinator.transactions.init("x")
        await coordinator.begin(who, T0)
        ledger = (await coordinator.topic(T0)).stream.chain.spans[-1].ledger_id
        bookies = bench.bookies.bookies.values()

        def entries() -> int:
            return sum(len(b.ledgers[ledger].entries) for b in bookies if ledger in b.ledgers)

        before = entries()
        for bookie in bookies:
            bookie.hold()
        ending = asyncio.ensure_future(coordinator.transactions.end("x", who, commit=True))
        await bench.runtime.clock.sleep(2)
        assert entries() == before
        assert not ending.done()
        for bookie in bookies:
            bookie.release()
        await ending
        assert entries() > before

    run(scenario)


def test_positions_are_stable_only_when_it_is_durable_that_they_were_moved(run: Callable) -> None:
    """Else a crash would move them again, after others have gone on from there."""

    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions, offsets = coordinator.transactions, coordinator.offsets
        await coordinator.topic(T2)
        who = await transactions.init("x")
        await transactions.add_offsets("x", who, "g")
        await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(5)})
        commit = offsets.commit
        shard = next(iter(transactions._shards._loaded))
        flush = shard.state.flush
        done = asyncio.Event()

        async def commit_then_stall(*args: Any, **more: Any) -> Any:
            result = await commit(*args, **more)
            shard.state.flush = stall  # type: ignore[method-assign]
            return result

        async def stall() -> None:
            await done.wait()
            await flush()

        offsets.commit = commit_then_stall  # type: ignore[method-assign]
        ending = asyncio.ensure_future(transactions.end("x", who, commit=True))
        await bench.runtime.clock.sleep(2)
        shard.state.flush = flush  # type: ignore[method-assign]
        assert isinstance((await offsets.fetch("g", [T2], stable=True))[T2], UnstablePositionError)
        done.set()
        await ending
        found = (await offsets.fetch("g", [T2], stable=True))[T2]
        assert isinstance(found, CommittedOffset)
        assert found.offset == 5

    run(scenario)


def test_a_partition_that_is_deleted_meanwhile_needs_no_marker(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        who = await coordinator.transactions.init("x")
        await coordinator.begin(who, T0, T1)
        await coordinator.broker.delete(T1, force=True)
        await coordinator.transactions.end("x", who, commit=True)
        assert (await coordinator.transactions.describe("x")).state is S.COMPLETE_COMMIT

    run(scenario)


def test_one_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        who = await transactions.init("x", timeout_ms=10_000)
        await coordinator.begin(who, T0)
        await transactions.add_offsets("x", who, "g")
        await transactions.commit_offsets("x", who, "g", {T0: CommittedOffset(1)})
        await bench.runtime.clock.sleep(8)
        await coordinator.write(who, T0, "still open")
        await bench.runtime.clock.sleep(5)
        with pytest.raises(StaleEpochError):
            await transactions.end("x", who, commit=True)
        with pytest.raises(StaleEpochError):
            await coordinator.write(who, T0, "too late")
        assert (await transactions.describe("x")).state is S.COMPLETE_ABORT
        assert await coordinator.seen(T0) == []
        assert await coordinator.offsets.fetch("g", [T0], stable=True) == {}

    run(scenario)


def test_ids_that_nobody_uses_are_forgotten(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench, TransactionSettings(forget_s=100.0))
        transactions = coordinator.transactions
        await transactions.init("x")
        busy = await transactions.init("busy", timeout_ms=900_000)
        await coordinator.begin(busy, T0, name="busy")
        await bench.runtime.clock.sleep(105)
        with pytest.raises(UnknownTransactionError):
            await transactions.describe("x")
        assert [info.id for info in await transactions.all()] == ["busy"]

    run(scenario)


def test_a_sink_commits_all_writers_or_none_and_each_epoch_once(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions

        async def written(epoch: int, *names: str) -> list[tuple[str, ProducerIdentity]]:
            found = []
            for name in names:
                who = await transactions.init(name)
                await coordinator.begin(who, T0, name=name, text=f"{name}-{epoch}")
                found.append((name, who))
            return found

        assert await transactions.sink_epoch("s") == -1
        idle = await transactions.init("idle")
        assert await transactions.commit_together("s", 0, [*await written(0, "a", "b"), ("idle", idle)])
        assert await transactions.sink_epoch("s") == 0
        assert await coordinator.seen(T0) == ["a-0", "b-0"]
        again = await written(0, "a", "b")  # the driver died after its commit, and does the epoch again
        assert not await transactions.commit_together("s", 0, again)
        for name, who in again:
            await transactions.end(name, who, commit=False)
        stale = await written(1, "a", "b")
        fresh = await transactions.init("b")  # a task was started again
        with pytest.raises(StaleEpochError):
            await transactions.commit_together("s", 1, stale)
        assert await transactions.sink_epoch("s") == 0
        await coordinator.begin(fresh, T0, name="b", text="b-1")
        assert await transactions.commit_together("s", 1, [stale[0], ("b", fresh)])
        assert await coordinator.seen(T0) == ["a-0", "b-0", "a-1", "b-1"]

    run(scenario)


def test_a_sink_has_the_epochs_of_one_query_until_another_takes_it_over(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        transactions = (await Coordinator.make(bench)).transactions
        together = transactions.commit_together
        assert await together("s", 7, [])  # by an older client, which names no query
        with pytest.raises(SinkOfOtherQueryError, match="epoch 7 of an unknown query"):
            await together("s", 0, [], query="q1")
        assert await together("s", 8, [], query="q1")
        assert not await together("s", 8, [], query="q1")
        for epoch in (0, 8, 9):
            with pytest.raises(SinkOfOtherQueryError, match="epoch 8 of query q1") as refused:
                await together("s", epoch, [], query="q2")
            assert "sinkTakeOver=q1" in refused.value.hint
            assert "another sinkId" in refused.value.hint
        with pytest.raises(SinkOfOtherQueryError):
            await together("s", 0, [], query="q2", instead_of="q3")
        assert await together("s", 0, [], query="q2", instead_of="q1")
        assert not await together("s", 0, [], query="q2", instead_of="q1")
        with pytest.raises(SinkOfOtherQueryError, match="of query q2"):
            await together("s", 9, [], query="q1", instead_of="q1")
        assert await together("s", 1, [], query="q2", instead_of="q1")
        assert await together("s", 2, [])
        await transactions.forget_sink("s")
        assert await together("s", 0, [], query="q1")

    run(scenario)


def test_among_several_shards_a_sinks_writers_are_in_its_own_by_their_names(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench, shards_wanted=16)
        transactions = coordinator.transactions
        names = [f"weir-sink/s/{number}" for number in range(5)]
        who = {name: await transactions.init(name) for name in [*names, "x", "y", "z"]}
        assert len({identity.producer_id % 16 for identity in who.values()}) > 1
        assert len({who[name].producer_id % 16 for name in names}) == 1
        for name in who:
            await coordinator.begin(who[name], T0, name=name, text=name)
        with pytest.raises(NotAllowedError):
            await transactions.commit_together("s", 0, list(who.items()))
        assert await transactions.commit_together("s", 0, [(name, who[name]) for name in names])
        for name in "xyz":
            await transactions.end(name, who[name], commit=False)
        assert await coordinator.seen(T0) == names
        assert len(await transactions.all()) == len(who)

    run(scenario)


def test_another_broker_goes_on_where_the_first_one_stopped(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        registry = PlainRegistry()
        first = await Coordinator.make(bench, registry=registry)
        who = await first.transactions.init("x", timeout_ms=20_000)
        await first.begin(who, T0, T1)
        await first.transactions.add_offsets("x", who, "g")
        await first.transactions.commit_offsets("x", who, "g", {T0: CommittedOffset(1)})
        second = await Coordinator.make(bench, registry=registry)
        second.sequences = first.sequences
        await second.transactions.all()
        with pytest.raises(NotOwnerError):
            await first.transactions.add_offsets("x", who, "h")
        unstable = await second.offsets.fetch("g", [T0], stable=True)
        assert isinstance(unstable[T0], UnstablePositionError)
        await second.write(who, T0, "more")  # it is still open
        await second.transactions.end("x", who, commit=True)
        assert await second.seen(T0) == ["m", "more"]
        assert await second.seen(T1) == ["m"]
        found = (await second.offsets.fetch("g", [T0], stable=True))[T0]
        assert isinstance(found, CommittedOffset)
        assert found.offset == 1

    run(scenario)


def test_what_is_begun_in_a_topic_waits_until_the_coordinator_is_loaded(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        who = await coordinator.transactions.init("x")
        await coordinator.transactions.add_partitions("x", who, [T0])
        await coordinator.topic(T0)
        await coordinator.broker.unload(COORDINATOR)
        assert await coordinator.write(who, T0, "m", "n") == [0, 1]
        await coordinator.transactions.end("x", who, commit=True)
        await coordinator.broker.unload(COORDINATOR)
        with pytest.raises(NotInTransactionError):
            await coordinator.write(who, T0, "late")
        assert await coordinator.seen(T0) == ["m", "n"]

    run(scenario)


# --- crashes --------------------------------------------------------------------------------------------------


class Restarting(CrashingClient):
    """A producer that begins anew, under the same transactional id."""

    async def work(self, coordinator: Coordinator, outside: Outside, first: int, plan: Sequence[bool]) -> None:
        transactions = coordinator.transactions
        await coordinator.topic(T2)
        who = outside.last = await transactions.init("x", timeout_ms=5_000)
        for number, commit in enumerate(plan, first):
            outside.began.append(number)
            await coordinator.begin(who, T0, T1, text=f"{number}")
            await transactions.add_offsets("x", who, "g")
            await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(number * 10)})
            await transactions.end("x", who, commit=commit)
            outside.told[number] = commit

    async def check_fenced(self, coordinator: Coordinator, before: ProducerIdentity, outside: Outside) -> None:
        assert outside.last is not None
        if before.producer_id == outside.last.producer_id:
            with pytest.raises(StaleEpochError):
                await coordinator.transactions.end("x", before, commit=True)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True], ids=["before it is stored", "right after"])
def test_after_a_crash_at_any_durable_step_all_is_decided_the_same_way_everywhere(
    bench_type: Any, stored: bool
) -> None:
    at = 1
    while not crash_run(bench_type, at, stored, Restarting()):
        at += 1
    assert at > 20  # so many steps there are, at least
