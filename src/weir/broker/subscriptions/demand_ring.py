"""The consumers of a subscription that have credit, in serving order: best priority first, round robin within it.

A subscription may have tens of thousands of consumers, and one connection may close all of them at once: the cost
of an operation here does not grow with the number of consumers.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from weir.broker.filters.message_filter import CompiledFilter
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.dispatcher import UnackedLimits
from weir.broker.subscriptions.selectors import Seat

#: Consumers per dispatch decision. If more are waiting, each gets one message (or batch) per round.
MOST_SEATS = 64


class Line(NamedTuple):
    """The next consumers and the credit of each. `more`: other consumers wait behind them, so each of these gets
    one message (or batch) per round."""

    consumers: Sequence[BrokerConsumer]
    credit: list[int]
    more: bool

    @property
    def seats(self) -> list[Seat]:
        return [
            Seat(consumer.name, consumer.priority, credit)
            for consumer, credit in zip(self.consumers, self.credit, strict=True)
        ]


class DemandRing:
    """`add` a consumer when it requests messages, and when its capacity grows. `line` removes a consumer that has
    no credit left."""

    def __init__(self, limits: UnackedLimits, *, exact: bool = False) -> None:
        """`exact`: the credit of all consumers in a line together stays within the subscription's unacked
        limit."""
        self._limits = limits
        self._exact = exact
        #: By priority and number, in serving order.
        self._levels: dict[int, OrderedDict[int, BrokerConsumer]] = {}
        self._priorities: list[int] = []
        #: How many consumers are in the ring.
        self.count = 0
        #: Consumers that left the ring because they are at their limit of unacknowledged messages, by number.
        self._at_limit: set[int] = set()
        #: Whether the subscription is at its limit of unacknowledged messages.
        self.capped = False

    def add(self, consumer: BrokerConsumer) -> None:
        """Add the consumer, unless it has no credit or is in the ring already."""
        if consumer.demand <= 0:
            return
        number, priority = consumer.number, consumer.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = OrderedDict()
            insort(self._priorities, priority)
        elif number in level:
            return
        level[number] = consumer
        self.count += 1
        self._at_limit.discard(number)

    def discard(self, consumer: BrokerConsumer) -> None:
        self._at_limit.discard(consumer.number)
        self._remove(consumer)

    def _remove(self, consumer: BrokerConsumer) -> None:
        level = self._levels.get(consumer.priority)
        if level is None or level.pop(consumer.number, None) is None:
            return
        self.count -= 1
        if not level and len(self._priorities) > 1:
            del self._levels[consumer.priority]
            self._priorities.remove(consumer.priority)

    def served(self, consumer: BrokerConsumer) -> None:
        """Move a consumer that was just served behind the others of its priority."""
        if consumer.demand <= 0:
            self._remove(consumer)
        elif self.count > 1:
            level = self._levels.get(consumer.priority)
            if level is not None and consumer.number in level:
                level.move_to_end(consumer.number)

    @property
    def holds_back(self) -> bool:
        """Whether a limit on unacknowledged messages stops delivery to a consumer."""
        return self.capped or bool(self._at_limit)

    def room(self, unacked: int) -> int | None:
        """How many more messages the subscription may deliver if `unacked` are unacknowledged; None: no limit."""
        limit = self._limits.subscription
        room = limit - unacked if limit else None
        self.capped = room is not None and room <= 0
        return room

    def credit_of(self, consumer: BrokerConsumer) -> int:
        """Credit of the consumer within its own limits. A consumer without credit leaves the ring."""
        wanted = credit = consumer.capacity if consumer.active else 0
        if credit > 0 and self._limits.consumer:
            credit = min(credit, self._limits.consumer - consumer.unacked)
        if credit > 0:
            return credit
        self._remove(consumer)
        if wanted > 0:
            self._at_limit.add(consumer.number)
        return 0

    def has_credit(self, unacked: int) -> bool:
        """Whether any consumer has credit now; `unacked`: see `line`."""
        self.room(unacked)
        if self.capped:
            return False
        while self.count:
            if self.credit_of(self._next(1)[0]):
                return True
        return False

    def line(self, unacked: int, messages: int) -> Line | None:
        """Return the next consumers with their credit; None if no consumer has credit. `unacked`: unacknowledged
        messages of the subscription. `messages`: upper bound of the messages to deliver."""
        room = self.room(unacked)
        if self.capped:
            return None
        if self.count == 1:  # the usual case
            (consumer,) = self._next(1)
            credit = self.credit_of(consumer)
            return Line([consumer], [credit if room is None else min(credit, room)], False) if credit else None
        while self.count:
            consumers: list[BrokerConsumer] = []
            credit_of: list[int] = []
            for consumer in self._next(min(messages, MOST_SEATS)):
                credit = self.credit_of(consumer)
                if credit and room is not None:
                    credit = min(credit, room)
                    room -= credit if self._exact else 0
                if credit:
                    consumers.append(consumer)
                    credit_of.append(credit)
            if consumers:
                return Line(consumers, credit_of, self.count > len(consumers))
        return None

    def _next(self, most: int) -> list[BrokerConsumer]:
        if len(self._priorities) == 1:
            return list(islice(self._levels[self._priorities[0]].values(), most))
        found: list[BrokerConsumer] = []
        for priority in self._priorities:
            found += islice(self._levels[priority].values(), most - len(found))
            if len(found) >= most:
                break
        return found


class FilteredRing(DemandRing):
    """A ring per filter, so that consumers with a filter that matches nothing do not block the others. The cost of
    a decision depends on the number of filters, not on the number of consumers."""

    def __init__(self, limits: UnackedLimits) -> None:
        super().__init__(limits)
        self._rings: dict[CompiledFilter | None, DemandRing] = {}

    def add(self, consumer: BrokerConsumer) -> None:
        ring = self._rings.get(consumer.filter)
        if ring is None:
            ring = self._rings[consumer.filter] = DemandRing(self._limits)
            ring._at_limit = self._at_limit  # all rings share one set
        before = ring.count
        ring.add(consumer)
        self.count += ring.count - before

    def discard(self, consumer: BrokerConsumer) -> None:
        self._at_limit.discard(consumer.number)
        ring = self._rings.get(consumer.filter)
        if ring is None:
            return
        before = ring.count
        ring.discard(consumer)
        self.count += ring.count - before
        if not ring.count:
            del self._rings[consumer.filter]

    def served(self, consumer: BrokerConsumer) -> None:
        ring = self._rings.get(consumer.filter)
        if ring is not None:
            before = ring.count
            ring.served(consumer)
            self.count += ring.count - before

    def has_credit(self, unacked: int) -> bool:
        return self.line(unacked, 1) is not None

    def line(self, unacked: int, messages: int) -> Line | None:
        """Return the next consumers of each filter. Their credit together stays within the subscription's unacked
        limit."""
        room = self.room(unacked)
        consumers: list[BrokerConsumer] = []
        credit_of: list[int] = []
        for ring in self._rings.values():
            if room is not None and room <= 0:
                break
            before = ring.count
            line = ring.line(unacked, messages) if before else None
            self.count += ring.count - before
            if line is None:
                continue
            for consumer, credit in zip(line.consumers, line.credit, strict=True):
                given = 1 if line.more else credit
                if room is not None:
                    given = min(given, room)
                    room -= given
                if given > 0:
                    consumers.append(consumer)
                    credit_of.append(given)
        return Line(consumers, credit_of, False) if consumers else None
