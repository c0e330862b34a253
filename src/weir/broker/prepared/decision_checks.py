"""Asking what became of half messages that nothing was heard of, and giving them up after so many questions.

Live producers by their groups: who is asked what became of a half message, in turn.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from weir.broker.api.security import Guard
from weir.broker.api.topics import HalfCheck, HalfChecker
from weir.broker.prepared.decisions import Decisions, Half, Undecided
from weir.broker.settings import HalfSettings
from weir.model.batch import Batch, HeldId
from weir.model.errors import NotAuthorisedError, NotHeldError, WeirError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

#: Half messages that are read back, or rolled back, at a time.
_AT_ONCE = 32


class Checking:
    """Of one topic. A question is one round: it counts whether or not somebody was there to be asked, so that what
    nobody decides is rolled back at a time that can be told."""

    def __init__(
        self,
        topic: TopicName,
        undecided: Undecided,
        decisions: Decisions,
        settings: HalfSettings,
        *,
        clock: Clock,
        ask: Callable[[HalfCheck], Awaitable[bool]],
        read: Callable[[HeldId], Awaitable[Batch]],
        give_up: Callable[[Half], Awaitable[None]],
    ) -> None:
        self._topic = topic
        self._undecided = undecided
        self._decisions = decisions
        self._ask_one = ask
        self._settings = settings
        self._clock = clock
        self._read = read
        self._give_up = give_up
        #: Questions that a producer was asked, that nobody was there for, and messages that were given up.
        self.asked = self.unasked = self.given_up = 0

    def delay_s(self) -> float:
        """How long nothing is to be asked, but never longer than a tick: the wall clock may jump."""
        next_ms = self._undecided.next_ms()
        tick_s = self._settings.tick_s
        if next_ms is None:
            return tick_s
        return min(tick_s, max(0.001, (next_ms - self._clock.wall_ms()) / 1000))

    async def round(self) -> bool:
        """Ask about some that are due, or give them up; False if none is."""
        asked, lost = self._take(self._clock.wall_ms())
        if not asked and not lost:
            return False
        await asyncio.gather(*map(self._ask, asked), *map(self._end, lost))
        return True

    def _take(self, now_ms: int) -> tuple[list[Half], list[Half]]:
        """Those to be asked about, and those that were asked about often enough."""
        asked: list[Half] = []
        lost: list[Half] = []
        next_ms = now_ms + max(1, int(self._settings.interval_s * 1000))
        while len(asked) + len(lost) < _AT_ONCE and (half := self._undecided.due(now_ms)) is not None:
            self._undecided.later(half, next_ms)
            if half.deciding is not None:
                continue
            if half.checks >= self._settings.checks:
                lost.append(half)
                continue
            half.checks += 1
            self._decisions.note_check(half.id, half.checks, next_ms)
            asked.append(half)
        return asked, lost

    async def _ask(self, half: Half) -> None:
        try:
            batch = await self._read(half.id)
        except NotHeldError:
            return  # decided meanwhile, or lost
        except WeirError as failed:
            log.warning("%s: half message %s cannot be read now: %s", self._topic, _shown(half), failed)
            return
        if half.id not in self._undecided or half.deciding is not None:
            return
        if await self._ask_one(HalfCheck(self._topic, half.value(), batch)):
            self.asked += 1
        else:
            self.unasked += 1

    async def _end(self, half: Half) -> None:
        try:
            await self._give_up(half)
        except WeirError as failed:
            log.warning("%s: half message %s is not rolled back yet: %s", self._topic, _shown(half), failed)
            return
        self.given_up += 1
        log.warning(
            "%s: half message %s of group %r is rolled back: nothing was heard of it in %d checks",
            self._topic,
            _shown(half),
            half.group,
            half.checks,
        )


def _shown(half: Half) -> str:
    return f"{half.id.ledger}:{half.id.entry}"


async def _nobody(check: HalfCheck) -> bool:
    """There are no other brokers."""
    return False


class DecisionCheckers:
    """Fills `api.HalfCheckers`. A checker is asked about topics that its role may produce to, and no others: a
    question shows the message."""

    def __init__(self) -> None:
        #: By group: a number of its own each, so that one may register for a group twice.
        self._by_group: dict[str, dict[int, tuple[str, HalfChecker]]] = {}
        self._count = 0
        #: Has another broker ask one of those that are connected to it; False if there is none anywhere.
        self.elsewhere: Callable[[HalfCheck], Awaitable[bool]] = _nobody

    def register(self, group: str, checker: HalfChecker, *, role: str) -> Callable[[], None]:
        self._count += 1
        self._by_group.setdefault(group, {})[self._count] = (role, checker)
        return partial(self._end, group, self._count)

    def _end(self, group: str, number: int) -> None:
        there = self._by_group.get(group)
        if there is not None:
            there.pop(number, None)
            if not there:
                del self._by_group[group]

    async def ask_anywhere(self, check: HalfCheck, guard: Guard) -> bool:
        """`ask`, and if nobody is here, those of other brokers."""
        return self.ask(check, guard) or await self.elsewhere(check)

    def ask(self, check: HalfCheck, guard: Guard) -> bool:
        """Ask one of the group, another one each time; False if there is none that can be asked."""
        there = self._by_group.get(check.message.group)
        for number, (role, checker) in list((there or {}).items()):
            if _may(role, check, guard) and checker.check_half(check):
                if there is not None and number in there:  # next time it is the last to be asked
                    there[number] = there.pop(number)
                return True
        return False


def _may(role: str, check: HalfCheck, guard: Guard) -> bool:
    try:
        guard.check(role, check.topic, Action.PRODUCE)
    except NotAuthorisedError:
        return False
    return True
