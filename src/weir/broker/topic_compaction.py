"""The compactions of one topic: one at a time, and how the last one went."""

import asyncio

from weir.broker.stats import CompactionStatus
from weir.model.errors import NotAllowedError
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.stream.compaction import CompactedView, KeyedOf


class Compaction:
    def __init__(self, name: TopicName, view: CompactedView, keyed_of: KeyedOf, tasks: TaskScope) -> None:
        self._name = name
        self._view = view
        self._keyed_of = keyed_of
        self._tasks = tasks
        self._last: asyncio.Task[None] | None = None

    @property
    def status(self) -> CompactionStatus:
        """How the last one went."""
        task = self._last
        if task is None:
            return CompactionStatus.NOT_RUN
        if not task.done():
            return CompactionStatus.RUNNING
        failed = task.cancelled() or task.exception() is not None
        return CompactionStatus.ERROR if failed else CompactionStatus.SUCCESS

    def start(self) -> None:
        """Begin one; NotAllowedError while one is running."""
        if self.status is CompactionStatus.RUNNING:
            raise NotAllowedError(f"{self._name} is being compacted already")
        self._last = self._tasks.spawn(self._view.compact(self._keyed_of), "compact")

    async def ended(self) -> None:
        """Wait until the one that is running has ended."""
        if self._last is not None:
            await asyncio.wait([self._last])
