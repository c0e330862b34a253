"""What a channel fetches one by one (basic.get): a getter per queue, kept while it is of use."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from weir.broker.api import Queue
from weir.gateway.amqp.channel.taken import Taken

if TYPE_CHECKING:
    from weir.gateway.amqp.channel.channel import Channel

#: Getters that are kept although nothing of theirs is unacknowledged.
_KEPT = 16


class Getters:
    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._getters: OrderedDict[Queue, Taken] = OrderedDict()

    async def of(self, queue: Queue) -> Taken:
        """The getter for a queue."""
        found = self._getters.get(queue)
        if found is None:
            consumer = await queue.getter(self._channel.session.role)
            found = self._getters[queue] = Taken(consumer)
            await self._tidy(queue)
        self._getters.move_to_end(queue)
        return found

    async def _tidy(self, kept: Queue) -> None:
        """Close those of queues that are gone, and the longest unused ones."""
        over = len(self._getters) - _KEPT
        for queue, getter in list(self._getters.items()):
            if queue is kept or getter.unacked:
                continue
            if over > 0 or not queue.alive:
                over -= 1
                del self._getters[queue]
                await getter.consumer.close()

    async def drop(self, queue: Queue) -> None:
        """It does not work any more."""
        getter = self._getters.pop(queue, None)
        if getter is not None:
            getter.over = True
            await getter.consumer.close()

    async def close(self) -> None:
        """What is not acknowledged is requeued."""
        getters = list(self._getters.values())
        self._getters.clear()
        for getter in getters:
            await getter.consumer.close()
