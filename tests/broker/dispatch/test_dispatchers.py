"""Subscriptions of every type under any sequence of events: who gets what, against a model.

What must hold: no message with two consumers at once, nothing lost, credit respected, order per key kept whoever
comes and goes, nobody with credit left waiting while there is something for them.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weir.broker.api.consumers import Delivery, KeyShared, SubscribeRequest, SubscriptionType
from weir.broker.log.log_feed import ReadCommittedLog
from weir.broker.log.transaction_index import TransactionIndex
from weir.broker.rates import Histogram, RateLimit
from weir.broker.settings import BrokerSettings
from weir.broker.subscriptions import demand_ring, key_shared, per_message
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.queue_mode import QueueMode
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.subscriptions.subscription_state import SubscriptionParts
from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.errors import BrokerError, ConsumerClosedError
from weir.model.policies import Priority, Rate
from weir.runtime.tasks import TaskScope
from weir.stream.cursor import Cursor
from weir.testing.kinds import rounds


class FakeClock:
    """Stands still."""

    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        raise AssertionError("nothing is due here")


class FakeState:
    """Persists nothing."""

    def get(self, key: str) -> bytes | None:
        return None

    def mark(self, key: str, source: object) -> None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def delete(self, key: str) -> None: ...


class FakeLog:
    """Batches in memory; some are not cached and must be read in the background."""

    def __init__(self, dice: Random) -> None:
        self.batches: list[Batch] = []
        self.start_offset = 0
        self.index = TransactionIndex()
        self._dice = dice

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    @property
    def stable_offset(self) -> int:
        return self.index.stable(self.end_offset)

    def add(self, keys: list[bytes], flags: BatchFlags = BatchFlags.NONE) -> None:
        self.batches.append(Batch(self.end_offset, len(keys), BatchFormat.PULSAR, 0, b" ".join(keys), flags))

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        if offset >= self.end_offset:
            return []
        return None if self._dice.random() < 0.3 else self._from(offset)

    def _from(self, offset: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.end_offset > offset][:3]

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return self._from(offset)


def levels_of(batch: Batch) -> list[int]:
    """The number in the key."""
    return [int(key[1:]) for key in bytes(batch.payload).split()]


def keys_of(batch: Batch) -> bytes | list[bytes]:
    keys = bytes(batch.payload).split()
    return keys[0] if len(set(keys)) == 1 else keys


class Model:
    """A subscription, its consumers, and what they have."""

    def __init__(
        self, kind: SubscriptionType, seed: int, look_ahead: int, sticky: bool, levels: int | None = None
    ) -> None:
        """`levels`: of a queue, whose messages are dealt one by one; None: it is no queue."""
        self.kind, self.sticky = kind, sticky
        self.exact = levels is not None
        self.dice = Random(seed)
        self.log = FakeLog(self.dice)
        clock: Any = FakeClock()
        state: Any = FakeState()
        view: Any = None
        around = SubscriptionParts(
            clock,
            BrokerSettings(look_ahead=look_ahead),
            self.log,
            ReadCommittedLog(self.log, self.log),
            view,
            state,
            TaskScope("test"),
            keys_of,
            RateLimit(clock, Rate(), 1.0),
            Histogram(),
            None,
            lambda subscription: None,
            QueueMode(Priority(levels or 0, 0)),
            levels_of,
        )
        self.name = "queue" if self.exact else "s"
        self.subscription = Subscription(around, self.name, Cursor(), durable=True)
        self.held: dict[BrokerConsumer, dict[int, int]] = {}  # offset to times delivered before
        self.seen: dict[int, int] = {}  # offset to times delivered
        self.names = 0

    def key(self, offset: int) -> bytes:
        batch = next(b for b in self.log.batches if b.base_offset <= offset < b.end_offset)
        return bytes(batch.payload).split()[offset - batch.base_offset]

    @property
    def acked(self) -> Callable[[int], bool]:
        return self.subscription.cursor.is_acked

    def join(self) -> None:
        self.names += 1
        mode = None
        if self.sticky:
            size = 65536 // 4
            mode = KeyShared(sticky=True, ranges=[((self.names % 4) * size, (self.names % 4) * size + size - 1)])
        request = SubscribeRequest(
            "r", self.name, self.kind, f"c{self.names}", self.dice.randrange(2), key_shared=mode
        )
        with suppress(BrokerError):  # it does not fit to the others
            self.held[self.subscription.add(request)] = {}

    async def leave(self, consumer: BrokerConsumer) -> None:
        await consumer.close()
        del self.held[consumer]

    async def receive(
        self, consumer: BrokerConsumer, credit: int, *, cancel: bool = False, meddle: int | None = None
    ) -> int:
        """What is delivered within a few turns of the loop; while it waits, something else happens."""
        task = asyncio.ensure_future(consumer.next(credit))
        for _ in range(6):
            await asyncio.sleep(0)
            if meddle is not None and not task.done():
                await (self.answer(consumer, meddle) if meddle >= 7 else self.step(meddle))
                meddle = None
            if task.done() or (cancel and consumer.inbox):
                break
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, ConsumerClosedError):
                await task
            return 0
        if task.exception() is not None:
            assert not consumer.open
            return 0
        total = last = 0
        for delivery in task.result():
            last = self.take(consumer, delivery)
            total += last
        assert (total <= credit) if self.exact else (total - last < credit), "more than the credit was delivered"
        return total

    def take(self, consumer: BrokerConsumer, delivery: Delivery) -> int:
        batch = delivery.batch
        assert not batch.flags & BatchFlags.CONTROL
        wanted = (1 << batch.count) - 1 if delivery.wanted is None else delivery.wanted
        assert wanted, "an empty delivery"
        offsets = [batch.base_offset + i for i in range(batch.count) if wanted >> i & 1]
        for offset in offsets:
            assert not self.acked(offset), "an acknowledged message was delivered"
            if self.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
                for other, theirs in self.held.items():
                    assert offset not in theirs, f"{offset} is with {other.name} already"
            if self.kind is SubscriptionType.KEY_SHARED:
                self.check_key_order(consumer, offset)
            elif self.kind is not SubscriptionType.SHARED and offset not in self.seen:
                before = [o for o in range(offset) if not self.acked(o) and o not in self.seen and self.real(o)]
                assert not before, f"{before} should have come before {offset}"
            self.held[consumer][offset] = self.seen.get(offset, 0)
            self.seen[offset] = self.seen.get(offset, 0) + 1
        return len(offsets)

    def real(self, offset: int) -> bool:
        batch = next(b for b in self.log.batches if b.base_offset <= offset < b.end_offset)
        return not batch.flags & BatchFlags.CONTROL

    def check_key_order(self, consumer: BrokerConsumer, offset: int) -> None:
        key = self.key(offset)
        for other, theirs in self.held.items():
            if other is not consumer:
                held = [o for o in theirs if self.key(o) == key]
                assert not held, f"{other.name} still has {held} of {key!r}"
        for earlier in range(offset):
            if self.real(earlier) and self.key(earlier) == key and not self.acked(earlier):
                assert earlier in self.held[consumer], f"{offset} overtakes {earlier} of key {key!r}"

    def ack(self, consumer: BrokerConsumer, offsets: list[int]) -> None:
        for offset in offsets:
            self.held[consumer].pop(offset, None)
        consumer.ack([(offset, offset + 1) for offset in offsets])

    def ack_batch(self, consumer: BrokerConsumer, offset: int) -> None:
        batch = next(b for b in self.log.batches if b.base_offset <= offset < b.end_offset)
        if all(o in self.held[consumer] or self.acked(o) for o in range(batch.base_offset, batch.end_offset)):
            for o in range(batch.base_offset, batch.end_offset):
                self.held[consumer].pop(o, None)
            consumer.ack([(batch.base_offset, batch.end_offset)])

    def redeliver(self, consumer: BrokerConsumer, offsets: list[int] | None) -> None:
        single = self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
        if offsets is None or single:
            self.held[consumer].clear()
        else:
            for offset in offsets:
                self.held[consumer].pop(offset)
        consumer.redeliver(None if offsets is None else [(offset, offset + 1) for offset in offsets])

    async def step(self, roll: int) -> None:
        dice = self.dice
        consumers = list(self.held)
        consumer = dice.choice(consumers) if consumers else None
        if roll == 0 or consumer is None:
            self.join()
        elif roll == 1:
            await self.leave(consumer)
        elif roll in (2, 3):
            self.log.add([b"k%d" % dice.randrange(5)] * dice.randrange(1, 4))
            self.subscription.pump()
        elif roll == 4:
            flags = BatchFlags.CONTROL if dice.random() < 0.3 else BatchFlags.NONE
            self.log.add([b"k%d" % dice.randrange(5) for _ in range(dice.randrange(1, 5))], flags)
            self.subscription.pump()
        elif roll in (5, 6):
            meddle = dice.choice([None, 0, 1, 2, 4, 7, 8, 9])
            await self.receive(consumer, dice.randrange(1, 8), cancel=dice.random() < 0.3, meddle=meddle)
        else:
            await self.answer(consumer, roll)

    async def answer(self, consumer: BrokerConsumer, roll: int) -> None:
        mine = list(self.held[consumer])
        some = [offset for offset in mine if self.dice.random() < 0.5]
        if roll == 7:
            self.ack(consumer, some)
        elif roll == 8 and mine:
            self.ack_batch(consumer, self.dice.choice(mine))
        elif roll == 9:
            self.redeliver(consumer, None if self.dice.random() < 0.4 else some)

    async def drain(self) -> None:
        """Everything that is left is delivered and acknowledged in the end."""
        if self.sticky:
            for consumer in list(self.held):
                await self.leave(consumer)
            for _ in range(4):
                self.join()
        elif not self.held:
            self.join()
        for _ in range(500):
            moved = 0
            for consumer in list(self.held):
                self.ack(consumer, list(self.held[consumer]))
                moved += await self.receive(consumer, 100)
            if not moved:
                break
        left = [o for o in range(self.log.end_offset) if self.real(o) and not self.acked(o)]
        assert not left, f"never delivered: {left}"


@contextmanager
def most_seats(count: int) -> Iterator[None]:
    """So many consumers are looked at by one decision; there are more, then."""
    with ExitStack() as stack:
        for module in (demand_ring, key_shared, per_message):
            stack.enter_context(patch.object(module, "MOST_SEATS", count))
        yield


#: Joining and leaving are rarer than the rest.
ROLLS = [0, 1, 2, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9]
seeds = st.integers(0, 1 << 30)
KINDS = [
    (SubscriptionType.EXCLUSIVE, False),
    (SubscriptionType.FAILOVER, False),
    (SubscriptionType.SHARED, False),
    (SubscriptionType.KEY_SHARED, False),
    (SubscriptionType.KEY_SHARED, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sticky"), KINDS)
@settings(max_examples=rounds(60), deadline=None)
@given(st.integers(0, 150), seeds, st.sampled_from([1, 5, 1000]), st.sampled_from([1, 2, 64]))
@example(300, 1, 1000, 64)
@example(300, 2, 5, 1)
def test_any_sequence_of_events_keeps_the_promises(
    kind: SubscriptionType, sticky: bool, steps: int, seed: int, look_ahead: int, seats: int
) -> None:
    async def main() -> None:
        model = Model(kind, seed, look_ahead, sticky)
        for _ in range(steps):
            await model.step(model.dice.choice(ROLLS))
        await model.drain()

    with most_seats(seats):
        asyncio.run(main())


@pytest.mark.parametrize("levels", [0, 3])
@settings(max_examples=rounds(60), deadline=None)
@given(st.integers(0, 150), seeds, st.sampled_from([1, 2, 64]))
@example(300, 1, 64)
@example(300, 2, 1)
def test_any_sequence_of_events_keeps_the_promises_of_a_queue(
    levels: int, steps: int, seed: int, seats: int
) -> None:
    async def main() -> None:
        model = Model(SubscriptionType.SHARED, seed, 1000, False, levels)
        for _ in range(steps):
            await model.step(model.dice.choice(ROLLS))
        await model.drain()

    with most_seats(seats):
        asyncio.run(main())


@pytest.mark.parametrize("levels", [None, 0])
def test_many_consumers_get_the_same_number_of_messages_in_turn(levels: int | None) -> None:
    async def main() -> None:
        model = Model(SubscriptionType.SHARED, 1, 1000, False, levels)
        model.dice.randrange = lambda *_: 0  # type: ignore[method-assign, assignment]
        for _ in range(200):
            model.join()
        waiting = [asyncio.ensure_future(consumer.next(10)) for consumer in model.held]
        await asyncio.sleep(0)
        for _ in range(200):
            model.log.add([b"k"])
        model.subscription.pump()
        while not all(task.done() for task in waiting):
            await asyncio.sleep(0)
        assert [len(task.result()) for task in waiting] == [1] * 200

    asyncio.run(main())


@pytest.mark.parametrize("levels", [None, 0])
def test_a_consumer_that_was_alone_takes_turns_with_others_and_is_served_alone_again(levels: int | None) -> None:
    async def main() -> None:
        model = Model(SubscriptionType.SHARED, 1, 1000, False, levels)
        model.dice.randrange = lambda *_: 0  # type: ignore[method-assign, assignment]
        model.subscription.limits.consumer = 1
        model.join()
        (first,) = model.held
        alone = asyncio.ensure_future(first.next(10))
        await asyncio.sleep(0)
        model.join()
        second = list(model.held)[1]
        both = [alone, asyncio.ensure_future(second.next(10))]
        await asyncio.sleep(0)
        for _ in range(2):
            model.log.add([b"k"])
        model.subscription.pump()
        for _ in range(6):
            await asyncio.sleep(0)
        assert [task.done() and len(task.result()) for task in both] == [1, 1]

        waiting = asyncio.ensure_future(first.next(10))
        await asyncio.sleep(0)
        await second.close()
        assert not first.inbox, "it has as many messages as it may"
        offset = alone.result()[0].batch.base_offset
        first.ack([(offset, offset + 1)])
        for _ in range(6):
            await asyncio.sleep(0)
        assert waiting.done(), "it is not at its limit any more"

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "levels"), [(SubscriptionType.SHARED, None), (SubscriptionType.SHARED, 0)])
def test_one_that_leaves_costs_the_same_however_many_there_are(
    kind: SubscriptionType, levels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a message, and credit for more: what it had goes to one of the others."""
    looks = 0
    plain = BrokerConsumer.capacity.fget
    assert plain is not None

    def counted(consumer: BrokerConsumer) -> int:
        nonlocal looks
        looks += 1
        return plain(consumer)

    async def main(count: int) -> int:
        nonlocal looks
        model = Model(kind, 1, 1000, False, levels)
        for _ in range(count):
            model.join()
            model.log.add([b"k"])
        waiting = [asyncio.ensure_future(consumer.next(10)) for consumer in model.held]
        for _ in range(20):
            await asyncio.sleep(0)
        waiting += [asyncio.ensure_future(consumer.next(10)) for consumer in model.held]
        for _ in range(20):
            await asyncio.sleep(0)
        looks = 0
        for consumer in list(model.held)[: count // 2]:
            await consumer.close()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return looks // (count // 2)

    monkeypatch.setattr(BrokerConsumer, "capacity", property(counted))
    few, many = asyncio.run(main(128)), asyncio.run(main(1024))
    assert many < 4 * few  # of eight times as many consumers


@settings(max_examples=rounds(50), deadline=None)
@given(st.integers(0, 60), seeds)
def test_a_key_shared_consumer_with_credit_gets_its_keys_past_one_that_takes_nothing(
    batches: int, seed: int
) -> None:
    async def main() -> None:
        model = Model(SubscriptionType.KEY_SHARED, seed, 10_000, False)
        model.join()
        model.join()
        slow, quick = model.held
        for _ in range(batches):
            model.log.add([b"k%d" % model.dice.randrange(50)])
        while await model.receive(quick, 5):
            model.ack(quick, list(model.held[quick]))
        ring = model.subscription._served.dispatcher._map
        from weir.broker.subscriptions.selectors import hash_of

        left = [o for o in range(model.log.end_offset) if not model.acked(o)]
        assert all(ring.owner(hash_of(model.key(o))) == slow.number for o in left)

    asyncio.run(main())
