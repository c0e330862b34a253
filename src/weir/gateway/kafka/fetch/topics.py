"""The topics that one connection reads, as they are loaded: to ask the broker for each fetch would cost more."""

from weir.broker.api import Broker, Topic
from weir.model.topics import TopicName


class Topics:
    """Of one connection. One that has died is not known any more."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._limit = limit
        self._topics: dict[TopicName, Topic] = {}
        self.role = ""

    def get(self, name: TopicName) -> Topic | None:
        found = self._topics.get(name)
        if found is None or found.alive:
            return found
        del self._topics[name]
        return None

    async def load(self, name: TopicName) -> Topic:
        """The topic, loaded now if need be; TopicNotFoundError, NotOwnerError, NotAuthorisedError."""
        topic = await self._broker.topic(name, role=self.role, create=False)
        if topic.stored is not None:
            if len(self._topics) >= self._limit:
                self._topics.clear()
            self._topics[name] = topic
        return topic
