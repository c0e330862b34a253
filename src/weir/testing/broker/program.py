"""A broker's program in simulations: everything that `weir up` composes for one, over simulated bookies."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from weir.broker.access.security import Authenticator, SecuritySettings
from weir.broker.access.topic_lists import GuardedTopicLists
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.ownership import Ownership, OwnershipSettings
from weir.broker.ports import NoSchemas
from weir.broker.registry.registry import Registry
from weir.broker.settings import BrokerSettings
from weir.gateway.pulsar.server import PulsarServer
from weir.gateway.pulsar.settings import PulsarSettings, SessionLimits
from weir.ledger.client import LedgerClient
from weir.meta.interfaces import MetaStore
from weir.model.policies import DEFAULT_POLICIES, Policies
from weir.model.registry import BrokerInfo
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.settings import HoldingSettings
from weir.stream.log import Stream
from weir.stream.settings import StreamSettings
from weir.stream.state import StateLog
from weir.stream.tail import TailCache

PULSAR_PORT = 6650
_TAIL_BYTES = 3_000
_LIMITS = SessionLimits(connect_timeout_s=2.0, idle_timeout_s=3.0, stall_timeout_s=3.0, settle_s=0.5, linger_s=0.2)


@dataclass(frozen=True, slots=True)
class Composition:
    """What a scenario decides about its brokers."""

    policies: Policies
    ownership: OwnershipSettings
    streams: StreamSettings
    broker: BrokerSettings
    holding: HoldingSettings

    async def open_holding(self, context: StreamContext, stream: Stream, state: StateLog) -> HoldingArea:
        return await HoldingArea.open(context, stream.name, stream, state, self.holding)


@dataclass(frozen=True, slots=True)
class Composed:
    """A broker that is started; whoever has it adds gateways, and ends all of it by its stack."""

    runtime: Runtime
    name: str
    stack: AsyncExitStack
    meta: MetaStore
    registry: Registry
    context: BrokerContext
    broker: Broker

    async def serve_pulsar(self) -> None:
        settings = PulsarSettings(
            host=self.name,
            port=PULSAR_PORT,
            advertise=pulsar_url(self.name),
            limits=_LIMITS,
            sweep_interval_s=0.5,
            close_grace_s=1.0,
        )
        server = PulsarServer(
            self.runtime, self.broker, settings, lists=GuardedTopicLists(self.registry, self.context.guard)
        )
        await server.start()
        self.stack.push_async_callback(server.close)


def pulsar_url(name: str) -> str:
    return f"pulsar://{name}:{PULSAR_PORT}"


async def compose(
    runtime: Runtime, name: str, ledgers: LedgerClient, how: Composition, stack: AsyncExitStack
) -> Composed:
    """Start a broker; the stack ends it."""
    meta = ledgers.context.meta
    stack.push_async_callback(ledgers.close)
    registry = Registry(meta, runtime, how.policies.over(DEFAULT_POLICIES))
    await registry.start()
    stack.push_async_callback(registry.close)
    info = BrokerInfo(name, f"{runtime.rng.getrandbits(64):016x}", {"pulsar": pulsar_url(name)})
    ownership = Ownership(meta, runtime, info, how.ownership)
    await ownership.start()
    stack.push_async_callback(ownership.close)
    context = BrokerContext(
        runtime,
        StreamContext(runtime, meta, ledgers, TailCache(_TAIL_BYTES), how.streams),
        how.broker,
        ByteBudget(how.broker.in_flight_bytes),
        schemas=NoSchemas(),
        open_holding=how.open_holding,
    )
    broker = Broker(context, registry, ownership, Authenticator(runtime.clock, SecuritySettings()))
    broker.start()
    stack.push_async_callback(broker.close)
    return Composed(runtime, name, stack, meta, registry, context, broker)
