"""Passing a topic on to the next broker: ends of its ledgers that are written down when that has it already."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from weir.ledger.writer import LedgerWriter
from weir.model.errors import WeirError
from weir.stream.left import Left

log = logging.getLogger(__name__)

#: Tells the next broker how a topic was left; whether it knows.
PassOn = Callable[[Left], Awaitable[bool]]

_GRACE_S = 5.0


class LeftLedgers:
    """Ledgers that are closed in the background, when nobody waits for anything else any more. One that is not is
    closed by whoever reads it."""

    def __init__(self) -> None:
        self._left: list[LedgerWriter] = []
        self._closing: dict[asyncio.Task[None], None] = {}

    def add(self, writers: Sequence[LedgerWriter]) -> None:
        self._left += writers

    def close_soon(self) -> None:
        writers, self._left = self._left, []
        for writer in writers:
            task = asyncio.get_running_loop().create_task(self._close(writer), name=f"close {writer.ledger_id}")
            self._closing[task] = None
            task.add_done_callback(lambda done: self._closing.pop(done, None))

    async def _close(self, writer: LedgerWriter) -> None:
        try:
            await writer.close()
        except WeirError as failed:  # its reader was faster, or has deleted it
            log.info("ledger %s is left as it is: %s", writer.ledger_id, failed)

    async def close(self) -> None:
        """Wait for them, within a limit."""
        self.close_soon()
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=_GRACE_S)
            late = list(self._closing)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
