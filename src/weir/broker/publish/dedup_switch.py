"""Deduplication of one topic switched on and off, brought up to date, and remembered in the topic's state."""

from collections.abc import Callable

from weir.broker.context import BrokerContext
from weir.broker.ports import Holding
from weir.broker.publish.sequences import KEY, Deduplication
from weir.stream.log import Stream
from weir.stream.state import StateLog


class DedupSwitch:
    """Has the deduplication while it is on, for the publisher to ask. `in_doubt`: see `Deduplication`."""

    def __init__(
        self,
        context: BrokerContext,
        stream: Stream,
        state: StateLog,
        holding: Callable[[], Holding | None],
        in_doubt: Callable[[], bool],
    ) -> None:
        #: None while it is off.
        self.current: Deduplication | None = None
        self._settings = context.settings
        self._clock = context.runtime.clock
        self._stream = stream
        self._state = state
        self._holding = holding
        self._in_doubt = in_doubt

    async def turn(self, on: bool) -> None:
        if not on:
            self.current = None
            self._state.delete(KEY)  # it would not know what is stored from now on
        elif self.current is None:
            await self._start()

    async def _start(self) -> None:
        dedup = Deduplication(
            self.mark,
            snapshot_every=self._settings.dedup_snapshot_every,
            forget_ms=int(self._settings.dedup_forget_s * 1000),
            in_doubt=self._in_doubt,
        )
        snapshot = self._state.get(KEY)
        if snapshot is not None and not self._state.damaged:  # else the log itself says all that is left to say
            dedup.load(snapshot)
        else:
            await dedup.begin(self._stream, self._clock.wall_ms())
        await self._catch_up(dedup)
        self.current = dedup  # nothing was stored since it caught up: there was no wait in between

    async def catch_up(self) -> None:
        """Bring deduplication, if it is on, up to date with what is held and stored."""
        if self.current is not None:
            await self._catch_up(self.current)

    async def _catch_up(self, dedup: Deduplication) -> None:
        holding, now_ms = self._holding(), self._clock.wall_ms()
        if holding is not None:
            await dedup.catch_up_held(holding, now_ms)
        await dedup.catch_up(self._stream, now_ms)

    def mark(self) -> None:
        """Have the state write a snapshot with what it writes next."""
        if self.current is not None:
            self._state.mark(KEY, self.current.to_bytes)
