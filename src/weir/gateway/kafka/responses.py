"""Sends the responses of one connection in the order of its requests, and counts the unread bytes.

Bytes of a response count from before the log is read until the socket has sent them.
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

#: The API key of a slot that holds a bare SASL token.
BARE = -1


class Slot:
    """A request and its position in the order of responses."""

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
        #: The request body, until it is decoded.
        self.frame: memoryview | None = frame
        #: Bytes of the whole frame.
        self.size = size
        #: Whether the prefetch has scanned this request.
        self.looked_at = False
        #: The rest of a pipelined request that must await something before it is decided.
        self.opening: Coroutine[Any, Any, None] | None = None
        self.done = False
        self.out: list[Buffer] = []
        #: Bytes of `out` that wait for earlier responses.
        self.queued = 0


def stores(slot: Slot) -> bool:
    """Whether the request stores messages, and so must run even if the client no longer waits for the response."""
    handler = HANDLERS.get(slot.api_key)
    return handler is not None and handler.pipelined


log = logging.getLogger(__name__)

#: Larger responses count as unread bytes, except those that are counted already (fetch) or short-lived (produce).
_LARGE_BYTES = 64 * 1024
_NOT_COUNTED = (ApiKey.FETCH, ApiKey.PRODUCE)


class Answers:
    """The requests of a connection in order; each response is sent after all earlier ones."""

    def __init__(
        self, outbox: Outbox, load: Load, unread: ByteShare, metrics: KafkaMetrics, abort: Callable[[], None]
    ) -> None:
        self._outbox = outbox
        self._load = load
        self._unread = unread
        self._metrics = metrics
        self._abort = abort
        self._slots: deque[Slot] = deque()
        #: Bytes of finished responses that wait for those of earlier requests.
        self.queued_bytes = 0

    def expect(self, slot: Slot) -> None:
        """Register a received request; its response follows those of earlier requests."""
        self._slots.append(slot)
        self._load.acquire(slot.size)

    def give(self, slot: Slot, response: Message | None) -> None:
        """Encode and queue the response to a request; None if the request wants none."""
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
        """The connection is closed: drop its requests now, before the garbage collector runs."""
        self._slots.clear()
        self.queued_bytes = 0

    def put(self, slot: Slot, out: list[Buffer]) -> None:
        """Send the response after all earlier ones."""
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
                first.out = []  # other objects may reference the last slot for long


#: The slowest rate at which a client may read while others wait for capacity, measured over `patience_s`.
_SLOWEST_BYTES_PER_S = 64 * 1024
_LOOKS = 3


class UnreadAnswers:
    """One connection's share of the unread bytes. A fetch reserves bytes before it reads, and releases them when
    the socket has sent the response, so queued responses count like those under construction."""

    def __init__(self, share: ByteShare, connection: Connection, answers: Answers, services: Services) -> None:
        self._share = share
        self._connection = connection
        self._answers = answers
        self._patience_s = services.settings.receive_patience_s
        #: Reserved bytes that belong to finished responses.
        self._answered = 0
        self._sent = 0
        self._looked_at = (liveness(services.clock).monotonic(), 0)
        self._looks = 0

    async def let_read(self, outbox: Outbox) -> None:
        """Wait until the client has read most of the current response, or raise ConnectionLostError."""
        outbox.flush()
        check(self._answered <= self._share.used_bytes, "every response was reserved")
        self._answered = self._share.used_bytes
        try:
            await outbox.drain()
        finally:
            self.count()

    def count(self) -> None:
        """Release the bytes that the socket has sent since the last call."""
        unsent = self._connection.unsent_bytes + self._answers.queued_bytes
        left = min(self._answered, unsent)
        self._sent += self._answered - left
        self._share.release(self._answered - left)
        self._answered = left
        pressure = self._share.budget.on_pressure
        if left:
            pressure[self] = self.count  # the socket may have sent it when others start to wait
        else:
            pressure.pop(self, None)

    def late(self, now: float) -> bool:
        """Whether others wait for capacity while this client reads slower than the minimum rate."""
        self.count()
        since, sent = self._looked_at
        if not self._answered or self._sent - sent >= _SLOWEST_BYTES_PER_S * self._patience_s:
            self._looked_at, self._looks = (now, self._sent), 0
            return False
        self._looks += 1  # the broker itself may have been busy: check several times before blaming the client
        return now - since > self._patience_s and self._looks > _LOOKS and self._share.budget.waiting > 0

    def close(self) -> None:
        """Release the share when the connection closes."""
        self._answered = 0
        self._share.budget.on_pressure.pop(self, None)
        self._share.close()
