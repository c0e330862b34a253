"""Live producers by their groups: who is asked what became of a half message, in turn."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from weir.broker.api import Guard, HalfCheck, HalfChecker
from weir.model.errors import NotAuthorisedError
from weir.model.registry import Action

log = logging.getLogger(__name__)


async def _nobody(check: HalfCheck) -> bool:
    """There are no other brokers."""
    return False


class LiveCheckers:
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
