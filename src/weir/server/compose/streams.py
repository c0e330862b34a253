"""Logs and holding areas, as a broker's topics have them."""

from contextlib import AsyncExitStack

from weir.ledger.client import LedgerClient
from weir.meta.interfaces import MetaStore
from weir.model.features import FeaturesInUse
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.server.compose.composition import Composition
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.settings import HoldingSettings
from weir.stream.log import Stream
from weir.stream.state import StateLog
from weir.stream.tail import TailCache


def compose_streams(
    runtime: Runtime,
    meta: MetaStore,
    ledgers: LedgerClient,
    how: Composition,
    *,
    features: FeaturesInUse,
    stack: AsyncExitStack,
) -> StreamContext:
    context = StreamContext(
        runtime,
        meta,
        ledgers,
        TailCache(how.tail_bytes),
        how.streams,
        features,
        ByteBudget(how.broker.queue_memory_bytes),
        stores=how.stores,
        reached=how.reached,
    )
    stack.push_async_callback(context.segments.close)
    return context


async def open_holding(
    settings: HoldingSettings, context: StreamContext, stream: Stream, state: StateLog
) -> HoldingArea:
    return await HoldingArea.open(context, stream.name, stream, state, settings)
