"""Pulsar's producers in simulations, who send again what was not answered, in the same batches."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from weir.client.access import ProducerSettings
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.messages import Outgoing
from weir.client.pulsar.producer import TopicProducer
from weir.model.batch import HeldId
from weir.model.errors import ConnectionLostError, InvariantError, WeirError
from weir.runtime.interfaces import Clock, Runtime
from weir.testing.broker.history import place_of
from weir.testing.broker.workload import CLIENT, BrokerShared, full_name
from weir.testing.log_history import LogOpKind
from weir.testing.operations import Pending
from weir.testing.storage.history import make_payload, payload_id
from weir.testing.world.clock import EPOCH_S
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import MessageId

_ANSWER_S = 3.0
_WINDOW = 12


@dataclass
class _Message:
    number: int
    payload: bytes
    key: str | None
    #: Seconds from its first sending until it may be seen.
    delay_s: float | None
    cancel: bool
    due_s: float | None = None
    answered: bool = False


@dataclass
class Errand:
    """What a producer has to send, over all its lives: batches that stay the same however often they are sent."""

    name: str
    topic: str
    batches: list[list[_Message]] = field(default_factory=list)
    #: Connections that were made for it so far.
    sessions: int = 0

    @property
    def first_open(self) -> int:
        """The first batch that was not answered."""
        done = (at for at, batch in enumerate(self.batches) if not all(m.answered for m in batch))
        return next(done, len(self.batches))


def make_errand(name: str, topic: str, rng: Random, shared: BrokerShared) -> Errand:
    plan = shared.broker_plan
    errand = Errand(name, topic)
    number = 0
    while number < plan.messages:
        delayed = rng.random() < plan.delayed
        size = 1 if delayed or not plan.batches else rng.choice((1, 2, 5))
        batch = []
        # Producers for key-shared subscriptions batch by key: a batch goes to one consumer.
        key = f"k{rng.randrange(plan.keys)}" if rng.random() < 0.9 else None
        for _ in range(size):
            delay_s = rng.choice((0.3, 1.5, 4.0)) if delayed else None
            cancel = delayed and rng.random() < plan.cancelled
            payload = make_payload(name, number, rng.randint(0, 60))
            batch.append(_Message(number, payload, key, delay_s, cancel))
            number += 1
        errand.batches.append(batch)
    return errand


class SimProducer(TopicProducer):
    """A producer that says which sequence id comes next, as applications do that send again. It writes down each
    receipt as it comes, also one that overtakes another: Pulsar's own client would hang up then."""

    def note_receipts(self, note: Callable[[int], None]) -> None:
        self._note = note

    def _stored(self, command: api.CommandSendReceipt) -> None:
        self._note(command.sequence_id)
        super()._stored(command)

    def continue_with(self, number: int) -> None:
        self._sequence = number - 1

    @property
    def last_sequence(self) -> int:
        """What the broker said when it was opened."""
        return self._sequence


class Sender:
    """Sends an errand: connects, sends in order, connects anew whenever anything fails."""

    def __init__(self, errand: Errand, runtime: Runtime, rng: Random, shared: BrokerShared) -> None:
        self._errand = errand
        self._runtime = runtime
        self._clock: Clock = runtime.clock
        self._rng = rng
        self._shared = shared
        self._plan = shared.broker_plan
        self._failed: WeirError | None = None

    async def run(self) -> None:
        while self._errand.first_open < len(self._errand.batches):
            try:
                async with PulsarClient(self._runtime, self._shared.some_url(self._rng), CLIENT) as client:
                    await self._connected(client)
            except InvariantError:
                raise
            except WeirError:
                await self._clock.sleep(self._rng.uniform(0, 0.4))

    async def _connected(self, client: PulsarClient) -> None:
        topic = full_name(self._errand.topic)
        connection = await client._owner(topic)
        # With a name the broker knows what it has; without deduplication a name only gets into the way.
        settings = ProducerSettings(name=self._errand.name if self._plan.deduplication else None)
        producer = SimProducer(self._clock, connection, topic, settings)
        producer.note_receipts(self._note_receipt)
        await producer.open()
        self._errand.sessions += 1
        if self._plan.deduplication and self._rng.random() < 0.5:
            self._believe(producer.last_sequence)
        self._failed = None
        open_batches = self._errand.batches[self._errand.first_open :]
        under_way: list[asyncio.Future[MessageId]] = []
        for batch in open_batches:
            producer.continue_with(batch[0].number)
            under_way += [self._send(producer, message) for message in batch]
            self._shared.disturb_me()
            await self._clock.sleep(self._pause_s(len(open_batches)))
            under_way = [receipt for receipt in under_way if not receipt.done()]
            while len(under_way) > _WINDOW or self._failed is not None:
                await self._answers(under_way)
                under_way = [receipt for receipt in under_way if not receipt.done()]
        while under_way or self._failed is not None:
            await self._answers(under_way)
            under_way = [receipt for receipt in under_way if not receipt.done()]

    def _pause_s(self, batches: int) -> float:
        """Zero often, for many under way at once; else such that the errand takes the whole run."""
        each = self._plan.storage.duration_s / max(1, len(self._errand.batches))
        return self._rng.choice((0.0, 0.5, 1.5, 2.0)) * each

    async def _answers(self, under_way: "list[asyncio.Future[MessageId]]") -> None:
        if self._failed is not None:
            raise self._failed
        done, _ = await asyncio.wait(under_way, timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise ConnectionLostError("no receipt came")

    def _believe(self, last: int) -> None:
        """Everything up to this number is stored, says the broker."""
        for batch in self._errand.batches:
            for message in batch:
                if message.number <= last and not message.answered:
                    self._begin(message).ok()
                    message.answered = True

    def _note_receipt(self, number: int) -> None:
        payload = payload_id(make_payload(self._errand.name, number, 0))
        name, topic = self._errand.name, self._errand.topic
        self._shared.story.note(
            name, LogOpKind.RECEIPT, topic=topic, payload=payload, session=self._errand.sessions
        )

    def _begin(self, message: _Message) -> Pending:
        if message.delay_s is not None and message.due_s is None:
            message.due_s = self._shared.now + message.delay_s
            self._shared.last_due_s = max(self._shared.last_due_s, message.due_s)
        return self._shared.story.begin(
            self._errand.name,
            LogOpKind.PUBLISH,
            topic=self._errand.topic,
            payload=payload_id(message.payload),
            key=message.key,
            once=self._plan.deduplication,
            session=self._errand.sessions,
            due_at=None if message.due_s is None else message.due_s - self._plan.skew_s,
        )

    def _send(self, producer: SimProducer, message: _Message) -> "asyncio.Future[MessageId]":
        pending = self._begin(message)
        deliver_at_ms = None if message.due_s is None else int((EPOCH_S + message.due_s) * 1000) + 1
        receipt = producer.send(Outgoing(message.payload, key=message.key, deliver_at_ms=deliver_at_ms))
        receipt.add_done_callback(self._answered(message, pending))
        return receipt

    def _answered(self, message: _Message, pending: Pending) -> "Callable[[asyncio.Future[MessageId]], None]":
        def done(receipt: "asyncio.Future[MessageId]") -> None:
            failure = receipt.exception()
            if failure is None:
                at = receipt.result()
                pending.ok(place=place_of(at) if at.ledger >= 0 else None)
                message.answered = True
                if message.cancel and at.ledger >= 0:
                    wanted = self._shared.cluster.to_cancel.setdefault(self._errand.topic, {})
                    wanted[HeldId(at.ledger, at.entry)] = payload_id(message.payload)
            elif isinstance(failure, WeirError) and not isinstance(failure, InvariantError):
                pending.failed(failure)
                self._failed = failure
            else:
                raise failure

        return done
