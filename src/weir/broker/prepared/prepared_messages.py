"""The half messages of a topic: prepared into the holding area, decided once, asked about when nothing is heard.

A commit is durable when the message is in the log, which names its held id; a roll-back when the state says so,
together with the holding area's bitmap. So whoever has the topic next knows of every decision that was answered.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

from weir.broker.api.producers import Outgoing
from weir.broker.api.security import Guard
from weir.broker.prepared.decision_checks import Checking, DecisionCheckers
from weir.broker.prepared.decisions import Decisions, Half, Undecided
from weir.broker.prepared.marked_topics import HalfMark
from weir.broker.settings import HalfSettings
from weir.model.batch import Batch, HeldId, Prepared
from weir.model.cluster import HALF_MESSAGES
from weir.model.errors import (
    HalfDecidedError,
    InvalidNameError,
    InvariantError,
    NotAllowedError,
    NotHeldError,
    TooManyError,
    TopicClosedError,
    WeirError,
)
from weir.model.messages import (
    MAX_GROUP_BYTES,
    MAX_RECOVERY_MS,
    Decided,
    Decision,
    HalfCounts,
    HalfMessage,
    HeldCount,
    Preparation,
)
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.state_log import StateLog

log = logging.getLogger(__name__)

#: How often decisions of long ago are looked for, to forget them.
_FORGET_S = 60.0
#: Without any for so long, the topic is not marked as having some: the next one marks it again.
_IDLE_S = 10.0


class PreparedMessages:
    """Fills `api.HalfMessages`. `area`: the holding area, once there is one."""

    def __init__(
        self,
        name: TopicName,
        state: StateLog,
        tasks: TaskScope,
        area: Callable[[], HoldingArea | None],
        *,
        streams: StreamContext,
        settings: HalfSettings,
        checkers: DecisionCheckers,
        guard: Guard,
    ) -> None:
        self._streams = streams
        self._guard = guard
        self._clock = streams.runtime.clock
        self._settings = settings
        self._name = name
        self._area_of = area
        self._tasks = tasks
        self._watched: HoldingArea | None = None
        self._undecided = Undecided()
        self._decisions = Decisions(state)
        self._checking = Checking(
            name,
            self._undecided,
            self._decisions,
            self._settings,
            clock=self._clock,
            ask=partial(checkers.ask_anywhere, guard=guard),
            read=self._read,
            give_up=self._give_up,
        )
        self._preparing = 0
        self._prepared = self._committed = self._rolled_back = 0
        self._runner: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        #: Set while it is known what the holding area has; a prepare that failed may have left more.
        self._known = asyncio.Event()
        self._doubts = 0
        self._forget_at = 0.0
        self._mark = HalfMark(streams.meta, name, self._any)
        self._idle_from = 0.0

    def open(self) -> None:
        """Take up what a former broker left; the holding area is open, if there is anything in it."""
        area = self._area_of()
        if area is None:
            self._known.set()
            return
        self._watch(area)
        if area.undated_ledgers:
            self._run()
        else:
            self._known.set()

    # --- preparing --------------------------------------------------------------------------------------

    def refusal(self, outgoing: Outgoing, half: Preparation) -> WeirError | None:
        """Why a batch cannot be a half message."""
        if outgoing.deliver_at_ms is not None or outgoing.stamp is not None or outgoing.parts:
            return NotAllowedError("a half message cannot be delayed, nor be a part of a transaction")
        if not self._streams.features.uses(HALF_MESSAGES):
            return NotAllowedError("half messages need the same version of Weir on every broker")
        if not 0 < len(half.group.encode()) <= MAX_GROUP_BYTES:
            return InvalidNameError(f"a producer group's name has 1 to {MAX_GROUP_BYTES} bytes")
        if len(self._undecided) + self._preparing >= self._settings.most:
            return TooManyError(
                f"{self._name} has {self._settings.most} half messages that are not decided",
                hint=f"commit or roll back some: weir prepared list {self._name}",
            )
        return None

    def origin(self, half: Preparation) -> Prepared:
        recovery_ms = int(self._settings.recovery_s * 1000) if half.recovery_ms is None else half.recovery_ms
        return Prepared(half.group, self._clock.wall_ms(), min(max(0, recovery_ms), MAX_RECOVERY_MS))

    def preparing(self, batch: Batch, held: "asyncio.Future[HeldId]") -> None:
        """A batch of this origin is being held."""
        self._preparing += 1
        held.add_done_callback(partial(self._held, batch))

    def _held(self, batch: Batch, held: "asyncio.Future[HeldId]") -> None:
        self._preparing -= 1
        if held.exception() is not None:
            if self._area_of() is not None:  # it may be stored all the same
                self._doubts += 1
                self._known.clear()
                self._run()
            return
        self._prepared += 1
        self._found(held.result(), batch)

    def _found(self, half: HeldId, batch: Batch) -> None:
        area = self._area_of()
        if area is not None:
            self._watch(area)
        if half in self._undecided or not isinstance(batch.origin, Prepared):
            return
        one = Half(half, batch, batch.origin)
        checked = self._decisions.checks(half)
        if checked is not None:
            one.checks, one.next_check_ms = checked
        self._undecided.add(one)
        if self._runner is None or self._undecided.next_ms() == one.next_check_ms:
            self._run()

    # --- what there is ----------------------------------------------------------------------------------

    def __contains__(self, half: HeldId) -> bool:
        """Whether it waits to be decided."""
        return half in self._undecided

    @property
    def counts_held(self) -> HeldCount:
        """How much waits to be decided."""
        return HeldCount(len(self._undecided), self._undecided.messages)

    @property
    def there(self) -> bool:
        """Whether there are any, or may be."""
        return self._any()

    @property
    def counts(self) -> HalfCounts:
        checking = self._checking
        return HalfCounts(
            waiting=len(self._undecided),
            prepared=self._prepared,
            committed=self._committed,
            rolled_back=self._rolled_back,
            given_up=checking.given_up,
            checked=checking.asked,
            unasked=checking.unasked,
        )

    async def waiting(self, *, group: str | None = None) -> Sequence[HalfMessage]:
        await self._complete()
        found = [half.value() for half in self._undecided if group is None or half.group == group]
        return sorted(found, key=lambda half: (half.prepared_ms, half.id.ledger, half.id.entry))

    async def get(self, half: HeldId) -> tuple[HalfMessage, Batch]:
        await self._complete()
        one = self._undecided.get(half)
        if one is None:
            raise self._no_such(half)
        return one.value(), await self._read(half)

    async def _read(self, half: HeldId) -> Batch:
        area = self._area_of()
        if area is None:
            raise self._no_such(half)
        return (await area.get(half))[1]

    # --- deciding ---------------------------------------------------------------------------------------

    async def decide(self, half: HeldId, decision: Decision, *, role: str) -> Decided:
        self._guard.check(role, self._name, Action.PRODUCE)
        await self._complete()
        return await self._decide(half, decision)

    async def _decide(self, half: HeldId, decision: Decision) -> Decided:
        while True:
            one = self._undecided.get(half)
            if one is None:
                return await self._decided_before(half, decision)
            if one.deciding is None:
                break
            await asyncio.wait([one.deciding])
        deciding = one.deciding = asyncio.get_running_loop().create_future()
        # Once begun it goes to its end, even if nobody waits for it any more.
        self._tasks.spawn(self._carry_out(one, decision, deciding), f"{decision.value} {half.ledger}:{half.entry}")
        return await asyncio.shield(deciding)

    async def _decided_before(self, half: HeldId, decision: Decision) -> Decided:
        known = self._decisions.of(half)
        if known is None:
            raise self._no_such(half)
        if known is not decision:
            was = "committed" if known is Decision.COMMIT else "rolled back"
            raise HalfDecidedError(f"half message {half.ledger}:{half.entry} of {self._name} was {was} before")
        area = self._area_of()
        if known is Decision.ROLL_BACK and area is not None:  # whoever was told first may not have been answered
            await area.write_state()
        return Decided(known, again=True)

    async def _carry_out(self, one: Half, decision: Decision, deciding: "asyncio.Future[Decided]") -> None:
        try:
            if decision is Decision.COMMIT:
                decided = await self._commit(one)
            else:
                decided = await self._roll_back(one)
            deciding.set_result(decided)
        except WeirError as failed:
            if isinstance(failed, InvariantError):
                raise
            deciding.set_exception(failed)
            deciding.exception()
        finally:
            one.deciding = None
            if not deciding.done():
                deciding.set_exception(TopicClosedError(f"{self._name} is not served here any more"))
                deciding.exception()

    async def _commit(self, one: Half) -> Decided:
        offset = await self._area(one.id).release(one.id)
        return Decided(Decision.COMMIT, offset)  # `_released` was told

    async def _roll_back(self, one: Half) -> Decided:
        def cancelled() -> None:
            self._rolled_back += 1
            self._decisions.note(one.id, Decision.ROLL_BACK)
            self._undecided.remove(one.id)

        await self._area(one.id).cancel(one.id, cancelled)
        return Decided(Decision.ROLL_BACK)

    async def _give_up(self, half: Half) -> None:
        await self._decide(half.id, Decision.ROLL_BACK)

    def _watch(self, area: HoldingArea) -> None:
        if self._watched is not area:
            self._watched = area
            area.on_undated_release(self._released)

    def _released(self, half: HeldId) -> None:
        """It is in the log, whoever put it there."""
        if half in self._undecided:
            self._committed += 1
            self._undecided.remove(half)
        if self._decisions.of(half) is None:
            self._decisions.note(half, Decision.COMMIT)

    def _area(self, half: HeldId) -> HoldingArea:
        area = self._area_of()
        if area is None:
            raise self._no_such(half)
        return area

    def _no_such(self, half: HeldId) -> NotHeldError:
        return NotHeldError(
            f"{self._name} has no half message {half.ledger}:{half.entry}; it may have been decided long ago",
            hint=f"those that wait: weir prepared list {self._name}",
        )

    # --- in the background ------------------------------------------------------------------------------

    async def _complete(self) -> None:
        """Wait until it is known which there are."""
        if not self._known.is_set():
            self._run()
            waiting = asyncio.ensure_future(self._known.wait())
            try:
                runner = self._runner
                await asyncio.wait([waiting, *([runner] if runner else [])], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            if not self._known.is_set():
                raise TopicClosedError(f"{self._name} is not served here any more")

    def _any(self) -> bool:
        """Whether there are any, or may be."""
        return bool(len(self._undecided) or self._preparing or not self._known.is_set())

    async def clear_mark(self) -> None:
        """Take away the mark that the topic has half messages, if none wait."""
        await self._complete()
        await self._mark.clear()

    def _run(self) -> None:
        self._woken.set()
        if self._runner is None:
            self._runner = self._tasks.spawn(self._look_after(), "half messages")

    async def _look_after(self) -> None:
        """Until there were none for a while, or the topic is another broker's."""
        try:
            while True:
                area = self._area_of()
                if area is not None and area.failure is not None:
                    return  # the next broker goes on
                if self._any():
                    self._idle_from = self._clock.monotonic()
                    await self._mark.put()
                elif self._clock.monotonic() - self._idle_from > _IDLE_S:
                    await self._mark.clear()
                    if not self._any():
                        return
                if not self._known.is_set():
                    await self._look_through(area)
                elif not await self._checking.round():
                    await self._nap()
        finally:
            self._runner = None
            self._forget()

    async def _look_through(self, area: HoldingArea | None) -> None:
        """Find what waits in the holding area, or try again soon."""
        doubts = self._doubts
        try:
            if area is not None:
                async with aclosing(area.undated()) as found:
                    async for half, batch in found:
                        if self._decisions.of(half) is Decision.ROLL_BACK:
                            await area.cancel(half)
                        else:
                            self._found(half, batch)
        except InvariantError:
            raise
        except WeirError as failed:
            if area is None or area.failure is None:
                log.warning("%s: its half messages are not known yet: %s", self._name, failed)
                await self._clock.sleep(self._settings.tick_s)
            return
        if doubts == self._doubts:
            self._known.set()

    def _forget(self) -> None:
        area = self._area_of()
        if area is not None and area.failure is None:
            there = area.undated_ledgers
            self._decisions.forget(there, self._clock.wall_ms(), int(self._settings.remember_s * 1000))

    async def _nap(self) -> None:
        if self._clock.monotonic() >= self._forget_at:
            self._forget_at = self._clock.monotonic() + _FORGET_S
            self._forget()
        self._woken.clear()
        timer = self._clock.call_later(self._checking.delay_s(), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
