"""Unloads topics that were not used for some time; the next use loads them again."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from weir.broker.topic.idleness import is_needed
from weir.broker.topic.opening import AnyTopic
from weir.broker.topic.topic import BrokerTopic
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

#: Rounds within the time after which a topic is unloaded.
_ROUNDS = 4
#: Topics that are checked, and topics that are unloaded, before others get a turn.
_CHECKED_AT_ONCE = 256


class _Seen(NamedTuple):
    """A topic as one round saw it, and when it was seen so first."""

    topic: AnyTopic
    uses: int
    activity: tuple[int, ...]
    since_s: float


class UnusedTopics:
    """`loaded` and `unload` are the broker's. `after_s`: 0 for never."""

    def __init__(
        self,
        clock: Clock,
        after_s: float,
        loaded: Callable[[], Sequence[AnyTopic]],
        unload: Callable[[TopicName, str], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._after_s = after_s
        self._loaded = loaded
        self._unload = unload
        #: How often each loaded topic was asked for.
        self._uses: dict[TopicName, int] = {}
        self._seen: dict[TopicName, _Seen] = {}

    def used(self, name: TopicName) -> int:
        """Note that a caller asks for the topic; answers how often that was, this time included."""
        uses = self._uses[name] = self._uses.get(name, 0) + 1
        return uses

    def forget(self, name: TopicName) -> None:
        """The topic is not loaded any more."""
        self._uses.pop(name, None)
        self._seen.pop(name, None)

    async def release(self, topic: AnyTopic, uses: int) -> None:
        """Unload a topic that the broker loaded for itself, unless it was asked for since."""
        if self._uses.get(topic.name) == uses and not is_needed(topic):
            await self._unload(topic.name, "no client uses it")

    async def run(self) -> None:
        """For ever."""
        while self._after_s > 0:
            await self._clock.sleep(self._after_s / _ROUNDS)
            await self.round()

    async def round(self) -> None:
        """Look at every loaded topic once, and unload those whose time has come."""
        unloaded = 0
        for number, topic in enumerate(self._loaded(), 1):
            if self._is_due(topic):
                unloaded += 1
                try:
                    await self._unload(topic.name, f"it was not used for {self._after_s:g} s")
                except WeirError as failed:
                    log.info("%s was not unloaded: %s", topic.name, failed)
            if not number % _CHECKED_AT_ONCE:
                await self._clock.sleep(0)
        if unloaded:
            log.info("%d unused topics unloaded", unloaded)

    def _is_due(self, topic: AnyTopic) -> bool:
        name, now_s = topic.name, self._clock.monotonic()
        uses, activity = self._uses.get(name, 0), _activity_of(topic)
        seen = self._seen.get(name)
        if is_needed(topic) or seen is None or seen[:3] != (topic, uses, activity):
            self._seen[name] = _Seen(topic, uses, activity, now_s)
            return False
        return now_s - seen.since_s >= self._after_s


def _activity_of(topic: AnyTopic) -> tuple[int, ...]:
    """Numbers that change when messages are stored, read or acknowledged."""
    if not isinstance(topic, BrokerTopic):
        return topic.traffic()
    cursors = (one.cursor.mark_delete + one.cursor.holes for one in topic.subscriptions.values())
    return (topic.stream.end_offset, *topic.traffic(), *cursors)
