"""Dead letters made of what a queue's log has."""

import logging

from pyroaring import BitMap64

from weir.broker.dispatch.feed import Source
from weir.model.batch import BatchFlags
from weir.model.errors import OffsetTrimmedError, WireError
from weir.model.message import Message
from weir.runtime.interfaces import Clock
from weir.runtime.turns import Turns
from weir.wire.amqp.death import DeadLetter, Reason, dead_letter
from weir.wire.formats import opening

log = logging.getLogger(__name__)

#: Of one parcel, besides the last letter.
_MOST_BYTES = 512 * 1024
#: Letters made without a pause.
_AT_ONCE = 32


class Deaths:
    """Messages that die for one reason, under the same rules."""

    __slots__ = ("at_ms", "exchange", "key", "offsets", "reason")

    def __init__(self, offsets: BitMap64, reason: Reason, exchange: str, key: str | None, at_ms: int) -> None:
        self.offsets = offsets
        self.reason = reason
        self.exchange = exchange
        self.key = key
        self.at_ms = at_ms

    def like(self, other: "Deaths") -> bool:
        """They may go in one parcel. Times are in seconds."""
        return (self.reason, self.exchange, self.key, self.at_ms // 1000) == (
            other.reason,
            other.exchange,
            other.key,
            other.at_ms // 1000,
        )


class LetterMaker:
    """Of one queue. The same messages and deaths make the same letters, whenever."""

    def __init__(self, queue: str, source: Source, clock: Clock) -> None:
        self._queue = queue
        self._source = source
        self._turns = Turns(clock)
        self._opened: tuple[int, list[Message]] | None = None

    async def letters(self, offsets: BitMap64, deaths: Deaths) -> "dict[int, DeadLetter | None]":
        """Letters by the offsets of their messages, as many of the first ones as go into a parcel; None for what
        is no longer there or cannot be read."""
        found: dict[int, DeadLetter | None] = {}
        size = 0
        for offset in offsets:
            message = await self._message(offset)
            found[offset] = None if message is None else self.letter(message, deaths)
            size += 0 if message is None else len(message.value or b"")
            if size >= _MOST_BYTES:
                break
            if not len(found) % _AT_ONCE:
                await self._turns.next()
        return found

    def letter(self, message: Message, deaths: Deaths) -> DeadLetter | None:
        try:
            return dead_letter(
                message,
                deaths.reason,
                queue=self._queue,
                exchange=deaths.exchange,
                key=deaths.key,
                now_ms=deaths.at_ms,
            )
        except WireError as bad:
            log.error("a message of queue %s cannot be read, and is dropped: %s", self._queue, bad)
            return None

    async def _message(self, offset: int) -> Message | None:
        if self._opened is not None:
            base, messages = self._opened
            if base <= offset < base + len(messages):
                return messages[offset - base]
        try:
            batches = await self._source.read(max(offset, self._source.start_offset), 1)
        except OffsetTrimmedError:
            return None
        batch = batches[0] if batches else None
        if batch is None or not batch.base_offset <= offset < batch.end_offset or batch.flags & BatchFlags.UNSEEN:
            return None
        messages = await self._turns.through(opening(batch))
        if len(messages) != batch.count:  # one stands for all: it cannot be opened
            return messages[0] if offset == batch.base_offset else None
        self._opened = (batch.base_offset, messages)
        return messages[offset - batch.base_offset]
