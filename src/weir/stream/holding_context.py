"""What the parts of one holding area share."""

from dataclasses import dataclass

from weir.ledger.client import LedgerClient
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.context import StreamContext
from weir.stream.holding_settings import HoldingSettings
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
