"""Dead letters of a topic's subscriptions: one outbox for each that has any, and where they go."""

import logging
from collections.abc import Callable, Mapping, Sequence

from pyroaring import BitMap64

from weir.broker.context import BrokerContext
from weir.broker.dead_letters.letters import Origin
from weir.broker.dead_letters.outbox import DeadLetters, Outlets
from weir.broker.dead_letters.parcels import PARCEL_KEY, Destination, parcel_key
from weir.broker.dispatch.subscription import Subscription
from weir.model.bits import Run
from weir.model.errors import NotAuthorisedError
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueRules, queue_of_topic
from weir.model.retry import RetryPolicy
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.stream.log import Stream
from weir.stream.state import StateLog
from weir.wire.amqp.death import Reason

log = logging.getLogger(__name__)


class TopicLetters:
    """Fills `subscription_parts.GivenUp`. `rules`: what the topic is as a queue now."""

    def __init__(
        self,
        context: BrokerContext,
        topic: TopicName,
        stream: Stream,
        state: StateLog,
        *,
        subscriptions: Callable[[], Mapping[str, Subscription]],
        rules: Callable[[], QueueRules],
        tasks: TaskScope,
    ) -> None:
        self._context = context
        self._topic = topic
        self._stream = stream
        self._state = state
        self._subscriptions = subscriptions
        self._rules = rules
        self._tasks = tasks
        self._outboxes: dict[str, DeadLetters] = {}
        #: Topics that policies name and that are refused, by subscription: the log says it once.
        self._refused: dict[str, TopicName] = {}

    def open(self) -> None:
        """Whatever the former broker was about to send is sent."""
        for key in self._state.keys(PARCEL_KEY):
            name = key.removeprefix(PARCEL_KEY).removeprefix("/") or QUEUE_SUBSCRIPTION
            if key == parcel_key(name):
                self.of(name)

    def of(self, subscription: str) -> DeadLetters:
        """The outbox of the subscription of this name, which may come to be later."""
        found = self._outboxes.get(subscription)
        if found is None:

            def settle(ranges: Sequence[Run]) -> None:
                if (known := self._subscriptions().get(subscription)) is not None:
                    known.ack(None, ranges)

            def give_back(offsets: BitMap64) -> None:
                if (known := self._subscriptions().get(subscription)) is not None:
                    known.failing.again(offsets)

            def deliveries_of(offset: int) -> int:
                known = self._subscriptions().get(subscription)
                return 0 if known is None else known.deliveries.of(offset)

            queue = queue_of_topic(self._topic)
            said = queue if subscription == QUEUE_SUBSCRIPTION else f"{queue}/{subscription}"
            found = self._outboxes[subscription] = DeadLetters(
                Origin(said, self._topic, subscription),
                self._stream,
                self._context.letters.routes(self._topic.namespace),
                outlets=Outlets(settle, give_back, deliveries_of),
                store=self._state,
                runtime=self._context.runtime,
                tasks=self._tasks,
            )
        return found

    @property
    def waiting(self) -> bool:
        """Whether messages that were given up have not arrived at their destination yet."""
        return any(self._outboxes.values())

    def close(self) -> None:
        """Whoever waits for letters to arrive waits for another broker."""
        for outbox in self._outboxes.values():
            outbox.arrived.wake()

    # --- for subscriptions --------------------------------------------------------------------------------------

    def dead(self, subscription: Subscription) -> BitMap64:
        found = self._outboxes.get(subscription.name)
        return BitMap64() if found is None else found.offsets

    def take(self, subscription: Subscription, offsets: BitMap64, reason: Reason) -> None:
        self.of(subscription.name).take(offsets, reason, self._destination(subscription))

    def _destination(self, subscription: Subscription) -> Destination:
        """A queue's dead letter exchange, if it has one; else the subscription's topic."""
        rules = self._rules()
        if subscription.name == QUEUE_SUBSCRIPTION and rules.dead_letter_exchange is not None:
            return Destination(rules.dead_letter_exchange, rules.dead_letter_key)
        return Destination(topic=str(self._target(subscription)))

    def _target(self, subscription: Subscription) -> TopicName:
        """The topic that the subscription's policy names, or the default if nobody who can store the policy may
        produce there: earlier releases stored policies without a check."""
        named = subscription.retry.dead_letters_of(self._topic, subscription.name)
        try:
            self._context.guard.check_stored_target(self._topic.base, named)
        except NotAuthorisedError as denied:
            default = RetryPolicy().dead_letters_of(self._topic, subscription.name)
            if self._refused.get(subscription.name) != named:
                self._refused[subscription.name] = named
                log.warning(
                    "%s: the policy of subscription %s names %s for dead letters, which is refused: %s (%s). They "
                    "go to %s",
                    *(self._topic, subscription.name, named, denied.what, denied.hint, default),
                )
            return default
        self._refused.pop(subscription.name, None)
        return named

    def forget(self, subscription: Subscription) -> None:
        found = self._outboxes.pop(subscription.name, None)
        if found is not None:
            found.close()
        self._state.delete(parcel_key(subscription.name))
