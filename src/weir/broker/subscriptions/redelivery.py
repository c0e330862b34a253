"""Redelivery state of one subscription: counts, delays and leases of failed messages.

A failed message waits for its redelivery delay, is redelivered, or is given up after the last attempt. While it
waits it is aside: neither ready nor with a consumer, so it blocks nothing. A message may also be leased: it
belongs to no consumer until a deadline, and has failed then unless it was acknowledged. A durable subscription
saves counts and delays shortly after they change: after a crash a count may be too low by the most recent
failures.

`Redeliveries` counts redeliveries per message. A consumer that leaves may return a million messages, each for the
first time; one message may be returned a thousand times. To keep both small, the counts are sliced into binary
digits: each digit is the set of the messages that have it.

`Waits` stores offsets by due time in few sets. Due times are rounded up to steps that grow with the delay (to less
than a thirtieth of it), so messages that fail at about the same time share one set: a million of them take a few
hundred bitmaps.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from heapq import heapify, heappop, heappush
from typing import Protocol

from pyroaring import BitMap64

from weir.model.retry import RetryPolicy
from weir.runtime.interfaces import Clock, Timer
from weir.wire.amqp.dead_letter import Reason
from weir.wire.snapshots.subscriptions import RetryState, encode_retries

_DIGITS = 10
#: The highest count.
MOST = (1 << _DIGITS) - 1


class Redeliveries:
    __slots__ = ("_any", "_digits")

    def __init__(self) -> None:
        #: At index n: the messages with the digit of 2^n in their count.
        self._digits: list[BitMap64] = []
        self._any = BitMap64()

    def __bool__(self) -> bool:
        return bool(self._digits)

    def of(self, offset: int) -> int:
        """The redelivery count of a message."""
        if offset not in self._any:
            return 0
        return sum(1 << place for place, having in enumerate(self._digits) if offset in having)

    def groups(self, offsets: BitMap64) -> Iterator[tuple[int, BitMap64]]:
        """Group these messages by redelivery count."""
        yield from _split(offsets, self._digits, len(self._digits) - 1, 0)

    def all(self) -> BitMap64:
        """All messages with a count above 0."""
        return BitMap64(self._any)

    @property
    def digits(self) -> Sequence[BitMap64]:
        """The counts as they are stored: at index n the messages with the digit of 2^n in their count."""
        return self._digits

    def restore(self, digits: Sequence[BitMap64]) -> None:
        """Restore stored counts."""
        self._digits = [BitMap64(having) for having in digits[:_DIGITS]]
        self._any = BitMap64().union(*self._digits) if self._digits else BitMap64()
        self._shrink()

    def any_in(self, first: int, end: int) -> bool:
        """Whether any message in [first, end) has a count above 0."""
        seen = self._any
        return bool(self._digits and seen.max() >= first and seen.next_set_bit(first) < end)

    def count(self, offsets: BitMap64) -> None:
        """Increment the count of these messages."""
        carry = offsets
        if len(self._digits) == _DIGITS:
            carry = carry - reduce(BitMap64.intersection, self._digits)
        self._any |= offsets
        for place, having in enumerate(self._digits):
            if not carry:
                return
            self._digits[place] = having ^ carry
            carry = having & carry
        if carry:
            self._digits.append(BitMap64(carry))

    def forget(self, first: int, end: int) -> None:
        """Forget the counts in [first, end): the messages are settled."""
        self._any.remove_range(first, end)
        for having in self._digits:
            having.remove_range(first, end)
        self._shrink()

    def keep(self, offsets: BitMap64) -> None:
        """Forget the counts of all other messages: they are settled."""
        self._any &= offsets
        for having in self._digits:
            having.intersection_update(offsets)
        self._shrink()

    def _shrink(self) -> None:
        while self._digits and not self._digits[-1]:
            self._digits.pop()

    def clear(self) -> None:
        self._digits.clear()
        self._any.clear()


def _split(
    offsets: BitMap64, digits: Sequence[BitMap64], place: int, count: int
) -> Iterator[tuple[int, BitMap64]]:
    if not offsets:
        return
    if place < 0:
        yield count, offsets
        return
    having = offsets & digits[place]
    yield from _split(offsets - having, digits, place - 1, count)
    yield from _split(having, digits, place - 1, count | 1 << place)


#: A delay is rounded up by less than the 2^n-th part of it.
_EXACT_BITS = 5


class Waits:
    """Offsets by due time. A message is in it at most once: callers `drop` a message before they add it again."""

    __slots__ = ("_due", "_moments")

    def __init__(self, due: Mapping[int, BitMap64] | None = None) -> None:
        #: By due time, in milliseconds since 1970.
        self._due: dict[int, BitMap64] = dict(due or {})
        self._moments = list(self._due)
        heapify(self._moments)

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, offsets: BitMap64, now_ms: int, wait_ms: int) -> None:
        """Add offsets that are due after `wait_ms`."""
        step = 1 << max(0, (wait_ms >> _EXACT_BITS).bit_length() - 1)
        moment = -(-(now_ms + wait_ms) // step) * step
        there = self._due.get(moment)
        if there is None:
            self._due[moment] = BitMap64(offsets)
            heappush(self._moments, moment)
        else:
            there |= offsets

    @property
    def next_ms(self) -> int | None:
        """When the first of them are due, in milliseconds since 1970."""
        return self._moments[0] if self._moments else None

    def pop_due(self, now_ms: int) -> BitMap64:
        """Remove and return the offsets that are due."""
        found = BitMap64()
        while self._moments and self._moments[0] <= now_ms:
            found |= self._due.pop(heappop(self._moments))
        return found

    def drop(self, offsets: BitMap64) -> None:
        """Remove these offsets."""
        for waiting in self._due.values():
            waiting.difference_update(offsets)

    def keep(self, offsets: BitMap64) -> None:
        """Remove all other offsets."""
        for moment in list(self._due):
            self._due[moment] &= offsets
            if not self._due[moment]:
                del self._due[moment]
        self._moments = list(self._due)
        heapify(self._moments)

    def all(self) -> BitMap64:
        return BitMap64().union(*self._due.values()) if self._due else BitMap64()

    @property
    def due(self) -> Mapping[int, BitMap64]:
        return self._due

    def clear(self) -> None:
        self._due.clear()
        self._moments.clear()


#: Messages that may wait; beyond it delivery of new messages stops until some of them are due.
MOST_WAITING = 1_000_000
#: Maximum rate at which counts and delays are saved, in bytes per second.
_SAVED_BYTES_S = 256 * 1024
#: The timer checks the wall clock at least this often, because it may jump.
_TICK_S = 1.0


class RetryOwner(Protocol):
    """The subscription, as seen by its `Retries`."""

    def again(self, offsets: BitMap64) -> None:
        """Make these messages ready again, if they are still aside."""

    def lease_over(self, offsets: BitMap64) -> None:
        """Handle expired leases: these messages have failed if they are still aside."""

    def give_up(self, offsets: BitMap64, reason: Reason) -> None:
        """Make these messages dead letters; they are aside, or will be when the caller returns."""

    def retries_changed(self) -> None:
        """Save `Retries.to_bytes`, which has changed."""


class Retries:
    """`policy` may be set at any time. `counts`: the redelivery counts."""

    def __init__(self, owner: RetryOwner, counts: Redeliveries, clock: Clock, saved: RetryState | None) -> None:
        self.policy = RetryPolicy()
        #: Whether to save counts even if the policy retries nothing.
        self.counted = False
        self._owner = owner
        self._counts = counts
        self._clock = clock
        self._waits = Waits(None if saved is None else saved.waits)
        self._leases = Waits(None if saved is None else saved.leases)
        if saved is not None:
            counts.restore(saved.digits)
        self._timer: Timer | None = None
        self._wakes_ms = 0
        self._saves: Timer | None = None
        self._quiet_until = 0.0
        self._closed = False
        self._set_timer()

    @property
    def active(self) -> bool:
        """Whether it has state to save."""
        return self.policy.active or self.counted or bool(self._waits) or bool(self._leases)

    def waiting(self) -> BitMap64:
        """All messages that wait or are leased; may include some after the end of their wait or lease."""
        return self._waits.all() | self._leases.all()

    def leased(self) -> BitMap64:
        """All leased messages; may include some after the end of their lease."""
        return self._leases.all()

    def failed(self, offsets: BitMap64, delay_ms: int | None = None) -> BitMap64:
        """Handle failures that are counted already. Return the messages that are aside from now on: they wait for
        `delay_ms` or for the delay of the policy, or are given up."""
        aside, dead, now_ms = BitMap64(), BitMap64(), self._clock.wall_ms()
        policy = self.policy
        if not policy.active and not delay_ms:
            self.changed()
            return aside
        for failures, some in self._counts.groups(offsets):
            if policy.is_over(failures):
                dead |= some
                continue
            wait_ms = policy.delay_ms(failures) if delay_ms is None else delay_ms
            if wait_ms > 0:
                self._waits.add(some, now_ms, wait_ms)
                aside |= some
        if dead:
            aside |= dead
            self._owner.give_up(dead, Reason.DELIVERY_LIMIT)
        self._set_timer()
        self.changed()
        return aside

    def lease(self, offsets: BitMap64, again: BitMap64, span_ms: int) -> None:
        """Lease these messages, all of them aside, for the span, and renew the leases of `again`."""
        if again:
            self._leases.drop(again)
        if offsets or again:
            self._leases.add(offsets | again, self._clock.wall_ms(), max(1, span_ms))
            self._set_timer()
            self.changed()

    def keep(self, offsets: BitMap64) -> None:
        """Forget the delays of all other messages."""
        self._waits.keep(offsets)
        self._leases.keep(offsets)
        self.changed()

    def clear(self) -> None:
        """Forget all failures, because the subscription was moved."""
        self._waits.clear()
        self._leases.clear()
        self.changed()

    # --- timers -------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        moments = [moment for moment in (self._waits.next_ms, self._leases.next_ms) if moment is not None]
        if not moments or self._closed:
            return
        first = min(moments)
        if self._timer is not None:
            if self._wakes_ms <= first:
                return
            self._timer.cancel()
        self._wakes_ms = first
        wait_s = max(0.0, (first - self._clock.wall_ms()) / 1000)
        self._timer = self._clock.call_later(min(wait_s, _TICK_S), self._check_due)

    def _check_due(self) -> None:
        self._timer = None
        if self._closed:
            return
        now_ms = self._clock.wall_ms()
        due, over = self._waits.pop_due(now_ms), self._leases.pop_due(now_ms)
        self._set_timer()
        if over:
            self._owner.lease_over(over)
        if due:
            self._owner.again(due)
        if due or over:
            self.changed()

    # --- saving -------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Save the state soon; large states less often."""
        if self._saves is not None or self._closed or not (self.active or self._quiet_until):
            return
        wait_s = self._quiet_until - self._clock.monotonic()
        if wait_s > 0:
            self._saves = self._clock.call_later(wait_s, self._save)
        else:
            self._owner.retries_changed()

    @property
    def unsaved(self) -> bool:
        return self._saves is not None

    def _save(self) -> None:
        self._saves = None
        if not self._closed:
            self._owner.retries_changed()

    def to_bytes(self) -> bytes:
        data = encode_retries(RetryState(self._counts.digits, self._waits.due, self._leases.due))
        self._quiet_until = self._clock.monotonic() + len(data) / _SAVED_BYTES_S
        return data

    def close(self) -> None:
        self._closed = True
        for timer in (self._timer, self._saves):
            if timer is not None:
                timer.cancel()
        self._timer = self._saves = None
