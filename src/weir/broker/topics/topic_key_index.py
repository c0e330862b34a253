"""The key index of one topic: exists if the policy enables it; a background task keeps it up to date."""

import asyncio
import logging
from collections.abc import Callable

from weir.model.batch import Batch
from weir.model.errors import NotAllowedError, StreamClosedError, StreamFencedError, WeirError
from weir.model.policies import Policies
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.stream.key_index import KeyIndex

log = logging.getLogger(__name__)


class TopicKeyIndex:
    """`visible`: mask of the messages of a batch that readers may see. `shared`: limits concurrent index
    builds."""

    def __init__(
        self,
        name: TopicName,
        index: KeyIndex,
        tasks: TaskScope,
        *,
        shared: asyncio.Semaphore,
        visible: Callable[[Batch], int | None],
    ) -> None:
        self._name = name
        self._index = index
        self._tasks = tasks
        self._shared = shared
        self._visible = visible
        self._on = False
        self._ledgers = 0
        self._work: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        return self._on

    @property
    def working(self) -> bool:
        """Whether a task builds or deletes the index."""
        return self._work is not None

    @property
    def covered_to(self) -> int:
        """The index covers every message before this offset."""
        return self._index.covered_to

    def apply(self, policies: Policies) -> None:
        self._on = bool(policies.key_index)
        self.look()

    def grown(self, ledgers: int) -> None:
        """Called when the topic grows; `ledgers` is its number of ledgers."""
        if ledgers != self._ledgers:
            self._ledgers = ledgers
            self.look()

    def look(self) -> None:
        """Start the update (or the deletion) of the index if a sealed or trimmed ledger requires one."""
        if self._work is None and (self._index.behind if self._on else self._index.there):
            self._work = self._tasks.spawn(self._keep_up(), "key index")

    async def _keep_up(self) -> None:
        try:
            async with self._shared:
                await (self._index.keep_up() if self._on else self._index.forget())
        except (StreamClosedError, StreamFencedError):
            return
        except WeirError as failed:  # retried at the next message or the next upkeep
            log.warning("key index of %s is behind: %s", self._name, failed)
        finally:
            self._work = None

    async def find(self, key: bytes, limit: int) -> list[tuple[Batch, int]]:
        """The latest visible messages of a key, newest first. NotAllowedError if the topic has no key index."""
        if not self._on:
            raise NotAllowedError(
                f"{self._name} has no key index",
                hint=f"create one with: weir messages index {self._name.local} --on",
            )
        found = await self._index.find(key, limit, self._visible)
        self.look()  # the search may have found a damaged part, which is rebuilt
        return found

    async def close(self) -> None:
        await self._index.close()
