"""Delivery tags of one channel: what each stands for, in the order of delivery.

Messages that a channel took from one queue and has not settled, and what is said of them within a turn.
"""

from weir.broker.api.queues import QueueConsumer
from weir.gateway.amqp.errors import precondition_failed

Range = tuple[int, int]


class Taken:
    """What one `QueueConsumer` gave out. Settlements are collected, and told in ranges by `settle`."""

    def __init__(self, consumer: QueueConsumer) -> None:
        self.consumer = consumer
        #: Messages that the client has and has not settled.
        self.unacked = 0
        #: The broker closed it: what it had is in the queue again, or gone with it.
        self.over = False
        self._acks: list[Range] = []
        self._requeues: list[Range] = []
        self._rejects: list[Range] = []

    def ack(self, offset: int) -> None:
        self.unacked -= 1
        _add(self._acks, offset)

    def ack_run(self, first: int, end: int) -> None:
        """Of messages that lie behind one another."""
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
        """Tell the queue what was said since the last time."""
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
        """Messages were settled; there may be credit again."""


def _add(ranges: list[Range], offset: int) -> None:
    if ranges and ranges[-1][1] == offset:
        ranges[-1] = (ranges[-1][0], offset + 1)
    else:
        ranges.append((offset, offset + 1))


#: Where a message came from, and its offset there.
Pending = tuple[Taken, int]


class Unacked:
    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_tag(self) -> int:
        """A tag for a message that is not to be acknowledged."""
        self._last += 1
        return self._last

    def add(self, taken: Taken, offset: int) -> int:
        """A message is delivered; its tag."""
        self._last = tag = self._last + 1
        self._pending[tag] = (taken, offset)
        return tag

    def take(self, tag: int, *, multiple: bool) -> list[tuple[int, Pending]]:
        """Those that the client means, with their tags, which mean nothing from now on. 406 for a tag that is not
        there; with `multiple`, 0 is all."""
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
        """The messages of these tags, up to the first that is not there, which is answered too: what lies behind
        one another in one queue is one run [first, end)."""
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
        """What was settled in a transaction that did not happen: its tags mean something again."""
        self._pending = dict(sorted([*taken, *self._pending.items()], key=lambda each: each[0]))
