"""A broker as `weir up` composes it, over metadata in memory and fake bookies, for the stages of conversations."""

from contextlib import AsyncExitStack
from typing import Any

from weir.broker.security.authentication import SecuritySettings
from weir.broker.standalone import SoleOwner
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.server.compose.broker import compose_broker
from weir.server.compose.composed import ComposedBroker, Composition
from weir.testing.kafka.roles import PasswordRoles
from weir.testing.storage.fakes import FakeBookiePool
from weir.wire.metadata import BookieInfo, encode_bookie_info


def stage_composition(security: SecuritySettings | None, **more: Any) -> Composition:
    """Of a broker that has every topic; without security everyone may do everything."""
    return Composition(
        "stage",
        security=security or SecuritySettings(),
        authenticator=PasswordRoles(open_to_all=security is None),
        owner=SoleOwner(),
        **more,
    )


async def compose_on_fakes(
    runtime: Runtime,
    how: Composition,
    stack: AsyncExitStack,
    *,
    bookies: int,
    pool: FakeBookiePool | None = None,
) -> ComposedBroker:
    """`pool`: the fake bookies, for a test that makes writes fail."""
    meta = MemoryMeta(MemoryCore(runtime.clock), runtime)
    for number in range(bookies):
        info = BookieInfo(BookieId(f"b{number}"), "nowhere", 1)
        await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
    ledgers = LedgerClient(runtime, meta, pool or FakeBookiePool())
    await ledgers.start()
    stack.push_async_callback(ledgers.close)
    return await compose_broker(runtime, meta, ledgers, how, stack)
