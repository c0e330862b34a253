"""Kafka's clients in simulations, who record all they see: producers, readers, and what all have in common.

A client has many lives: it connects, works, and begins anew when anything goes wrong in a way that a real client
would give up at. What it sends in one life carries that life's name.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from weir.gateway.kafka.errors import Code
from weir.model.batch import Stamp
from weir.model.errors import ConnectionLostError, InvariantError, NetworkError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing import kafka_calls as calls
from weir.testing.kafka_calls import Fetched, Identity, Part
from weir.testing.kafka_client import KafkaLink, KafkaRefusedError
from weir.testing.kafka_cluster import KafkaCluster
from weir.testing.kafka_history import KafkaKind, KafkaPending
from weir.testing.workload import Shared

IN, OUT = "in", "out"
T = TypeVar("T")
#: What a client meets by asking again, as real ones do.
PASSING = (
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.REQUEST_TIMED_OUT,
    Code.NETWORK_EXCEPTION,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR,
    Code.CONCURRENT_TRANSACTIONS,
    Code.UNSTABLE_OFFSET_COMMIT,
)
_TRIES = 12
#: So long a producer waits for an answer; the less, the more is sent again while it is under way.
_ANSWER_S = (0.2, 1.0, 2.0)
#: Idempotent producers have no more batches under way, to one partition.
_WINDOW = 5
_LAST_SEQUENCE = 0x7FFFFFFF


class KafkaShared(Shared):
    """What the clients of one run know of each other."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster.history, cluster.kafka_plan.storage)
        plan = cluster.kafka_plan
        self.cluster = cluster
        self.story = cluster.story
        self.kafka_plan = plan
        self.inputs = [Part(IN, number) for number in range(plan.in_parts)]
        self.outputs = [Part(OUT, number) for number in range(plan.out_parts)]
        #: How far the one who stays to the end has come.
        self.followed: dict[Part, int] = {}

    @property
    def parts(self) -> list[Part]:
        return [*self.inputs, *self.outputs]


@dataclass
class Todo:
    """What is left for a client to do, over all of its lives."""

    left: int


@dataclass(frozen=True, slots=True)
class Who:
    """A client as it is started, after a crash once more: its name, its node, its dice."""

    name: str
    runtime: Runtime
    rng: Random
    shared: KafkaShared
    todo: Todo


class Worker:
    """One client, with the link to whichever broker is active."""

    def __init__(self, who: Who) -> None:
        self.name = who.name
        self.runtime = who.runtime
        self.clock = who.runtime.clock
        self.rng = who.rng
        self.shared = who.shared
        self.story = who.shared.story
        self.plan = who.shared.kafka_plan
        self._link: KafkaLink | None = None
        self._told: dict[Part, tuple[int, int]] = {}

    async def run(self) -> None:
        while not self.done():
            try:
                await self.life(self.shared.next_handle(self.name))
            except InvariantError:
                raise
            except WeirError as failed:
                self.shared.cluster.world.note("gave up", f"{self.name} {failed}")
            await self.pause(0.2)

    def done(self) -> bool:
        return False

    async def life(self, handle: str) -> None:
        raise NotImplementedError

    async def pause(self, most_s: float) -> None:
        await self.clock.sleep(self.rng.uniform(0, most_s))

    async def link(self) -> KafkaLink:
        """The connection; a new one, to the broker that is active now, if it broke."""
        if self._link is None or not self._link.alive:
            self._link = await KafkaLink.open(self.runtime, self.name, self.shared.cluster.active)
        return self._link

    async def hang_up(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def insist(self, ask: Callable[[KafkaLink], Awaitable[T]], tries: int = _TRIES) -> T:
        """Ask, and ask again where a real client would."""
        while True:
            try:
                self.shared.disturb_me()
                return await ask(await self.link())
            except NetworkError:
                tries -= 1
                if tries <= 0:
                    raise
            except KafkaRefusedError as refused:
                tries -= 1
                if refused.code not in PASSING or tries <= 0:
                    raise
                if self.rng.random() < 0.3:  # somebody else may be active by now
                    await self.hang_up()
            await self.clock.sleep(self.rng.uniform(0.02, 0.3))

    async def recorded(self, pending: list[KafkaPending], work: Awaitable[T]) -> T:
        """Write down whether it worked."""
        try:
            answer = await work
        except WeirError as failure:
            for each in pending:
                each.failed(failure)
            raise
        for each in pending:
            each.ok()
        return answer

    async def read(
        self, handle: str, wanted: dict[Part, int], *, committed: bool, group: str = ""
    ) -> dict[Part, Fetched]:
        """Fetch, and write down what came."""
        link = await self.link()
        found = await calls.fetch(link, wanted, committed=committed, max_bytes=self.rng.choice((200, 100_000)))
        for part, fetched in found.items():
            self.note_read(handle, part, fetched, committed=committed, group=group)
        return found

    def note_read(self, handle: str, part: Part, fetched: Fetched, *, committed: bool, group: str = "") -> None:
        if self._told.get(part) != (fetched.high, fetched.stable):
            self._told[part] = (fetched.high, fetched.stable)
            self.story.note(
                handle,
                KafkaKind.MARKS,
                part=str(part),
                commits=committed,
                high=fetched.high,
                stable=fetched.stable,
            )
        for record in fetched.records:
            self.story.note(
                handle,
                KafkaKind.READ,
                part=str(part),
                offset=record.offset,
                payload=record.payload,
                commits=committed,
                group=group,
            )


# --- producing --------------------------------------------------------------------------------------------------


@dataclass
class Sending:
    """A batch that stays the same however often it is sent."""

    part: Part
    payloads: list[str]
    data: bytes
    answered: bool = False
    token: str = ""
    once: bool = False
    tries: int = 0
    under_way: list[KafkaPending] = field(default_factory=list)


class Sender:
    """Sends batches, many at a time, in order, again until each is answered."""

    def __init__(self, worker: Worker, handle: str, transactional_id: str | None = None) -> None:
        self._worker = worker
        self._handle = handle
        self._transactional_id = transactional_id

    async def send(self, batches: list[Sending], tries: int = _TRIES) -> None:
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
            batch.under_way = [self._begin(batch, payload) for payload in batch.payloads]
            answers.append(calls.produce(link, batch.part, batch.data, self._transactional_id))
        failed: dict[Part, WeirError] = {}
        for batch, answer in zip(batches, answers, strict=True):
            failure = await self._answered(link, batch, answer, first=batch.part not in failed)
            if failure is not None:
                failed.setdefault(batch.part, failure)
        return next(iter(failed.values()), None)

    def _begin(self, batch: Sending, payload: str) -> KafkaPending:
        return self._worker.story.begin(
            self._handle,
            KafkaKind.PUBLISH,
            part=str(batch.part),
            payload=payload,
            token=batch.token,
            once=batch.once,
        )

    async def _answered(
        self, link: KafkaLink, batch: Sending, answer: "asyncio.Future[Any]", *, first: bool
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
                    self._handle, KafkaKind.REFUSED, part=str(batch.part), payload=batch.payloads[0]
                )
            return failure
        for at, pending in enumerate(batch.under_way):
            pending.ok(offset=offset + at if offset >= 0 else -1)
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
            payloads = [f"{handle}#{number + at}" for at in range(self.rng.choice((1, 1, 3)))]
            number += len(payloads)
            self._todo.left -= len(payloads)
            await sender.send([Sending(self.rng.choice(self.shared.inputs), payloads, calls.batch_of(payloads))])
            await self.pause(2 * self.plan.storage.duration_s / self.plan.messages)


class IdempotentProducer(PlainProducer):
    """Several batches under way at once; each is stored once, however often it is sent."""

    async def life(self, handle: str) -> None:
        who = await self.insist(lambda link: calls.init_producer(link, None, 1000))
        sender = Sender(self, handle)
        numbers = Numbers(who, self.plan.first_sequence)
        number = 0
        while self._todo.left > 0:
            batches = []
            for _ in range(self.rng.choice((1, 2, _WINDOW))):
                payloads = [f"{handle}#{number + at}" for at in range(self.rng.choice((1, 1, 3)))]
                number += len(payloads)
                self._todo.left -= len(payloads)
                batches.append(numbers.batch(self.rng.choice(self.shared.inputs), payloads))
            await sender.send(batches)
            await self.pause(4 * self.plan.storage.duration_s / self.plan.messages)


class Numbers:
    """The sequence numbers of a producer, for each partition."""

    def __init__(self, who: Identity, first: int = 0) -> None:
        self.who = who
        self._first = first
        self._next: dict[Part, int] = {}

    def batch(self, part: Part, payloads: list[str], token: str = "") -> Sending:
        sequence = self._next.get(part, self._first)
        self._next[part] = (sequence + len(payloads)) & _LAST_SEQUENCE
        stamp = Stamp(self.who.producer_id, self.who.epoch, sequence)
        data = calls.batch_of(payloads, stamp, transactional=bool(token))
        return Sending(part, payloads, data, token=token, once=True)


# --- reading ----------------------------------------------------------------------------------------------------


class Reader(Worker):
    """Reads a partition from somewhere on, for a while."""

    async def life(self, handle: str) -> None:
        committed = self.rng.random() < 0.6
        part = self.rng.choice(self.shared.parts)
        at = 0 if self.rng.random() < 0.5 else self.rng.randrange(20)
        for _ in range(self.rng.randint(3, 20)):
            try:
                found = await self.read(handle, {part: at}, committed=committed)
            except KafkaRefusedError as refused:
                if refused.code is Code.OFFSET_OUT_OF_RANGE:
                    at = 0
                    handle = self.shared.next_handle(self.name)
                    continue
                raise
            at = found[part].next
            await self.pause(0.3)
        if self.rng.random() < 0.3:
            await self.hang_up()
