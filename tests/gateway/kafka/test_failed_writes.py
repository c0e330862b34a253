"""A write that fails, is fenced or times out is never confirmed, and no later write of its producer overtakes it.

A real broker over a fake bookie whose answers are held back, failed or fenced.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.gateway.kafka.errors import Code
from weir.model.errors import BookieError, BookieUnavailableError, LedgerFencedError
from weir.testing.kafka.stage import values_of
from weir.testing.kafka.transaction_stage import Client, Stage, play
from weir.testing.storage.fakes import FakeBookie

FAILURES = {"failed": BookieUnavailableError("the disk is full"), "fenced": LedgerFencedError("taken over")}
#: What makes a client send the batch again, to the partition's leader.
RETRIABLE = {Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT, Code.KAFKA_STORAGE_ERROR}

with_both = pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
with_each = pytest.mark.parametrize("failure", list(FAILURES.values()), ids=list(FAILURES))


def conversation(
    talk: Callable[[Stage, FakeBookie, "Sender"], Coroutine[Any, Any, None]], *, idempotent: bool = False
) -> None:
    """A topic with one stored batch, and a client that wrote it."""

    async def prepared(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        if idempotent:
            assert await client.init(None) == Code.NONE
        sender = Sender(stage, client)
        assert await sender.send(0, timeout_ms=60_000) == Code.NONE
        (bookie,) = stage.bookies.bookies.values()
        try:
            await talk(stage, bookie, sender)
        finally:  # else the broker would not close
            bookie.failure = None
            bookie.release()

    play(prepared)


class Sender:
    """Sends batch `mN` with sequence number N to partition 0 of `orders`."""

    def __init__(self, stage: Stage, client: Client) -> None:
        self.stage = stage
        self.client = client

    def begin(self, *numbers: int, timeout_ms: int = 60_000, acks: int = -1, index: int = 0) -> None:
        """One request for each number, pipelined."""
        for number in numbers:
            self.client.begin_send(
                {index: number}, b"m%d" % number, transactional=False, name=None, timeout_ms=timeout_ms, acks=acks
            )

    async def codes(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            answer = await self.client.hear()
            (part,) = answer.responses[0].partition_responses
            assert (part.base_offset >= 0) == (part.error_code == Code.NONE)
            found.append(int(part.error_code))
        return found

    async def send(self, number: int, **more: Any) -> int:
        self.begin(number, **more)
        return (await self.codes(1))[0]

    async def send_until_stored(self, number: int) -> None:
        """As a client does: again and again, while the answer says so."""
        while (code := await self.send(number)) != Code.NONE:
            assert code in RETRIABLE, Code(code)
            await self.stage.runtime.clock.sleep(0.5)

    async def stored(self) -> list[str]:
        reader = await self.stage.client()
        found: list[str] = []
        while True:
            reader.fetch(("orders", 0, len(found)), max_wait_ms=100)
            values = values_of(await reader.fetched())
            if not values:
                return found
            found += [value.decode() for _, value in values]


@with_both
@with_each
def test_a_failed_write_is_not_confirmed_nor_are_those_behind_it(failure: BookieError, idempotent: bool) -> None:
    async def talk(stage: Stage, bookie: FakeBookie, sender: Sender) -> None:
        bookie.hold()
        sender.begin(1, 2, 3)
        await stage.runtime.clock.sleep(1)
        assert not sender.client.frames
        bookie.failure = failure
        bookie.release(failure)
        assert set(await sender.codes(3)) <= RETRIABLE
        bookie.failure = None
        for number in (1, 2, 3):
            await sender.send_until_stored(number)
        stored = await sender.stored()
        assert stored[-3:] == ["m1", "m2", "m3"]
        if idempotent:  # what the failed ledger held after all is not stored once more
            assert stored == ["m0", "m1", "m2", "m3"]

    conversation(talk, idempotent=idempotent)


@with_each
def test_a_batch_behind_a_failed_one_is_refused_until_that_is_sent_again(failure: BookieError) -> None:
    async def talk(stage: Stage, bookie: FakeBookie, sender: Sender) -> None:
        bookie.failure = failure  # refused at once: no copy of it is left
        assert await sender.send(1) in RETRIABLE
        bookie.failure = None
        for _ in range(3):
            assert await sender.send(2) != Code.NONE
            await stage.runtime.clock.sleep(1)
        await sender.send_until_stored(1)
        await sender.send_until_stored(2)
        assert await sender.stored() == ["m0", "m1", "m2"]

    conversation(talk, idempotent=True)


@with_both
@with_each
def test_a_write_behind_a_failed_one_is_answered_in_time_while_storage_keeps_failing(
    failure: BookieError, idempotent: bool
) -> None:
    async def talk(stage: Stage, bookie: FakeBookie, sender: Sender) -> None:
        bookie.failure = failure
        codes = []
        for _ in range(4):
            async with asyncio.timeout(6):
                codes.append(await sender.send(1, timeout_ms=5000))
        assert set(codes) <= RETRIABLE
        assert Code.REQUEST_TIMED_OUT in codes
        bookie.failure = None
        await sender.send_until_stored(1)
        assert (await sender.stored())[-1] == "m1"

    conversation(talk, idempotent=idempotent)


@with_both
def test_a_write_that_times_out_is_not_confirmed_and_keeps_its_place(idempotent: bool) -> None:
    async def talk(stage: Stage, bookie: FakeBookie, sender: Sender) -> None:
        bookie.hold()
        sender.begin(1, timeout_ms=1000)
        sender.begin(2)
        assert await sender.codes(1) == [Code.REQUEST_TIMED_OUT]
        assert not sender.client.frames
        bookie.release()
        assert await sender.codes(1) == [Code.NONE]
        assert await sender.stored() == ["m0", "m1", "m2"]
        if idempotent:
            assert await sender.send(1) in {Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER}
            assert await sender.stored() == ["m0", "m1", "m2"]

    conversation(talk, idempotent=idempotent)


@with_both
@with_each
def test_a_write_behind_one_that_timed_out_and_then_fails_is_not_confirmed(
    failure: BookieError, idempotent: bool
) -> None:
    async def talk(stage: Stage, bookie: FakeBookie, sender: Sender) -> None:
        bookie.hold()
        sender.begin(1, timeout_ms=1000)
        sender.begin(2)
        assert await sender.codes(1) == [Code.REQUEST_TIMED_OUT]
        bookie.failure = failure
        bookie.release(failure)
        assert set(await sender.codes(1)) <= RETRIABLE
        bookie.failure = None
        await sender.send_until_stored(1)
        await sender.send_until_stored(2)
        assert (await sender.stored())[-2:] == ["m1", "m2"]

    conversation(talk, idempotent=idempotent)


@with_each
def test_a_client_without_acknowledgements_learns_of_a_failed_write(failure: BookieError) -> None:
    async def talk(stage: Stage, bookie: FakeBookie, sender: Sender) -> None:
        bookie.failure = failure
        sender.begin(1, acks=0)
        assert await sender.client.hangs_up()

    conversation(talk)


def test_only_the_partitions_of_a_request_that_are_stored_are_confirmed() -> None:
    async def talk(stage: Stage, bookie: FakeBookie, sender: Sender) -> None:
        former = set(bookie.ledgers)
        assert await sender.send(0, index=1) == Code.NONE
        (other,) = set(bookie.ledgers) - former
        bookie.ledgers[other].fenced = True
        sender.client.begin_send({0: 1, 1: 1}, b"m1", transactional=False, name=None)
        first, second = (await sender.client.hear()).responses[0].partition_responses
        assert (first.error_code, first.base_offset) == (Code.NONE, 1)
        assert (second.error_code, second.base_offset) == (Code.NOT_LEADER_OR_FOLLOWER, -1)

    conversation(talk)


@pytest.mark.parametrize("commit", [True, False])
@with_each
def test_a_transaction_whose_write_failed_holds_nothing_of_it(failure: BookieError, commit: bool) -> None:
    async def transaction(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        assert await client.init("x") == Code.NONE
        assert await client.add({"orders": [0]}) == [Code.NONE]
        assert await client.send(0, 0, b"kept") == Code.NONE
        (bookie,) = stage.bookies.bookies.values()
        bookie.failure = failure
        assert await client.send(0, 1, b"lost") != Code.NONE
        bookie.failure = None
        while (code := await client.end(commit)) != Code.NONE:
            assert code in {Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
            await stage.runtime.clock.sleep(0.5)
        reader = await stage.client()
        reader.fetch(("orders", 0, 0), max_wait_ms=100)
        assert [value for _, value in values_of(await reader.fetched())][:2] != [b"kept", b"lost"]

    play(transaction)
