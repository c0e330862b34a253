"""Producers of a topic: access modes (shared, exclusive, waiting for exclusive) and names.

The topic's state stores the epoch of exclusive producers; a producer with a later epoch fences earlier ones.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from weir.broker.api.producers import AccessMode, Outgoing, ProducerRequest, Receipt
from weir.broker.publish.publish_order import ReceiptOrder
from weir.broker.rates import Meter
from weir.model.batch import MAX_PRODUCER_NAME_BYTES
from weir.model.check import check
from weir.model.errors import (
    InvalidNameError,
    ProducerBusyError,
    ProducerClosedError,
    ProducerFencedError,
    QuotaExceededError,
)
from weir.runtime.interfaces import Clock
from weir.stream.state_log import StateLog
from weir.wire.snapshots.producers import decode_epoch, encode_epoch


class PublishesTo(Protocol):
    """The destination of a producer's batches. Synchronous: the order of the calls is the order of the log."""

    def publish(self, producer: "BrokerProducer", outgoing: Outgoing) -> "asyncio.Future[Receipt]": ...

    def publish_all(
        self, producer: "BrokerProducer", outgoings: Sequence[Outgoing]
    ) -> "asyncio.Future[Receipt] | None": ...

    def last_sequence(self, producer: str) -> int: ...

    async def wait_capacity(self) -> None: ...


class KeepsEpoch(Protocol):
    """Durable store of the epoch of exclusive producers. `load`: None before the first epoch. A saved epoch is
    durable after `persisted`."""

    def load(self) -> int | None: ...

    def save(self, epoch: int) -> None: ...

    async def persisted(self) -> None: ...


class BrokerProducer:
    """Fills `api.Producer`."""

    def __init__(
        self,
        publisher: PublishesTo,
        producers: "Producers",
        name: str,
        request: ProducerRequest,
        schema_version: bytes,
        *,
        clock: Clock,
    ) -> None:
        if len(name.encode()) > MAX_PRODUCER_NAME_BYTES:  # every batch contains the name
            raise InvalidNameError(f"a producer's name has at most {MAX_PRODUCER_NAME_BYTES} bytes")
        self._publisher = publisher
        self._producers = producers
        self._name = name
        self.request = request
        self.meter = Meter(clock)
        self.receipts = ReceiptOrder()
        self.connected_ms = clock.wall_ms()
        self.epoch: int | None = None
        #: The stream's failure count when the producer connected: after a later failure its earlier batches may be
        #: lost.
        self.failures_seen = 0
        self._schema_version = schema_version
        loop = asyncio.get_running_loop()
        self._admitted: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[str] = loop.create_future()

    @property
    def name(self) -> str:
        return self._name

    @property
    def last_sequence(self) -> int:
        return self._publisher.last_sequence(self._name)

    @property
    def topic_epoch(self) -> int | None:
        return self.epoch

    @property
    def schema_version(self) -> bytes:
        return self._schema_version

    @property
    def open(self) -> bool:
        return not self._closed.done()

    @property
    def admitted(self) -> bool:
        """Whether it may send: a producer that waits for exclusive access may not until it has it."""
        return self._admitted.done()

    def admit(self, epoch: int | None) -> None:
        self.epoch = epoch
        if not self._admitted.done():
            self._admitted.set_result(None)

    async def wait_admitted(self) -> None:
        if not self._admitted.done():
            waited: list[asyncio.Future[Any]] = [self._admitted, self._closed]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        self.check_open()
        if self.epoch is not None:
            await self._producers.epoch_persisted()

    def publish(self, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        return self._publisher.publish(self, outgoing)

    def publish_all(self, outgoings: Sequence[Outgoing]) -> "asyncio.Future[Receipt] | None":
        return self._publisher.publish_all(self, outgoings)

    async def wait_capacity(self) -> None:
        await self._publisher.wait_capacity()

    async def closed(self) -> str:
        return await asyncio.shield(self._closed)

    async def close(self) -> None:
        self._producers.remove(self, "closed by the client")

    def shut(self, reason: str) -> None:
        """Close the producer on behalf of the broker."""
        if not self._closed.done():
            self._closed.set_result(reason)

    def check_open(self) -> None:
        if self._closed.done():
            raise ProducerClosedError(f"producer {self._name!r} is closed: {self._closed.result()}")


class Producers:
    """Enforces access modes and unique names. `store`: None if epochs need not survive a restart."""

    def __init__(self, store: KeepsEpoch | None = None) -> None:
        self._by_name: dict[str, BrokerProducer] = {}
        self._exclusive: BrokerProducer | None = None
        self._waiting: list[BrokerProducer] = []
        self._store = store
        self._epoch = None if store is None else store.load()
        #: The reason why no producer may connect while the backlog exceeds its quota.
        self.over_quota: QuotaExceededError | None = None

    def __iter__(self) -> Iterator[BrokerProducer]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self._by_name) + len(self._waiting)

    @property
    def all(self) -> list[BrokerProducer]:
        return [*self._by_name.values(), *self._waiting]

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def exclusive(self) -> bool:
        """Whether a producer is exclusive, or waits to be."""
        return self._exclusive is not None or bool(self._waiting)

    async def epoch_persisted(self) -> None:
        """Wait until the present epoch is durable."""
        if self._store is not None:
            await self._store.persisted()

    def refuse(self, why: QuotaExceededError) -> None:
        """Close all producers, and refuse new ones until the backlog is within its quota again."""
        self.over_quota = why
        self.close(why.what)

    def has(self, name: str) -> bool:
        return name in self._by_name

    def join(self, producer: BrokerProducer) -> None:
        """Add a producer by its access mode, or queue it for exclusive access; raise if neither is possible."""
        former = self._by_name.get(producer.name)
        if former is not None:
            if producer.request.name_is_given:
                raise ProducerBusyError(f"a producer named {producer.name!r} is connected already")
            self.remove(former, "the same producer reconnected", promote=False)
        try:
            self._join(producer)
        finally:
            self._promote()

    def _join(self, producer: BrokerProducer) -> None:
        access = producer.request.access
        if access is AccessMode.SHARED:
            if self._exclusive is not None or self._waiting:
                raise ProducerBusyError("the topic has an exclusive producer")
            self._by_name[producer.name] = producer
            producer.admit(self._epoch)
            return
        self._check_epoch(producer.request.topic_epoch)
        if access is AccessMode.EXCLUSIVE_WITH_FENCING:
            for other in self.all:
                self.remove(other, "fenced by an exclusive producer", promote=False)
        elif self._by_name or self._waiting:
            if access is AccessMode.WAIT_FOR_EXCLUSIVE:
                self._waiting.append(producer)
                return
            raise ProducerFencedError("the topic has other producers")
        self._make_exclusive(producer)

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is not None and self._epoch is not None and epoch < self._epoch:
            raise ProducerFencedError(f"the topic is at epoch {self._epoch}, the producer's epoch is {epoch}")

    def _make_exclusive(self, producer: BrokerProducer) -> None:
        """Make a producer exclusive. One that reconnects with its epoch keeps it; any other starts a new epoch."""
        asked = producer.request.topic_epoch
        before = -1 if self._epoch is None else self._epoch
        self._epoch = asked if asked is not None else before + 1
        check(self._epoch >= before, "the epoch of a topic never goes back")
        if self._store is not None:
            self._store.save(self._epoch)
        self._exclusive = producer
        self._by_name[producer.name] = producer
        producer.admit(self._epoch)

    def remove(self, producer: BrokerProducer, reason: str, *, promote: bool = True) -> None:
        """Remove a producer, at its own request or the broker's."""
        producer.shut(reason)
        if producer in self._waiting:
            self._waiting.remove(producer)
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        if promote:
            self._promote()

    def _promote(self) -> None:
        """Admit the first producer that waits for exclusive access when no other producer is connected."""
        while self._waiting and not self._by_name:
            producer = self._waiting.pop(0)
            try:
                self._check_epoch(producer.request.topic_epoch)
            except ProducerFencedError as fenced:
                producer.shut(fenced.what)
                continue
            self._make_exclusive(producer)

    def close(self, reason: str) -> None:
        for producer in self.all:
            self.remove(producer, reason, promote=False)


_KEY = "epoch"


class TopicEpoch:
    """Fills `producers.KeepsEpoch`."""

    def __init__(self, state: StateLog) -> None:
        self._state = state

    def load(self) -> int | None:
        stored = self._state.get(_KEY)
        return None if stored is None else decode_epoch(stored)

    def save(self, epoch: int) -> None:
        self._state.put(_KEY, encode_epoch(epoch))

    async def persisted(self) -> None:
        await self._state.flush()
