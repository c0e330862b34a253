"""What becomes of messages of one subscription that failed: they wait, come again, or are given up.

What waits is aside: neither ready nor with a consumer, and in nobody's way. A message may also be leased: with
nobody in particular until a moment, when it has failed unless it was acknowledged. Counts and waits of a durable
subscription are written down a moment after they change: a crash makes a count too low, by what failed just
before.

How often each message of a queue was delivered before: per message, in bits rather than numbers.

A consumer that leaves may give a million messages back, each for the first time; one message may come back a
thousand times. Both are small as sets: the counts are sliced into binary digits, and each digit is the set of the
messages that have it.

Messages that wait for a moment, as sets of offsets: few sets, however many messages.

Moments are rounded up to steps that grow with the wait (to less than a thirtieth of it), so that what fails at
about the same time waits in one set: a million messages that wait are a few hundred bitmaps.
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
#: Counts go no higher.
MOST = (1 << _DIGITS) - 1


class Redeliveries:
    __slots__ = ("_any", "_digits")

    def __init__(self) -> None:
        #: At place n: what has the digit of 2^n in its count.
        self._digits: list[BitMap64] = []
        self._any = BitMap64()

    def __bool__(self) -> bool:
        return bool(self._digits)

    def of(self, offset: int) -> int:
        """How often it was delivered before."""
        if offset not in self._any:
            return 0
        return sum(1 << place for place, having in enumerate(self._digits) if offset in having)

    def groups(self, offsets: BitMap64) -> Iterator[tuple[int, BitMap64]]:
        """These by how often each was delivered before."""
        yield from _split(offsets, self._digits, len(self._digits) - 1, 0)

    def all(self) -> BitMap64:
        """What was delivered before."""
        return BitMap64(self._any)

    @property
    def digits(self) -> Sequence[BitMap64]:
        """The counts as they are kept: at place n what has the digit of 2^n."""
        return self._digits

    def restore(self, digits: Sequence[BitMap64]) -> None:
        """As they were kept."""
        self._digits = [BitMap64(having) for having in digits[:_DIGITS]]
        self._any = BitMap64().union(*self._digits) if self._digits else BitMap64()
        self._shrink()

    def any_in(self, first: int, end: int) -> bool:
        """Whether any of [first, end) was delivered before."""
        seen = self._any
        return bool(self._digits and seen.max() >= first and seen.next_set_bit(first) < end)

    def count(self, offsets: BitMap64) -> None:
        """These came back, once more each."""
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
        """Those in [first, end) are done with."""
        self._any.remove_range(first, end)
        for having in self._digits:
            having.remove_range(first, end)
        self._shrink()

    def keep(self, offsets: BitMap64) -> None:
        """All others are done with."""
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


#: A wait is rounded up by less than the 2^n-th part of it.
_EXACT_BITS = 5


class Waits:
    """A message waits once at the most: who adds it again calls `drop` before."""

    __slots__ = ("_due", "_moments")

    def __init__(self, due: Mapping[int, BitMap64] | None = None) -> None:
        #: By their moments, in milliseconds since 1970.
        self._due: dict[int, BitMap64] = dict(due or {})
        self._moments = list(self._due)
        heapify(self._moments)

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, offsets: BitMap64, now_ms: int, wait_ms: int) -> None:
        """From now on for so long."""
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
        """When the first of them are due."""
        return self._moments[0] if self._moments else None

    def pop_due(self, now_ms: int) -> BitMap64:
        """Those that wait no longer."""
        found = BitMap64()
        while self._moments and self._moments[0] <= now_ms:
            found |= self._due.pop(heappop(self._moments))
        return found

    def drop(self, offsets: BitMap64) -> None:
        """These do not wait any more."""
        for waiting in self._due.values():
            waiting.difference_update(offsets)

    def keep(self, offsets: BitMap64) -> None:
        """No others wait any more."""
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


#: As many messages may wait; until some of them are due, nothing new is delivered.
MOST_WAITING = 1_000_000
#: Bytes of counts and waits written in a second, at the most.
_SAVED_BYTES_S = 256 * 1024
#: The wall clock may jump: it is looked at so often.
_TICK_S = 1.0


class RetryOwner(Protocol):
    """The subscription, as the waits of its messages see it."""

    def again(self, offsets: BitMap64) -> None:
        """These are ready again, if they are aside still."""

    def lease_over(self, offsets: BitMap64) -> None:
        """These were leased, and have failed if they are aside still."""

    def give_up(self, offsets: BitMap64, reason: Reason) -> None:
        """These are dead, and aside, or will be once the caller has returned."""

    def retries_changed(self) -> None:
        """`Retries.to_bytes` is another one."""


class Retries:
    """`policy` may be set at any time. `counts`: how often each failed."""

    def __init__(self, owner: RetryOwner, counts: Redeliveries, clock: Clock, saved: RetryState | None) -> None:
        self.policy = RetryPolicy()
        #: Whether counts are kept although nothing is retried by the policy.
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
        """Whether there is anything to keep."""
        return self.policy.active or self.counted or bool(self._waits) or bool(self._leases)

    def waiting(self) -> BitMap64:
        """All that waits or is leased, and some that did."""
        return self._waits.all() | self._leases.all()

    def leased(self) -> BitMap64:
        """All that is leased, and some that was."""
        return self._leases.all()

    def failed(self, offsets: BitMap64, delay_ms: int | None = None) -> BitMap64:
        """These have failed, and are counted. Those that are aside from now on: they wait, for as long as is said
        or the policy says, or are given up."""
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
        """These, all of them aside, are with somebody from now on for so long; those of `again` were before."""
        if again:
            self._leases.drop(again)
        if offsets or again:
            self._leases.add(offsets | again, self._clock.wall_ms(), max(1, span_ms))
            self._set_timer()
            self.changed()

    def keep(self, offsets: BitMap64) -> None:
        """No others wait any more, nor were they counted."""
        self._waits.keep(offsets)
        self._leases.keep(offsets)
        self.changed()

    def clear(self) -> None:
        """The subscription was moved: nothing has failed."""
        self._waits.clear()
        self._leases.clear()
        self.changed()

    # --- moments ------------------------------------------------------------------------------------------------

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
        self._timer = self._clock.call_later(min(wait_s, _TICK_S), self._look)

    def _look(self) -> None:
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

    # --- keeping ------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Have it written down, soon; large ones not too often."""
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
