"""What the parts of one holding area share."""

from dataclasses import dataclass

from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.update import read
from weir.model.errors import StreamFencedError
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.context import StreamContext
from weir.stream.held_chain import CHAIN
from weir.stream.holding.settings import HoldingSettings
from weir.stream.log import Stream
from weir.stream.state import StateLog


@dataclass(frozen=True, slots=True)
class HoldingContext:
    """The stream that messages are held for, its state, and the scope of background work."""

    streams: StreamContext
    name: str
    stream: Stream
    state: StateLog
    settings: HoldingSettings
    tasks: TaskScope

    @property
    def clock(self) -> Clock:
        return self.streams.runtime.clock

    @property
    def ledgers(self) -> LedgerClient:
        return self.streams.ledgers

    @property
    def quorum(self) -> Quorum:
        return self.streams.settings.quorum

    async def write_state(self) -> None:
        """Make the state durable, and be sure that it is still the one that counts. A flush alone does not tell:
        when another holder has begun a new state and deleted ours, the bookies no longer know that ours is fenced.
        """
        await self.state.flush()
        record = await read(self.streams.meta, keys.stream(self.stream.name), CHAIN)
        if record is None or record.value.epoch != self.stream.chain.epoch:
            raise StreamFencedError(f"stream {self.stream.name} was taken over by another broker")
