"""Confirms of one channel: which publishes are safe, told in as few frames as their order allows.

Publishes are numbered from 1. Those that are safe and have no unsafe one before them are told together, with
`multiple`; others one by one. What becomes known within one turn of the loop is told at once.
"""

from collections.abc import Callable

from weir.wire.amqp.methods import basic, encode_method


class Confirms:
    """`say`: where frames go; `say_last`: who calls back at the end of the turn."""

    def __init__(
        self, channel: int, say: Callable[[bytes], None], say_last: Callable[[Callable[[], None]], None]
    ) -> None:
        self._channel = channel
        self._say = say
        self._say_last = say_last
        #: The number of the next publish, and of the first that nothing is told about.
        self.next = 1
        self._low = 1
        #: Publishes to several queues: how many more must answer.
        self._more: dict[int, int] = {}
        #: Those of which one queue has refused.
        self._failed: set[int] = set()
        #: What was told above `_low`: first to end.
        self._ahead: dict[int, int] = {}
        self._fresh: list[tuple[int, int, bool]] = []
        self.nacked = 0

    @property
    def outstanding(self) -> int:
        """Publishes that nothing was told about."""
        return self.next - self._low - sum(end - first for first, end in self._ahead.items())

    def take(self, queues: int) -> int:
        """The number of a publish to so many queues; one to none is safe at once."""
        number = self.next
        self.next = number + 1
        if queues > 1:
            self._more[number] = queues - 1
        elif not queues:
            self._note(number, number + 1, True)
        return number

    def take_all(self, count: int, queues: int = 1) -> int:
        """The first number of so many publishes, each to so many queues: one or more."""
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
        """Say what is known and not told yet."""
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
    """In order, neighbours of the same kind as one."""
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
