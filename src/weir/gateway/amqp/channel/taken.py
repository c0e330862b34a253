"""Messages that a channel took from one queue and has not settled, and what is said of them within a turn."""

from weir.broker.api import QueueConsumer

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
