"""What one connection is answered, in the order of its requests."""

import logging
from collections import deque
from collections.abc import Callable

from weir.gateway.kafka.connection.load import Load
from weir.gateway.kafka.connection.metrics import KafkaMetrics
from weir.gateway.kafka.connection.slots import Slot
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.runtime.byte_budget import ByteShare
from weir.runtime.outbox import Outbox
from weir.wire.kafka.apis import API, ApiKey
from weir.wire.kafka.frames import response_frame
from weir.wire.kafka.messages import Message

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
