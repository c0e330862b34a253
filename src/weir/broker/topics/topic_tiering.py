"""Tiered storage of one topic: moves its ledgers to the lake, and reports the result."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from weir.broker.api.stats import LakeStats
from weir.model.cluster import TIERED, FeaturesInUse
from weir.model.errors import EntryLostError, StreamClosedError, StreamFencedError, WeirError
from weir.model.ids import LedgerId
from weir.model.policies import Policies, Retention, TieringRules
from weir.model.stream import LedgerFate, SegmentStore, Span
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.log import Stream

log = logging.getLogger(__name__)

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 5_000, 300_000
#: Interval of sweeps, which delete objects that no segment references.
_SWEEP_MS = 24 * 3_600_000


class TieredTopic(Protocol):
    """The part of the topic that tiering needs."""

    @property
    def policies(self) -> Policies: ...

    @property
    def exported_to(self) -> int:
        """The offset after the last that the lake's table has; 0 if the lake is off."""


class TopicTiering:
    """`look` starts the work that is due, as a background task. `shared` limits concurrent topics per broker."""

    def __init__(
        self,
        name: TopicName,
        stream: Stream,
        topic: TieredTopic,
        *,
        rules: Callable[[], TieringRules | None],
        features: FeaturesInUse,
        tasks: TaskScope,
        shared: asyncio.Semaphore,
        clock: Clock,
    ) -> None:
        self._name = name
        self._stream = stream
        self._topic = topic
        self._rules = rules
        self._features = features
        self._tasks = tasks
        self._shared = shared
        self._clock = clock
        self._running: asyncio.Task[None] | None = None
        self._failures = 0
        self._again_ms = 0
        self._swept_ms: int | None = None
        #: Ledgers with damage in every copy: they are not moved.
        self._damaged: dict[LedgerId, None] = {}
        self._problem = ""

    @property
    def rules(self) -> TieringRules | None:
        """The rules in force; None if the topic has no tiered storage."""
        log_compaction = self._topic.policies.log_compaction
        if log_compaction is not None and log_compaction.cleanup.compacts:
            return None  # compaction keeps only the latest message of each key
        return self._rules()

    @property
    def retention(self) -> Retention:
        """Retention of messages, in ledgers or in the lake. With tiered storage, this is the policy of the topic
        or namespace, limited by the retention of the lake; the broker's default does not apply."""
        rules = self.rules
        return (self._topic.policies.retention or Retention()) if rules is None else rules.retention

    def stats(self) -> LakeStats | None:
        """None if the lake has no ledger of the topic and no move failed."""
        there = [span for span in self._stream.chain.spans if span.in_lake]
        if not there and not self._problem:
            return None
        end = max((span.end_offset or 0 for span in there), default=self._stream.start_offset)
        return LakeStats(len(there), sum(span.size_bytes for span in there), end, self._problem)

    # --- due work ----------------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> None:
        """Start the work that is due, unless a task runs or the pause after a failure has not ended."""
        if self._running is None and now_ms >= self._again_ms and self._is_due(now_ms):
            self._running = self._tasks.spawn(self._run(), "tiering")

    @property
    def working(self) -> bool:
        """Whether a task copies or deletes ledgers."""
        return self._running is not None

    async def done(self) -> None:
        """Wait until no task runs."""
        while self._running is not None:
            await asyncio.wait([self._running])

    def _is_due(self, now_ms: int) -> bool:
        tiering = self._stream.tiering
        if tiering.going or self._sweep_due(now_ms):
            return True
        rules = self.rules
        if rules is None or rules.folder is None or not self._features.uses(TIERED):
            return False
        return self._roll_due(rules, now_ms) or self._next(rules, now_ms) is not None

    def _sweep_due(self, now_ms: int) -> bool:
        return bool(self._stream.chain.stores) and (self._swept_ms is None or now_ms - self._swept_ms >= _SWEEP_MS)

    def _roll_due(self, rules: TieringRules, now_ms: int) -> bool:
        """Only closed ledgers move to the lake: whether the open ledger is old enough to be closed for that."""
        spans = self._stream.chain.spans
        last = spans[-1] if spans else None
        if last is None or last.closed or self._stream.end_offset <= last.first_offset:
            return False
        return now_ms - last.first_ms >= rules.after_ms

    def _next(self, rules: TieringRules, now_ms: int) -> Span | None:
        """The oldest ledger to move: old enough, and completely exported to the lake's table."""
        exported_to = self._topic.exported_to
        for span in self._stream.chain.spans:
            if span.end_offset is None or span.end_offset > exported_to or now_ms - span.last_ms < rules.after_ms:
                return None
            if not span.in_lake and span.ledger_id not in self._damaged:
                return span
        return None

    # --- moves --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with self._shared:
                await self._all()
            self._failures, self._problem = 0, ""
        except (StreamClosedError, StreamFencedError):
            pass  # the next owner of the topic continues
        except WeirError as failed:
            pause_ms = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS << min(self._failures, 10))
            self._failures += 1
            self._again_ms = self._clock.wall_ms() + pause_ms
            self._problem = failed.what
            log.warning("tiering of %s failed (next attempt in %d s): %s", self._name, pause_ms // 1000, failed)
        finally:
            self._running = None

    async def _all(self) -> None:
        tiering, clock = self._stream.tiering, self._clock
        for ledger_id in tiering.going:
            await tiering.let_go(ledger_id)
        rules = self.rules
        if rules is not None and rules.folder is not None and self._roll_due(rules, clock.wall_ms()):
            await self._stream.roll()
        while (rules := self.rules) is not None and rules.folder is not None:
            span = self._next(rules, clock.wall_ms())
            if span is None:
                break
            await self._move(rules.folder, span)
        if self._sweep_due(clock.wall_ms()):
            tiering.sweep_again()
            swept = await tiering.sweep()
            self._swept_ms = clock.wall_ms()
            if swept:
                log.info("%d unreferenced objects of %s deleted from the lake", swept, self._name)

    async def _move(self, folder: SegmentStore, span: Span) -> None:
        tiering = self._stream.tiering
        if span.segment is None:
            try:
                await tiering.copy(span.ledger_id, folder)
            except EntryLostError as lost:
                self._damaged[span.ledger_id] = None
                log.warning(
                    "ledger %s of %s is damaged and does not move to the lake: %s",
                    span.ledger_id,
                    self._name,
                    lost,
                )
                return
        await tiering.let_go(span.ledger_id)
        now = self._stream.chain.span_of(span.ledger_id)
        if now is not None and now.segment is not None and now.segment.ledger is LedgerFate.GONE:
            log.info(
                "ledger moved: readers of offsets %d to %s of %s now read from the lake",
                span.first_offset,
                (span.end_offset or 0) - 1,
                self._name,
            )
