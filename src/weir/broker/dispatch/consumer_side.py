"""What of a subscription has to do with its consumers: they are of one type, and one dispatcher serves them."""

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from weir.broker.api import SubscribeRequest, SubscriptionType
from weir.broker.dispatch.choosing import dispatcher_of
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.dispatcher import Dispatcher, DispatchParts
from weir.broker.dispatch.failing import FailureSide
from weir.broker.dispatch.key_owners import KeyOwners
from weir.broker.dispatch.per_message import PerMessage
from weir.broker.dispatch.pieces import Tally
from weir.broker.dispatch.subscription_parts import SubscriptionParts
from weir.broker.filters.compiled import compiled
from weir.broker.filters.screen import Screen, ScreenedFeed
from weir.broker.publish.limits import Brake
from weir.model.errors import ReadStuckError, SubscriptionBusyError
from weir.model.fifo import is_fifo
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.runtime.byte_budget import ByteShare

if TYPE_CHECKING:
    from weir.broker.dispatch.subscription import Subscription


class ConsumerSide:
    """`counts`: how often batches were delivered, where they are dealt whole."""

    def __init__(
        self,
        subscription: "Subscription",
        around: SubscriptionParts,
        screen: Screen,
        failing: FailureSide,
        counts: dict[int, int],
    ) -> None:
        #: None before the first consumer.
        self.dispatcher: Dispatcher | None = None
        self.type: SubscriptionType | None = None
        self.compacted = False
        #: Of the last consumer that was let in.
        self.last_number = 0
        self._subscription = subscription
        self._around = around
        self._screen = screen
        self._failing = failing
        self._counts = counts
        self._unacked = Tally()

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        return () if self.dispatcher is None else self.dispatcher.consumers

    def let_in(self, request: SubscribeRequest, delivery_share: ByteShare | None) -> BrokerConsumer:
        """SubscriptionBusyError if it does not fit to those that are there."""
        around = self._around
        around.consumer_limit.check(len(self.consumers), around.label, self._subscription.name)
        dispatcher = self._fitting(request)
        self.last_number += 1
        subscription = self._subscription
        consumer = BrokerConsumer(
            subscription,
            request,
            self.last_number,
            clock=around.clock,
            batch_bytes=around.settings.delivery_bytes,
            latency=around.latency,
            delivery_share=delivery_share,
            trace=around.trace,
            tally=self._unacked,
        )
        if subscription.name == QUEUE_SUBSCRIPTION:
            consumer.filter = compiled(request.filter)
        dispatcher.join(consumer)
        return consumer

    def serve_queue(self) -> Dispatcher:
        """A dispatcher of messages one by one, before the first consumer."""
        return self._serve(SubscriptionType.SHARED, per_message=True)

    def dealing(self) -> PerMessage | None:
        """The dispatcher, if it deals messages one by one."""
        return self.dispatcher if isinstance(self.dispatcher, PerMessage) else None

    def stop(self) -> None:
        """Consumers that come back have another dispatcher."""
        if self.dispatcher is not None:
            self.dispatcher.close()
            self.dispatcher, self.type = None, None

    def _fitting(self, request: SubscribeRequest) -> Dispatcher:
        per_message = self._is_per_message(request)
        same = (
            self.type is request.type
            and self.compacted == request.read_compacted
            and per_message == isinstance(self.dispatcher, PerMessage)
        )
        if self.dispatcher is not None and same:
            return self.dispatcher
        if self.consumers:
            kind = self.type.value if self.type is not None else ""
            raise SubscriptionBusyError(f"subscription {self._subscription.name!r} has consumers of type {kind}")
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.compacted = request.read_compacted
        return self._serve(request.type, per_message=per_message)

    def _is_per_message(self, request: SubscribeRequest) -> bool:
        """Shared ones of queues, of topics that have levels, and for those who ask for it; and what retries."""
        if request.type is SubscriptionType.KEY_SHARED:
            return self._failing.policy.active
        if request.type is not SubscriptionType.SHARED:
            return False
        exact = self._subscription.name == QUEUE_SUBSCRIPTION or request.per_message
        return exact or self._around.side.levels > 0 or self._failing.policy.active

    def _serve(self, kind: SubscriptionType, *, per_message: bool) -> Dispatcher:
        parts = self._dispatch_parts()
        if per_message:
            self.dispatcher = self._one_by_one(kind, parts)
        else:
            self.dispatcher = dispatcher_of(kind, parts, self._around.keys_of)
        self.type = kind
        return self.dispatcher

    def _dispatch_parts(self) -> DispatchParts:
        around, subscription = self._around, self._subscription
        source = around.view if self.compacted else around.source
        screen = self._screen.over(source.visible)
        return DispatchParts(
            subscription.cursor,
            around.settings,
            lambda wake: ScreenedFeed(
                source, around.clock, around.settings, around.tasks, wake, screen=screen, stuck=self._stuck
            ),
            lambda wake: Brake(around.clock, (around.topic_rate, subscription.rate), wake),
            screen.visible,
            self._counts,
            subscription.limits,
            self._unacked,
            around.partition,
            screen,
            around.clock.wall_ms,
        )

    def _one_by_one(self, kind: SubscriptionType, parts: DispatchParts) -> PerMessage:
        around, subscription = self._around, self._subscription
        by_key = kind is SubscriptionType.KEY_SHARED
        return PerMessage(
            parts,
            around.side,
            self._failing.counts,
            around.levels_of,
            queue=subscription.name == QUEUE_SUBSCRIPTION,
            retries=self._failing.retries,
            dead=partial(around.given_up.dead, subscription),
            groups_of=around.keys_of if by_key or is_fifo(subscription.properties) else None,
            owners=KeyOwners(around.keys_of) if by_key else None,
        )

    def _stuck(self, failure: ReadStuckError) -> None:
        for consumer in list(self.consumers):
            consumer.fail(failure)
