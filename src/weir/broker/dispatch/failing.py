"""What of a subscription has to do with messages that fail: its policy, its counts and waits, what is given up."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.offsets import runs_in, set_of
from weir.broker.dispatch.per_message import PerMessage
from weir.broker.dispatch.redeliveries import Redeliveries
from weir.broker.dispatch.retries import Retries
from weir.broker.dispatch.subscription_parts import SubscriptionParts, retries_key
from weir.broker.trace.words import given_up_words
from weir.model.bits import Run
from weir.model.errors import NotAllowedError, WeirError
from weir.model.fifo import FIFO_RETRY, is_fifo
from weir.model.retry import RetryPolicy, retry_of
from weir.wire.amqp.death import Reason
from weir.wire.snapshots.retries import decode_retries

if TYPE_CHECKING:
    from weir.broker.dispatch.subscription import Subscription

log = logging.getLogger(__name__)


class FailureSide:
    """Fills `retries.RetryOwner`. `served_by`: the dispatcher, where messages are dealt one by one."""

    def __init__(
        self, subscription: "Subscription", around: SubscriptionParts, served_by: Callable[[], PerMessage | None]
    ) -> None:
        self._subscription = subscription
        self._around = around
        self._served_by = served_by
        #: How often messages were delivered in vain, where they are dealt one by one.
        self.counts = Redeliveries()
        self._retries: Retries | None = None
        #: What the topic's policies say, where the subscription's own properties say nothing.
        self.below: RetryPolicy | None = None

    @property
    def policy(self) -> RetryPolicy:
        try:
            own = retry_of(self._subscription.properties)
        except WeirError as bad:  # a newer Weir's
            log.warning("subscription %s: %s", self._subscription.name, bad)
            own = None
        told = (own or RetryPolicy()).over(self.below)
        return told.over(FIFO_RETRY) if is_fifo(self._subscription.properties) else told

    @property
    def retries(self) -> Retries:
        """Those that failed; made when there may be any."""
        if self._retries is None:
            self._retries = self._load()
            self._retries.policy = self.policy
        return self._retries

    def _load(self) -> Retries:
        subscription, counts, saved = self._subscription, self.counts, None
        data = self._around.state.get(retries_key(subscription.name)) if subscription.durable else None
        if data is not None:
            try:
                saved = decode_retries(data)
            except WeirError as bad:
                log.error("subscription %s: how often messages failed is forgotten: %s", subscription.name, bad)
        found = Retries(self, counts, self._around.clock, saved)
        if saved is not None:
            counts.keep(subscription.cursor.unacked_of(counts.all()))
            found.keep(subscription.cursor.unacked_of(found.waiting()))
        return found

    def apply(self) -> RetryPolicy:
        """The policy may be another one; answers which holds."""
        policy = self.policy
        if self._retries is not None:
            self._retries.policy = policy
            self._retries.changed()
        return policy

    def mark(self) -> None:
        """The topic is about to be closed: what failed is written down, if that has not been done yet."""
        if self._retries is not None and self._retries.unsaved:
            self.retries_changed()

    def close(self) -> None:
        if self._retries is not None:
            self._retries.close()

    # --- consumers ----------------------------------------------------------------------------------------------

    def lease(self, consumer: BrokerConsumer, ranges: Sequence[Run], span_ms: int) -> None:
        dispatcher = self._served_by()
        if dispatcher is None:
            raise NotAllowedError(f"messages of {self._subscription.name!r} are not dealt one by one")
        dispatcher.lease(consumer, ranges, span_ms)

    def reject(self, consumer: BrokerConsumer, ranges: Sequence[Run]) -> None:
        dispatcher = self._served_by()
        if dispatcher is not None:
            found = dispatcher.set_aside(consumer, ranges)
        else:
            found = self._subscription.cursor.unacked_of(set_of(ranges))
        if found:
            self.give_up(found, Reason.REJECTED)

    # --- what its waits ask for ---------------------------------------------------------------------------------

    def again(self, offsets: BitMap64) -> None:
        """What was aside is ready."""
        dispatcher = self._served_by()
        if dispatcher is not None:
            dispatcher.put_back(offsets)

    def lease_over(self, offsets: BitMap64) -> None:
        dispatcher = self._subscription.per_message()
        if dispatcher is not None:
            dispatcher.lease_over(offsets)

    def give_up(self, offsets: BitMap64, reason: Reason) -> None:
        self.tell_given_up(offsets, reason)
        self._around.given_up.take(self._subscription, offsets, reason)

    def tell_given_up(self, offsets: BitMap64, reason: Reason, *, letters: bool = True) -> None:
        """Whoever traces messages hears why these are delivered no more. `letters`: they become dead letters."""
        if (trace := self._around.trace) is not None and trace.on:
            trace.passed_by(self._subscription.name, offsets, given_up_words(reason, letters=letters))

    def retries_changed(self) -> None:
        subscription = self._subscription
        if subscription.durable and not subscription.gone and self._retries is not None:
            self._around.state.mark(retries_key(subscription.name), self._retries.to_bytes)

    def ack_soon(self, offsets: BitMap64) -> None:
        """In the next turn of the loop: they are aside until then."""
        asyncio.get_running_loop().call_soon(self._subscription.ack, None, list(runs_in(offsets)))
