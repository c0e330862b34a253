"""Compaction of one topic: one run at a time, and the status of the last run."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from weir.broker.api.stats import CompactionStatus
from weir.broker.api.topics import AbortedTransaction
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import NotAllowedError
from weir.model.policies import LogCompaction, Policies
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.stream.compaction import CompactedView, KeyedOf, Rules
from weir.stream.log import Stream


class Compaction:
    """`rules` is called when a compaction starts: policies and transactions may have changed while it waited."""

    def __init__(
        self,
        name: TopicName,
        view: CompactedView,
        keyed_of: KeyedOf,
        tasks: TaskScope,
        turns: asyncio.Semaphore,
        *,
        rules: Callable[[], Awaitable[Rules]],
    ) -> None:
        self._name = name
        self._view = view
        self._keyed_of = keyed_of
        self._tasks = tasks
        self._turns = turns
        self._rules = rules
        self._last: asyncio.Task[None] | None = None
        #: End of the log at the start of the last run. A new run is needed only after the log has grown.
        self.begun_at = -1

    @property
    def status(self) -> CompactionStatus:
        """Status of the last run."""
        task = self._last
        if task is None:
            return CompactionStatus.NOT_RUN
        if not task.done():
            return CompactionStatus.RUNNING
        failed = task.cancelled() or task.exception() is not None
        return CompactionStatus.ERROR if failed else CompactionStatus.SUCCESS

    def start(self) -> None:
        """Start a run, with the rules of that moment; NotAllowedError while another one runs."""
        if self.status is CompactionStatus.RUNNING:
            raise NotAllowedError(f"a compaction of {self._name} runs already")
        self.begun_at = self._view.end_offset
        self._last = self._tasks.spawn(self._compact(), "compact")

    async def _compact(self) -> None:
        async with self._turns:
            await self._view.compact(self._keyed_of, await self._rules())

    async def ended(self) -> None:
        """Wait until the running compaction ends."""
        if self._last is not None:
            await asyncio.wait([self._last])


class Decided(Protocol):
    """A topic that knows the outcome of its transactions."""

    @property
    def stream(self) -> Stream: ...

    @property
    def stable_offset(self) -> int: ...

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]: ...


async def compaction_rules(policies: Policies, topic: Decided) -> Rules:
    """Rules for a run that starts now. It stops before the first open transaction. If a policy compacts the topic,
    it also leaves the last batch: readers detect the end of the log by it."""
    policy, stream = policies.log_compaction or LogCompaction(), topic.stream
    horizon = topic.stable_offset

    def aborted(batch: Batch) -> bool:
        return _is_aborted(batch, topic)

    if not policy.cleanup.compacts:
        return Rules(horizon=horizon, aborted=aborted)
    if stream.end_offset > stream.start_offset:
        horizon = min(horizon, (await stream.read(stream.end_offset - 1, 1))[0].base_offset)
    if policy.min_lag_ms > 0:
        horizon = min(horizon, await stream.offset_at(stream.now_ms - policy.min_lag_ms + 1))
    return Rules(horizon=horizon, tombstone_ms=policy.tombstone_ms, own=True, aborted=aborted)


def _is_aborted(batch: Batch, topic: Decided) -> bool:
    stamp = batch.stamp
    if stamp is None or not batch.flags & BatchFlags.TRANSACTIONAL:
        return False
    return any(
        found.producer_id == stamp.producer_id and found.first_offset <= batch.base_offset <= found.last_offset
        for found in topic.aborted(batch.base_offset, batch.end_offset)
    )
