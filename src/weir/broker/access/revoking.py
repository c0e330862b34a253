"""What was allowed and is no longer: producers and consumers of a role that lost its grant are sent away."""

import logging
from collections.abc import Callable

from weir.broker.api import Guard
from weir.broker.dispatch.subscription import Subscription
from weir.broker.topic.non_persistent import PassingSubscription
from weir.broker.topic.opening import AnyTopic
from weir.model.errors import NotAuthorisedError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

#: So many topics, then it is the others' turn.
_TOPICS_PER_TURN = 200


class Revoking:
    """Waits for changes of what roles may do, and asks anew for everyone who is connected."""

    def __init__(self, guard: Guard, clock: Clock, topics: Callable[[], list[AnyTopic]]) -> None:
        self._guard = guard
        self._clock = clock
        self._topics = topics

    async def run(self) -> None:
        seen = self._guard.revision
        while True:
            seen = await self._guard.change(seen)
            for number, topic in enumerate(self._topics(), 1):
                self.check(topic)
                if not number % _TOPICS_PER_TURN:
                    await self._clock.sleep(0)

    def check(self, topic: AnyTopic) -> None:
        """Send everyone away who may not be there. They come back at once, and are told why not."""
        for producer in list(topic.producers):
            if denied := self._denied(producer.request.role, topic.name, Action.PRODUCE):
                topic.producers.remove(producer, denied.what)
        subscriptions: list[Subscription | PassingSubscription] = [*topic.subscriptions.values()]
        for subscription in subscriptions:
            for consumer in list(subscription.consumers):
                if denied := self._denied(consumer.request.role, topic.name, Action.CONSUME, subscription.name):
                    consumer.denied = denied
                    subscription.expel(consumer, denied.what)

    def _denied(
        self, role: str, topic: TopicName, action: Action, subscription: str | None = None
    ) -> NotAuthorisedError | None:
        try:
            self._guard.check(role, topic, action, subscription=subscription)
        except NotAuthorisedError as refused:
            log.info("%s", refused.what)
            return refused
        return None
