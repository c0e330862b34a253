"""Kafka's producers in simulations: batches that are sent again until they are answered, plain or idempotent."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weir.gateway.kafka.errors import Code
from weir.model.batch import Stamp
from weir.model.errors import ConnectionLostError, NetworkError, WeirError
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients.calls import Identity, Item, Part
from weir.testing.kafka.clients.client import KafkaRefusedError, Link
from weir.testing.kafka.clients.workload import PASSING, TRIES, Who, Worker
from weir.testing.log_history import LogOpKind
from weir.testing.operations import Pending

#: So long a producer waits for an answer; the less, the more is sent again while it is under way.
_ANSWER_S = (0.2, 1.0, 2.0)
#: Idempotent producers have no more batches under way, to one partition.
_WINDOW = 5
_LAST_SEQUENCE = 0x7FFFFFFF


@dataclass
class Sending:
    """A batch that stays the same however often it is sent."""

    part: Part
    items: list[Item]
    data: bytes
    kind: LogOpKind = LogOpKind.PUBLISH
    answered: bool = False
    token: str = ""
    once: bool = False
    tries: int = 0
    under_way: list[Pending] = field(default_factory=list)


class Sender:
    """Sends batches, many at a time, in order, again until each is answered."""

    def __init__(self, worker: Worker, handle: str, transactional_id: str | None = None, version: int = 9) -> None:
        self._worker = worker
        self._handle = handle
        self._transactional_id = transactional_id
        self._version = version

    async def send(self, batches: list[Sending], tries: int = TRIES) -> None:
        while open_batches := [batch for batch in batches if not batch.answered]:
            failure = await self._send_once(open_batches)
            if failure is None:
                continue
            tries -= 1
            if tries <= 0 or (isinstance(failure, KafkaRefusedError) and failure.code not in PASSING):
                raise failure
            await self._worker.pause(0.3)

    async def _send_once(self, batches: list[Sending]) -> WeirError | None:
        """Send all of them without waiting in between; answers why the first that failed did."""
        try:
            link = await self._worker.link()
        except NetworkError as lost:
            return lost
        self._worker.shared.disturb_me()
        answers = []
        for batch in batches:
            batch.tries += 1
            batch.under_way = [self._begin(batch, item) for item in batch.items]
            answers.append(calls.produce(link, batch.part, batch.data, self._transactional_id, self._version))
        failed: dict[Part, WeirError] = {}
        for batch, answer in zip(batches, answers, strict=True):
            failure = await self._answered(link, batch, answer, first=batch.part not in failed)
            if failure is not None:
                failed.setdefault(batch.part, failure)
        return next(iter(failed.values()), None)

    def _begin(self, batch: Sending, item: Item) -> Pending:
        return self._worker.story.begin(
            self._handle,
            batch.kind if item.due_s is None else LogOpKind.DELAY,
            part=str(batch.part),
            payload=item.payload,
            key=item.key,
            token=batch.token,
            once=batch.once,
            due_at=None if item.due_s is None else item.due_s - self._worker.plan.skew_s,
        )

    async def _answered(
        self, link: Link, batch: Sending, answer: "asyncio.Future[Any]", *, first: bool
    ) -> WeirError | None:
        try:
            patience_s = self._worker.rng.choice(_ANSWER_S)
            offset = calls.produced(await link.within(patience_s, answer))
        except WeirError as failure:
            for pending in batch.under_way:
                pending.failed(failure)
            if isinstance(failure, KafkaRefusedError) and failure.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                if not first:  # of course: the one before it was not stored
                    return ConnectionLostError("the batch before it was not stored")
                self._worker.story.note(
                    self._handle, LogOpKind.REFUSED, part=str(batch.part), payload=batch.items[0].payload
                )
            return failure
        whole = all(item.due_s is None for item in batch.items)  # else it may have been stored in parts
        for at, pending in enumerate(batch.under_way):
            known = offset >= 0 and (whole or at == 0)
            pending.ok(offset=offset + at if known else -1, host=link.host)
        batch.answered = True
        return None


class PlainProducer(Worker):
    """One batch at a time; sent again after a failure, it may be stored twice."""

    def __init__(self, who: Who) -> None:
        super().__init__(who)
        self._todo = who.todo

    def done(self) -> bool:
        return self._todo.left <= 0

    async def life(self, handle: str) -> None:
        sender = Sender(self, handle)
        number = 0
        while self._todo.left > 0:
            items = [Item(f"{handle}#{number + at}") for at in range(self.rng.choice((1, 1, 3)))]
            number += len(items)
            self._todo.left -= len(items)
            await sender.send([Sending(self.rng.choice(self.shared.inputs), items, calls.batch_of(items))])
            await self.pause(2 * self.plan.storage.duration_s / self.plan.messages)


class IdempotentProducer(PlainProducer):
    """Several batches under way at once; each is stored once, however often it is sent."""

    kind = LogOpKind.PUBLISH

    def where(self) -> Sequence[Part]:
        return self.shared.inputs

    def item(self, payload: str) -> Item:
        return Item(payload)

    async def life(self, handle: str) -> None:
        who = await self.insist(lambda link: calls.init_producer(link, None, 1000))
        sender = Sender(self, handle)
        numbers = Numbers(who, self.plan.first_sequence)
        number = 0
        while self._todo.left > 0:
            batches = []
            for _ in range(self.rng.choice((1, 2, _WINDOW))):
                items = [self.item(f"{handle}#{number + at}") for at in range(self.rng.choice((1, 1, 3)))]
                number += len(items)
                self._todo.left -= len(items)
                batches.append(numbers.batch(self.rng.choice(self.where()), items, kind=self.kind))
            await sender.send(batches)
            await self.pause(4 * self.plan.storage.duration_s / self.plan.messages)


class Numbers:
    """The sequence numbers of a producer, for each partition."""

    def __init__(self, who: Identity, first: int = 0) -> None:
        self.who = who
        self._first = first
        self._next: dict[Part, int] = {}
        #: Sequence number and length of the batches before.
        self._used: dict[Part, list[tuple[int, int]]] = {}

    def batch(
        self, part: Part, items: list[Item], token: str = "", *, kind: LogOpKind = LogOpKind.PUBLISH
    ) -> Sending:
        sequence = self._next.get(part, self._first)
        self._next[part] = (sequence + len(items)) & _LAST_SEQUENCE
        self._used[part] = [*self._used.get(part, [])[-1:], (sequence, len(items))]
        stamp = Stamp(self.who.producer_id, self.who.epoch, sequence)
        data = calls.batch_of(items, stamp, transactional=bool(token))
        return Sending(part, items, data, kind, token=token, once=True)

    def used(self, part: Part) -> list[tuple[int, int]]:
        """Sequence number and length of the last two batches: what is not theirs must not pass for them."""
        return self._used[part]
