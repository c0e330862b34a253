"""What all streams of a broker share."""

from dataclasses import dataclass

from weir.ledger.client import LedgerClient
from weir.meta.interfaces import MetaStore
from weir.runtime import Runtime
from weir.stream.settings import StreamSettings
from weir.stream.tail import TailCache


@dataclass(frozen=True, slots=True)
class StreamContext:
    """The world, the metadata, the ledgers, one cache and one value of settings."""

    runtime: Runtime
    meta: MetaStore
    ledgers: LedgerClient
    tails: TailCache
    settings: StreamSettings
