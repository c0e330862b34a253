"""What one connection is answered, in the order of its requests.

What one client was answered and has not read: counted from before it is read until it is sent.

Requests of one connection that are not answered yet, each with its place in the order of answers.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from weir.gateway.kafka.api_table import HANDLERS
from weir.gateway.kafka.context import Services
from weir.gateway.kafka.in_flight import Load
from weir.gateway.kafka.settings import KafkaMetrics
from weir.model.check import check
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.runtime.adjustable_clock import liveness
from weir.runtime.budgets import ByteShare
from weir.runtime.interfaces import Connection
from weir.runtime.server import Outbox
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.classes import Message
from weir.wire.kafka.frames import response_frame

#: The key of a slot whose frame is a bare SASL token.
BARE = -1


class Slot:
    """A request's place in the order of answers."""

    __slots__ = (
        "api_key",
        "client_id",
        "correlation_id",
        "done",
        "frame",
        "looked_at",
        "opening",
        "out",
        "queued",
        "size",
        "version",
    )

    def __init__(  # noqa: PLR0917 - called once per request, by position
        self, api_key: int, version: int, correlation_id: int, client_id: str, frame: memoryview, size: int
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        #: Its body, until that is decoded.
        self.frame: memoryview | None = frame
        #: Of the whole frame.
        self.size = size
        #: Whether it was looked at what it needs, before its turn.
        self.looked_at = False
        #: What must be waited for before a pipelined request can be decided.
        self.opening: Coroutine[Any, Any, None] | None = None
        self.done = False
        self.out: list[Buffer] = []
        #: Bytes of `out` that wait for earlier answers.
        self.queued = 0


def stores(slot: Slot) -> bool:
    """Whether the request stores something, though nobody may wait for its answer."""
    handler = HANDLERS.get(slot.api_key)
    return handler is not None and handler.pipelined


log = logging.getLogger(__name__)

#: Larger answers count as what was read for clients, but for those that are counted already, or soon gone.
_LARGE_BYTES = 64 * 1024
_NOT_COUNTED = (ApiKey.FETCH, ApiKey.PRODUCE)


class Answers:
    """Requests in their order, each said once everything before it is said."""

    def __init__(
        self, outbox: Outbox, load: Load, unread: ByteShare, metrics: KafkaMetrics, abort: Callable[[], None]
    ) -> None:
        self._outbox = outbox
        self._load = load
        self._unread = unread
        self._metrics = metrics
        self._abort = abort
        self._slots: deque[Slot] = deque()
        #: Bytes of answers that are there and must wait for those of earlier requests.
        self.queued_bytes = 0

    def expect(self, slot: Slot) -> None:
        """A request came: its answer follows those of the ones before."""
        self._slots.append(slot)
        self._load.acquire(slot.size)

    def give(self, slot: Slot, response: Message | None) -> None:
        """The answer to a request, or that it wants none."""
        if slot.done:
            return
        if response is None:
            self.put(slot, [])
            return
        try:
            out = response_frame(slot.api_key, slot.version, slot.correlation_id, response)
        except WireError:
            log.exception("an answer of %s cannot be encoded", API[ApiKey(slot.api_key)].name)
            self._abort()
            return
        size = 4 + int.from_bytes(out[0][:4], "big")
        self._metrics.bytes_out += size
        if size > _LARGE_BYTES and slot.api_key not in _NOT_COUNTED:
            self._unread.acquire(size)
        self.put(slot, out)

    def forget(self) -> None:
        """The connection is gone: hold nothing of its requests until somebody collects the garbage."""
        self._slots.clear()
        self.queued_bytes = 0

    def put(self, slot: Slot, out: list[Buffer]) -> None:
        """Say it once everything before it is said."""
        slot.done, slot.out = True, out
        slots = self._slots
        if out and slots and slots[0] is not slot:
            slot.queued = sum(map(len, out))
            self.queued_bytes += slot.queued
        while slots and slots[0].done:
            first = slots.popleft()
            self._load.release(first.size)
            self.queued_bytes -= first.queued
            if first.out:
                self._outbox.say_all(first.out)
                first.out = []  # the last request may be remembered for long


#: While others wait for capacity, a client reads at such a rate, looked at over `patience_s`.
_SLOWEST_BYTES_PER_S = 64 * 1024
_LOOKS = 3


class UnreadAnswers:
    """A share of the bytes that clients have not read. A fetch reserves before it reads; what it reserved is held
    until the socket has taken it, so answers that wait to be sent are counted like those that are being made."""

    def __init__(self, share: ByteShare, connection: Connection, answers: Answers, services: Services) -> None:
        self._share = share
        self._connection = connection
        self._answers = answers
        self._patience_s = services.settings.receive_patience_s
        #: Of what is held: bytes of requests that are answered.
        self._answered = 0
        self._sent = 0
        self._looked_at = (liveness(services.clock).monotonic(), 0)
        self._looks = 0

    async def let_read(self, outbox: Outbox) -> None:
        """The request at hand is answered: wait until its client has read most of it, or ConnectionLostError."""
        outbox.flush()
        check(self._answered <= self._share.used_bytes, "what was answered was reserved")
        self._answered = self._share.used_bytes
        try:
            await outbox.drain()
        finally:
            self.count()

    def count(self) -> None:
        """Release what the socket has taken since."""
        unsent = self._connection.unsent_bytes + self._answers.queued_bytes
        left = min(self._answered, unsent)
        self._sent += self._answered - left
        self._share.release(self._answered - left)
        self._answered = left
        pressure = self._share.budget.on_pressure
        if left:
            pressure[self] = self.count  # it may have been sent by the time that others wait for it
        else:
            pressure.pop(self, None)

    def late(self, now: float) -> bool:
        """Whether others wait for capacity while this client hardly reads what it was sent."""
        self.count()
        since, sent = self._looked_at
        if not self._answered or self._sent - sent >= _SLOWEST_BYTES_PER_S * self._patience_s:
            self._looked_at, self._looks = (now, self._sent), 0
            return False
        self._looks += 1  # a broker that was busy itself looks again before it blames others
        return now - since > self._patience_s and self._looks > _LOOKS and self._share.budget.waiting > 0

    def close(self) -> None:
        """The connection is gone."""
        self._answered = 0
        self._share.budget.on_pressure.pop(self, None)
        self._share.close()
