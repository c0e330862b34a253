"""One task per broker that looks after its topics in turn."""

import logging
from collections.abc import Callable, Sequence

from weir.broker.context import BrokerContext
from weir.broker.topic.opening import AnyTopic
from weir.broker.topic.topic import BrokerTopic
from weir.broker.upkeep.topic import maintain
from weir.model.errors import WeirError

log = logging.getLogger(__name__)

#: Topics looked after before everyone else gets a turn.
_AT_ONCE = 20


class Maintenance:
    def __init__(self, context: BrokerContext, topics: Callable[[], Sequence[AnyTopic]]) -> None:
        self._clock = context.runtime.clock
        self._interval_s = context.settings.maintenance_s
        self._topics = topics

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Look after every loaded topic once."""
        for number, topic in enumerate(self._topics()):
            if not isinstance(topic, BrokerTopic) or not topic.alive:
                continue
            try:
                await maintain(topic, self._clock.wall_ms())
            except WeirError as failed:
                log.warning("%s could not be looked after this time: %s", topic.name, failed)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await self._clock.sleep(0)
