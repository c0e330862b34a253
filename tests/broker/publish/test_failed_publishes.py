"""A batch that could not be stored is never confirmed, and none that its producer sent behind it is stored."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.producers import Outgoing, Receipt
from weir.model.batch import Stamp
from weir.model.errors import BookieUnavailableError, LedgerFencedError, WeirError
from weir.model.policies import Policies

_TURNS = 40
_FAILS_AT, _WORKS_AT = 10, 25


def plain(bench: Any, number: int) -> Outgoing:
    return bench.out(f"m{number}")


def numbered(bench: Any, number: int) -> Outgoing:
    return bench.out(f"m{number}", sequence=number, highest_sequence=number)


def stamped(bench: Any, number: int) -> Outgoing:
    return bench.out(f"m{number}", stamp=Stamp(7, 0, number))


def delayed_in_part(bench: Any, number: int) -> Outgoing:
    """Some batches go to the log and some to the holding area."""
    due = bench.runtime.clock.wall_ms() + 10_000
    later = {} if number % 4 else {"deliver_at_ms": due}
    return bench.out(f"m{number}", sequence=number, highest_sequence=number, **later)


def together(bench: Any, producer: Any, number: int) -> "asyncio.Future[Receipt]":
    receipt = producer.publish_all([bench.out(f"m{number}")])
    assert receipt is not None
    return receipt


KINDS: dict[str, Any] = {each.__name__: each for each in (plain, numbered, stamped, delayed_in_part, together)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", [BookieUnavailableError("down"), LedgerFencedError("taken over")])
@pytest.mark.parametrize("fails_at", range(_FAILS_AT, _FAILS_AT + 5))
def test_a_batch_behind_one_that_fails_fails_too(
    run: Callable, kind: str, failure: WeirError, fails_at: int
) -> None:
    """One batch per turn of the loop, so that some are sent in each state that the topic can be in."""

    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(deduplication=KINDS[kind] in (numbered, delayed_in_part)))
        producer = await bench.producer(topic, "p")
        receipts: list[asyncio.Future[Receipt]] = []
        #: For each batch, those before it whose receipt was open when it was sent.
        behind: list[list[asyncio.Future[Receipt]]] = []
        for turn in range(_TURNS):
            if turn in (fails_at, _WORKS_AT):
                for bookie in bench.bookies.bookies.values():
                    bookie.failure = failure if turn == fails_at else None
            behind.append([receipt for receipt in receipts if not receipt.done()])
            if KINDS[kind] is together:
                receipts.append(together(bench, producer, turn))
            else:
                receipts.append(producer.publish(KINDS[kind](bench, turn)))
            await asyncio.sleep(0)
        await asyncio.wait(receipts)
        failed = [receipt.exception() is not None for receipt in receipts]
        assert True in failed
        overtook = [
            number
            for number, before in enumerate(behind)
            if not failed[number] and any(receipt.exception() is not None for receipt in before)
        ]
        assert overtook == []
        confirmed = [f"m{number}" for number, was in enumerate(failed) if not was]
        again = await bench.topic(policies=topic.policies.over(Policies()))
        consumer, missing = await bench.consumer(again), set(confirmed)
        while missing:  # some that were not confirmed may be there, too
            missing.difference_update(bench.texts(await consumer.next(1000)))
        await again.close()

    run(scenario)
