"""The index of keys of one topic: there if the policy says so, kept up beside everything else."""

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
    """`visible`: which messages of a batch anybody may see. `shared`: how many indexes are built at once."""

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
        """Whether it is being built, or deleted."""
        return self._work is not None

    @property
    def covered_to(self) -> int:
        """Everything before this offset is indexed."""
        return self._index.covered_to

    def apply(self, policies: Policies) -> None:
        self._on = bool(policies.key_index)
        self.look()

    def grown(self, ledgers: int) -> None:
        """The topic has grown, to so many ledgers."""
        if ledgers != self._ledgers:
            self._ledgers = ledgers
            self.look()

    def look(self) -> None:
        """A ledger may have been sealed or trimmed: begin what there is to do."""
        if self._work is None and (self._index.behind if self._on else self._index.there):
            self._work = self._tasks.spawn(self._keep_up(), "index of keys")

    async def _keep_up(self) -> None:
        try:
            async with self._shared:
                await (self._index.keep_up() if self._on else self._index.forget())
        except (StreamClosedError, StreamFencedError):
            return
        except WeirError as failed:  # it is tried again when something comes, or at the next upkeep
            log.warning("the index of keys of %s is behind: %s", self._name, failed)
        finally:
            self._work = None

    async def find(self, key: bytes, limit: int) -> list[tuple[Batch, int]]:
        """The latest messages of a key that may be seen, the latest first. NotAllowedError without an index."""
        if not self._on:
            raise NotAllowedError(
                f"{self._name} has no index of keys", hint=f"weir messages index {self._name.local} --on makes one"
            )
        found = await self._index.find(key, limit, self._visible)
        self.look()  # part of it may be damaged
        return found

    async def close(self) -> None:
        await self._index.close()
