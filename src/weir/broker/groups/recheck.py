"""Members of consumer groups show on topics that their roles may consume: asked anew whenever grants change."""

from collections.abc import Callable, Iterable

from weir.broker.api import Guard
from weir.broker.groups.group import Group
from weir.model.errors import NotAuthorisedError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

#: So many groups, then it is the others' turn.
_GROUPS_PER_TURN = 200


async def follow_access(
    guard: Guard, clock: Clock, groups: Callable[[], Iterable[Group]], show: Callable[[Group], None]
) -> None:
    """For ever."""

    def may_consume(role: str, topic: TopicName) -> bool:
        try:
            guard.check(role, topic, Action.CONSUME)
        except NotAuthorisedError:
            return False
        return True

    seen = guard.revision
    while True:
        seen = await guard.change(seen)
        for number, group in enumerate(list(groups()), 1):
            if group.recheck(may_consume):
                show(group)
            if not number % _GROUPS_PER_TURN:
                await clock.sleep(0)
