"""Transactions with an epoch of their own each: who the producer is afterwards, even if anybody dies."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from weir.broker.api.transactions import ProducerIdentity
from weir.broker.transactions.transaction import (
    MAX_EPOCH,
    Transaction,
    TransactionSettings,
    decode_transaction,
    encode_transaction,
)
from weir.broker.transactions.transaction_shards import EndStep, end_step
from weir.model.batch import BatchFlags
from weir.model.errors import (
    BookieUnavailableError,
    IllegalGenerationError,
    NotAuthorisedError,
    NotInTransactionError,
    StaleEpochError,
    TransactionBusyError,
    TransactionStateError,
    UnknownProducerError,
)
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionState
from weir.testing.broker.transaction_stage import T0, T1, T2, Coordinator, CrashingClient, Outside, crash_run

S = TransactionState
#: What is said to a batch of an earlier epoch; its producer id may be gone.
LATE = (StaleEpochError, NotInTransactionError)


def next_epoch(who: ProducerIdentity) -> ProducerIdentity:
    return ProducerIdentity(who.producer_id, who.epoch + 1)


async def marker_epochs(coordinator: Coordinator, part: TopicName) -> list[tuple[int, int]]:
    """Producer id and epoch of every marker in the log."""
    topic = await coordinator.topic(part)
    batches = await topic.stream.read(0, 1 << 20)
    return [
        (batch.stamp.producer_id, batch.stamp.epoch)
        for batch in batches
        if batch.flags & BatchFlags.CONTROL and batch.stamp is not None
    ]


# --- the decision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "asks", "commits", "aborts"),
    [
        (S.EMPTY, "now", TransactionStateError, EndStep.SKIP),
        (S.ONGOING, "now", EndStep.DECIDE, EndStep.DECIDE),
        (S.PREPARE_COMMIT, "now", TransactionBusyError, TransactionBusyError),
        (S.PREPARE_ABORT, "now", TransactionBusyError, TransactionBusyError),
        (S.COMPLETE_COMMIT, "now", TransactionStateError, EndStep.SKIP),
        (S.COMPLETE_ABORT, "now", TransactionStateError, EndStep.SKIP),
        (S.EMPTY, "before", StaleEpochError, StaleEpochError),
        (S.ONGOING, "before", StaleEpochError, StaleEpochError),
        (S.PREPARE_COMMIT, "before", EndStep.REPEAT, TransactionStateError),
        (S.PREPARE_ABORT, "before", TransactionStateError, EndStep.REPEAT),
        (S.COMPLETE_COMMIT, "before", EndStep.REPEAT, TransactionStateError),
        (S.COMPLETE_ABORT, "before", TransactionStateError, EndStep.REPEAT),
        *((state, "long ago", StaleEpochError, StaleEpochError) for state in S),
        *((state, "another", UnknownProducerError, UnknownProducerError) for state in S),
    ],
)
def test_every_state_knows_what_an_end_means(
    state: TransactionState, asks: str, commits: Any, aborts: Any
) -> None:
    transaction = Transaction("x", 7, 5, 1000, state=state, last_epoch=4)
    who = {
        "now": ProducerIdentity(7, 5),
        "before": ProducerIdentity(7, 4),
        "long ago": ProducerIdentity(7, 3),
        "another": ProducerIdentity(8, 5),
    }[asks]
    for commit, expected in ((True, commits), (False, aborts)):
        if isinstance(expected, EndStep):
            assert end_step(transaction, who, commit=commit) is expected
        else:
            with pytest.raises(expected):
                end_step(transaction, who, commit=commit)


def test_a_producer_that_was_fenced_cannot_ask_again() -> None:
    """Its transaction was aborted for it: nobody asked."""
    transaction = Transaction("x", 7, 4, 1000, state=S.ONGOING)
    transaction.count_epoch(asked=False)
    for state in (S.PREPARE_ABORT, S.COMPLETE_ABORT):
        transaction.state = state
        with pytest.raises(StaleEpochError):
            end_step(transaction, ProducerIdentity(7, 4), commit=False)


def test_a_record_keeps_both_producer_ids_and_older_records_have_none() -> None:
    one = Transaction("x", 7, MAX_EPOCH + 1, 1000, state=S.PREPARE_COMMIT, last_epoch=MAX_EPOCH, next_id=9)
    again = decode_transaction("x", encode_transaction(one))
    assert (again.last, again.following) == (ProducerIdentity(7, MAX_EPOCH), ProducerIdentity(9, 0))
    one.rename(9, one.last_epoch)
    again = decode_transaction("x", encode_transaction(one))
    assert (again.identity, again.last) == (ProducerIdentity(9, 0), ProducerIdentity(7, MAX_EPOCH))
    old = encode_transaction(Transaction("x", 7, 5, 1000)).replace(b'"ids":[-1,-1],', b"")
    assert b"ids" not in old
    assert decode_transaction("x", old).following == ProducerIdentity(7, 5)


# --- the coordinator ------------------------------------------------------------------------------------------


def test_each_end_begins_an_epoch_which_its_markers_carry(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        await coordinator.topic(T2)
        first = who = await transactions.init("x")
        for number, commit in enumerate([True, False, True]):
            await coordinator.begin(who, T0, T1, text=f"m{number}")
            await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(number + 1)}, joins=True)
            after = await transactions.end_epoch("x", who, commit=commit)
            assert after == next_epoch(who)
            assert await transactions.end_epoch("x", who, commit=commit) == after  # the answer was lost
            with pytest.raises(TransactionStateError):
                await transactions.end_epoch("x", who, commit=not commit)
            with pytest.raises(StaleEpochError):
                await coordinator.write(who, T0, "too late")
            with pytest.raises(StaleEpochError):
                await transactions.add_partitions("x", who, [T0])
            who = after
        assert await coordinator.seen(T0) == await coordinator.seen(T1) == ["m0", "m2"]
        assert await marker_epochs(coordinator, T0) == [(first.producer_id, n) for n in (1, 2, 3)]
        found = (await coordinator.offsets.fetch("g", [T2], stable=True))[T2]
        assert isinstance(found, CommittedOffset)
        assert found.offset == 3

    run(scenario)


def test_what_comes_late_to_another_partition_is_not_part_of_the_next_transaction(run: Callable) -> None:
    """With one epoch for both it would be: this is what epochs of their own are for."""

    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        who = await transactions.init("x")
        await transactions.add_partitions("x", who, [T0, T1])
        await coordinator.write(who, T0, "in time")
        after = await transactions.end_epoch("x", who, commit=False)
        await coordinator.begin(after, T1, text="next")
        with pytest.raises(StaleEpochError):
            await coordinator.write(who, T1, "late")
        await transactions.end_epoch("x", after, commit=True)
        assert (await coordinator.seen(T0), await coordinator.seen(T1)) == ([], ["next"])

    run(scenario)


def test_to_give_up_what_was_not_begun_begins_an_epoch_too(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        who = await transactions.init("x")
        with pytest.raises(TransactionStateError):
            await transactions.end_epoch("x", who, commit=True)
        after = await transactions.end_epoch("x", who, commit=False)
        assert after == await transactions.end_epoch("x", who, commit=False) == next_epoch(who)
        assert (await transactions.describe("x")).state is S.COMPLETE_ABORT
        await coordinator.begin(after, T0)
        last = await transactions.end_epoch("x", after, commit=True)
        assert await transactions.end_epoch("x", last, commit=False) == next_epoch(last)
        assert await coordinator.seen(T0) == ["m"]

    run(scenario)


def test_when_epochs_are_used_up_the_end_gives_a_new_producer_id(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        first = await transactions.init("x")
        with patch("weir.broker.transactions.transaction_coordinator.MAX_EPOCH", 1):
            await coordinator.begin(first, T0, text="a")
            last = await transactions.end_epoch("x", first, commit=True)
            assert last == next_epoch(first)
            await coordinator.begin(last, T0, text="b")
            fresh = await transactions.end_epoch("x", last, commit=True)
            assert (fresh.epoch, fresh.producer_id != first.producer_id) == (0, True)
            assert await transactions.end_epoch("x", last, commit=True) == fresh  # the answer was lost
            assert await marker_epochs(coordinator, T0) == [(first.producer_id, 1), (first.producer_id, 2)]
            with pytest.raises(UnknownProducerError):
                await transactions.add_partitions("x", last, [T0])
            with pytest.raises(LATE):
                await coordinator.write(last, T0, "late")
            await coordinator.begin(fresh, T0, text="c")
            await transactions.end_epoch("x", fresh, commit=False)
            skipped = await transactions.end_epoch("x", next_epoch(fresh), commit=False)
            assert (skipped.epoch, skipped.producer_id != fresh.producer_id) == (0, True)
            assert await transactions.end_epoch("x", next_epoch(fresh), commit=False) == skipped
            await coordinator.begin(skipped, T0, text="d")
            await transactions.end_epoch("x", skipped, commit=True)
        assert await coordinator.seen(T0) == ["a", "b", "d"]

    run(scenario)


def test_a_producer_that_goes_on_at_the_last_epoch_is_never_given_the_one_that_fences(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        with patch("weir.broker.transactions.transaction_coordinator.MAX_EPOCH", 0):
            first = await transactions.init("x")
            await coordinator.begin(first, T0)
            second = await transactions.init("x", expected=first)
            assert (second.epoch, second.producer_id != first.producer_id) == (0, True)
            assert await transactions.init("x", expected=first) == second  # the answer was lost

    run(scenario)


def test_until_the_markers_are_written_the_next_transaction_has_to_wait(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench, TransactionSettings(end_wait_s=1.0))
        transactions = coordinator.transactions
        who = await transactions.init("x")
        await coordinator.begin(who, T0)
        topic = await coordinator.topic(T0)
        end, down = topic.end_transaction, True

        async def flaky(*args: Any, **more: Any) -> None:
            if down:
                raise BookieUnavailableError("down")
            await end(*args, **more)

        topic.end_transaction = flaky  # type: ignore[method-assign]
        with patch("weir.broker.transactions.transaction_coordinator.MAX_EPOCH", 0):
            after = await transactions.end_epoch("x", who, commit=True)  # decided
        assert after.producer_id != who.producer_id
        for attempt in (
            transactions.add_partitions("x", after, [T0]),
            transactions.commit_offsets("x", after, "g", {T2: CommittedOffset(1)}, joins=True),
            transactions.end_epoch("x", after, commit=False),
            transactions.end_epoch("x", who, commit=True),
        ):
            with pytest.raises(TransactionBusyError):
                await attempt
        down = False
        await coordinator.settled()
        assert await transactions.end_epoch("x", who, commit=True) == after
        await coordinator.begin(after, T0, text="next")
        await transactions.end_epoch("x", after, commit=True)
        assert await coordinator.seen(T0) == ["m", "next"]

    run(scenario)


def test_one_that_is_open_for_too_long_is_aborted_and_its_end_refused(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench)
        transactions = coordinator.transactions
        who = await transactions.init("x", timeout_ms=10_000)
        await coordinator.begin(who, T0)
        await bench.runtime.clock.sleep(13)
        for commit in (True, False):
            with pytest.raises(StaleEpochError):
                await transactions.end_epoch("x", who, commit=commit)
        assert await coordinator.seen(T0) == []

    run(scenario)


def test_what_is_part_of_a_transaction_is_known_at_once(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await Coordinator.make(bench, may_use_all=lambda role: role == "admin")
        transactions = coordinator.transactions
        assert not transactions.joined("x", 1, 0)
        who = await transactions.init("x", role="me")
        assert not transactions.joined("x", who.producer_id, who.epoch, "me")
        await transactions.add_partitions("x", who, [T0], role="me")
        assert list(transactions.joined("x", who.producer_id, who.epoch, "me")) == [T0]
        assert list(transactions.joined("x", who.producer_id, who.epoch, "admin")) == [T0]
        assert not transactions.joined("x", who.producer_id, who.epoch, "you")
        assert not transactions.joined("x", who.producer_id, who.epoch + 1, "me")
        with pytest.raises(NotAuthorisedError):
            await transactions.end_epoch("x", who, commit=True, role="you")
        after = await transactions.end_epoch("x", who, commit=True, role="me")
        assert not transactions.joined("x", who.producer_id, who.epoch, "me")
        assert not transactions.joined("x", after.producer_id, after.epoch, "me")

    run(scenario)


def test_a_group_that_does_not_allow_it_is_no_part_of_the_transaction(run: Callable) -> None:
    async def scenario(bench: Any) -> None:
        transactions = (await Coordinator.make(bench)).transactions
        who = await transactions.init("x")

        def refuse() -> None:
            raise IllegalGenerationError("another generation")

        with pytest.raises(IllegalGenerationError):
            await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(1)}, joins=True, check=refuse)
        assert (await transactions.describe("x")).state is S.EMPTY
        with pytest.raises(NotInTransactionError):
            await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(1)})
        await transactions.commit_offsets("x", who, "g", {T2: CommittedOffset(1)}, joins=True)
        assert (await transactions.describe("x")).groups == ("g",)

    run(scenario)


# --- crashes --------------------------------------------------------------------------------------------------


class GoingOn(CrashingClient):
    """A producer that asks the next broker for what the last one did not answer, and goes on as the same. What it
    had not asked to be decided it gives up."""

    async def work(self, coordinator: Coordinator, outside: Outside, first: int, plan: Sequence[bool]) -> None:
        transactions = coordinator.transactions
        await coordinator.topic(T2)
        if outside.last is None:
            outside.last = await transactions.init("x", timeout_ms=60_000)
        for number, commit in enumerate(plan, first):
            outside.began.append(number)
            outside.asked = (number, False)
            await coordinator.begin(outside.last, T0, T1, text=f"{number}")
            moved = {T2: CommittedOffset(number * 10)}
            await transactions.commit_offsets("x", outside.last, "g", moved, joins=True)
            outside.asked = (number, commit)
            await self.resume(coordinator, outside)

    async def resume(self, coordinator: Coordinator, outside: Outside) -> None:
        if outside.last is None or outside.asked is None:
            return
        number, commit = outside.asked
        while True:
            try:
                after = await coordinator.transactions.end_epoch("x", outside.last, commit=commit)
                break
            except TransactionBusyError:  # the one before is still being ended, by this broker
                await coordinator.bench.runtime.clock.sleep(0.1)
        assert after not in (outside.last, None)
        outside.last, outside.asked, outside.told[number] = after, None, commit

    async def check_fenced(self, coordinator: Coordinator, before: ProducerIdentity, outside: Outside) -> None:
        assert outside.last is not None
        with pytest.raises(LATE):
            await coordinator.write(before, T0, "late")
        with pytest.raises(TransactionStateError):  # it was committed
            await coordinator.transactions.end_epoch("x", before, commit=False)
        assert await coordinator.transactions.end_epoch("x", before, commit=True) == outside.last


@pytest.mark.slow
@pytest.mark.parametrize("last_epoch", [MAX_EPOCH, 0], ids=["epochs", "producer ids"])
@pytest.mark.parametrize("stored", [False, True], ids=["before it is stored", "right after"])
def test_after_a_crash_at_any_durable_step_the_producer_goes_on_as_if_nothing_had_happened(
    bench_type: Any, stored: bool, last_epoch: int
) -> None:
    at = 1
    with patch("weir.broker.transactions.transaction_coordinator.MAX_EPOCH", last_epoch):
        while not crash_run(bench_type, at, stored, GoingOn()):
            at += 1
    assert at > 20  # so many steps there are, at least
