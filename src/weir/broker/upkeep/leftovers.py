"""Deletions that were cut short, by a crash say, are ended without anybody asking for the topic."""

import logging
from collections.abc import Awaitable, Callable

from weir.broker.ports import Registry
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

_EVERY_S = 60.0


class Leftovers:
    """Looks for topics that are marked as being deleted. `delete` ends one, or waits for whoever is at it."""

    def __init__(self, clock: Clock, registry: Registry, delete: Callable[[TopicName], Awaitable[None]]) -> None:
        self._clock = clock
        self._registry = registry
        self._delete = delete

    async def run(self) -> None:
        """For ever; at the start, too."""
        while True:
            for name in await self._doomed():
                try:
                    await self._delete(name)
                    log.info("%s, whose deletion was cut short, is gone", name)
                except WeirError as failed:  # another broker is at it, say
                    log.info("the deletion of %s is not ended yet: %s", name, failed)
            await self._clock.sleep(_EVERY_S)

    async def _doomed(self) -> list[TopicName]:
        try:
            return await self._registry.doomed_topics()
        except WeirError as failed:
            log.info("topics whose deletion was cut short cannot be looked for: %s", failed)
            return []
