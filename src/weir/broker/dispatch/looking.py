"""Looking ahead: the levels of what is in the log are found before anything is delivered, so much at a time."""

import asyncio
from collections.abc import Callable, Sequence

from weir.broker.dispatch.feed import Feed
from weir.broker.dispatch.queue_side import LevelsOf
from weir.broker.dispatch.ready import Levelled
from weir.model.batch import Batch

#: Messages, and batches, whose levels are looked for without a pause.
_LOOK_MESSAGES = 512
_LOOK_BATCHES = 32
#: About so many messages are read at a time to look for levels.
_LOOK_CREDIT = 100
_A_BATCH = _LOOK_MESSAGES // _LOOK_BATCHES


class LookAhead:
    """`fresh`: the messages of a batch that nobody has looked at. `wake`: called when there is more to look at."""

    def __init__(
        self,
        levels: Levelled,
        feed: Feed,
        levels_of: LevelsOf,
        fresh: Callable[[Batch], Sequence[int]],
        wake: Callable[[], None],
    ) -> None:
        self._levels = levels
        self._feed = feed
        self._levels_of = levels_of
        self._fresh = fresh
        self._wake = wake
        self._again = False
        #: What is before it is looked through before anything is delivered.
        self.until = 0

    def look(self, read_at: int) -> tuple[int, bool, bool]:
        """Look on from `read_at`; answers up to where it is known what there is, whether that is enough to
        deliver, and whether what is next must be read first."""
        left = _LOOK_MESSAGES
        while left > 0:
            batches = self._feed.get(read_at, _LOOK_CREDIT)
            if not batches:
                return read_at, batches is not None or read_at >= self.until, batches is None
            for batch in batches:
                indices = self._fresh(batch)
                if indices:
                    self._levels.note(batch.base_offset, indices, self._levels_of(batch))
                read_at = max(read_at, batch.end_offset)
                left -= max(_A_BATCH, batch.count)
                if left <= 0:
                    break
        if not self._again:
            self._again = True
            asyncio.get_running_loop().call_soon(self._look_on)
        reading = read_at < self.until
        return read_at, not reading, reading

    def _look_on(self) -> None:
        self._again = False
        self._wake()
