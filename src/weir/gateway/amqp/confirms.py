"""Publisher confirms of one channel, sent in as few frames as their order allows.

Sequence numbers start at 1. One frame with `multiple` confirms a run of stored publishes that no outstanding one
precedes; all others get one frame each. All results of one event loop turn go out together.
"""

from collections.abc import Callable

from weir.wire.amqp.methods import basic, encode_method


class Confirms:
    """`say` sends a frame; `say_last` schedules a callback at the end of the turn."""

    def __init__(
        self, channel: int, say: Callable[[bytes], None], say_last: Callable[[Callable[[], None]], None]
    ) -> None:
        self._channel = channel
        self._say = say
        self._say_last = say_last
        #: Sequence numbers of the next publish and of the first unconfirmed one.
        self.next = 1
        self._low = 1
        #: Of publishes to several queues: how many queues besides one have still to answer.
        self._more: dict[int, int] = {}
        #: Publishes that at least one queue has refused.
        self._failed: set[int] = set()
        #: Runs above `_low` that are already confirmed: first to end.
        self._ahead: dict[int, int] = {}
        self._fresh: list[tuple[int, int, bool]] = []
        self.nacked = 0

    @property
    def outstanding(self) -> int:
        """The number of unconfirmed publishes."""
        return self.next - self._low - sum(end - first for first, end in self._ahead.items())

    def take(self, queues: int) -> int:
        """Assign a sequence number to a publish to `queues` queues; without a queue, confirm it at once."""
        number = self.next
        self.next = number + 1
        if queues > 1:
            self._more[number] = queues - 1
        elif not queues:
            self._note(number, number + 1, True)
        return number

    def take_all(self, count: int, queues: int = 1) -> int:
        """Assign numbers to `count` publishes, each to `queues` (at least one) queues; returns the first."""
        first = self.next
        self.next = first + count
        if queues > 1:
            self._more.update(dict.fromkeys(range(first, first + count), queues - 1))
        return first

    def resolved(self, first: int, end: int, stored: bool) -> None:
        """A queue has stored the publishes [first, end), or refused them."""
        if not self._more and not self._failed:
            self._note(first, end, stored)
            return
        for number in range(first, end):
            if not stored:
                self._failed.add(number)
            left = self._more.get(number, 0)
            if left > 1:
                self._more[number] = left - 1
            elif left:
                del self._more[number]
            else:
                failed = number in self._failed
                self._failed.discard(number)
                self._note(number, number + 1, not failed)

    def _note(self, first: int, end: int, stored: bool) -> None:
        fresh = self._fresh
        if not fresh:
            self._say_last(self.tell)
        elif fresh[-1][1] == first and fresh[-1][2] is stored:
            fresh[-1] = (fresh[-1][0], end, stored)
            return
        fresh.append((first, end, stored))

    def tell(self) -> None:
        """Send acks and nacks for all new results."""
        fresh, self._fresh = self._fresh, []
        for first, end, stored in _joined(fresh):
            if not stored:
                self.nacked += end - first
            if first == self._low:
                self._frame(end - 1, stored, multiple=end - first > 1)
                self._low = end
                while self._low in self._ahead:
                    self._low = self._ahead.pop(self._low)
            else:
                for number in range(first, end):
                    self._frame(number, stored, multiple=False)
                self._ahead[first] = end

    def _frame(self, number: int, stored: bool, *, multiple: bool) -> None:
        method = basic.Ack(number, multiple) if stored else basic.Nack(number, multiple, False)
        self._say(encode_method(self._channel, method))


def _joined(runs: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """Sort the runs, and merge neighbors with the same result."""
    if len(runs) < 2:
        return runs
    runs.sort()
    found = runs[:1]
    for first, end, stored in runs[1:]:
        before = found[-1]
        if before[1] == first and before[2] is stored:
            found[-1] = (before[0], end, stored)
        else:
            found.append((first, end, stored))
    return found
