"""What becomes of messages of one subscription that failed: they wait, come again, or are given up.

What waits is aside: neither ready nor with a consumer, and in nobody's way. A message may also be leased: with
nobody in particular until a moment, when it has failed unless it was acknowledged. Counts and waits of a durable
subscription are written down a moment after they change: a crash makes a count too low, by what failed just
before.
"""

from typing import Protocol

from pyroaring import BitMap64

from weir.broker.dispatch.redeliveries import Redeliveries
from weir.broker.dispatch.waits import Waits
from weir.model.retry import RetryPolicy
from weir.runtime.interfaces import Clock, Timer
from weir.wire.amqp.death import Reason
from weir.wire.snapshots.retries import RetryState, encode_retries

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
