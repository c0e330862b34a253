"""Unacknowledged messages of a channel by delivery tag, and settlements per queue consumer, batched per turn."""

from weir.broker.api.queues import QueueConsumer
from weir.gateway.amqp.errors import precondition_failed

Range = tuple[int, int]


class Taken:
    """Unsettled messages of one `QueueConsumer`. `settle` sends the collected settlements as offset ranges."""

    def __init__(self, consumer: QueueConsumer) -> None:
        self.consumer = consumer
        #: Messages delivered to the client and not settled.
        self.unacked = 0
        #: The broker closed the consumer: its messages are requeued, or deleted with the queue.
        self.over = False
        self._acks: list[Range] = []
        self._requeues: list[Range] = []
        self._rejects: list[Range] = []

    def ack(self, offset: int) -> None:
        self.unacked -= 1
        _add(self._acks, offset)

    def ack_run(self, first: int, end: int) -> None:
        """Acknowledge the consecutive offsets [first, end)."""
        self.unacked -= end - first
        acks = self._acks
        if acks and acks[-1][1] == first:
            acks[-1] = (acks[-1][0], end)
        else:
            acks.append((first, end))

    def requeue(self, offset: int) -> None:
        self.unacked -= 1
        _add(self._requeues, offset)

    def reject(self, offset: int) -> None:
        self.unacked -= 1
        _add(self._rejects, offset)

    def settle(self) -> None:
        """Send the collected settlements to the queue."""
        acks, rejects, requeues = self._acks, self._rejects, self._requeues
        if not self.over:
            if acks:
                self.consumer.ack(acks)
            if rejects:
                self.consumer.reject(rejects)
            if requeues:
                self.consumer.requeue(requeues)
        if acks:
            self._acks = []
        if rejects:
            self._rejects = []
        if requeues:
            self._requeues = []

    def settled(self) -> None:
        """Called after settlements, which may give new credit."""


def _add(ranges: list[Range], offset: int) -> None:
    if ranges and ranges[-1][1] == offset:
        ranges[-1] = (ranges[-1][0], offset + 1)
    else:
        ranges.append((offset, offset + 1))


#: The consumer or getter that fetched a message, and the message's offset in its queue.
Pending = tuple[Taken, int]


class Unacked:
    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_tag(self) -> int:
        """A tag for a no-ack message."""
        self._last += 1
        return self._last

    def add(self, taken: Taken, offset: int) -> int:
        """Register a delivered message; returns its tag."""
        self._last = tag = self._last + 1
        self._pending[tag] = (taken, offset)
        return tag

    def take(self, tag: int, *, multiple: bool) -> list[tuple[int, Pending]]:
        """Remove and return the messages that the client settles, with their tags. 406 for an unknown tag; with
        `multiple`, tag 0 means all."""
        pending = self._pending
        if not multiple:
            found = pending.pop(tag, None)
            if found is None:
                raise precondition_failed(f"unknown delivery tag {tag}")
            return [(tag, found)]
        if tag == 0:
            return self.take_all()
        if tag not in pending:
            raise precondition_failed(f"unknown delivery tag {tag}")
        taken: list[tuple[int, Pending]] = []
        for known in pending:
            if known > tag:
                break
            taken.append((known, pending[known]))
        for known, _ in taken:
            del pending[known]
        return taken

    def take_each(self, tags: list[int]) -> tuple[list[tuple[Taken, int, int]], int | None]:
        """Remove the messages of these tags, up to the first unknown tag. Returns runs [first, end) of consecutive
        offsets in one queue, and the unknown tag or None."""
        take = self._pending.pop
        runs: list[tuple[Taken, int, int]] = []
        before: Taken | None = None
        first = end = 0
        unknown = None
        for tag in tags:
            found = take(tag, None)
            if found is None:
                unknown = tag
                break
            taken, offset = found
            if taken is before and offset == end:
                end += 1
                continue
            if before is not None:
                runs.append((before, first, end))
            before, first, end = taken, offset, offset + 1
        if before is not None:
            runs.append((before, first, end))
        return runs, unknown

    def take_all(self) -> list[tuple[int, Pending]]:
        taken, self._pending = list(self._pending.items()), {}
        return taken

    def put_back(self, taken: list[tuple[int, Pending]]) -> None:
        """Restore messages settled in a rolled back transaction under their tags."""
        self._pending = dict(sorted([*taken, *self._pending.items()], key=lambda each: each[0]))
