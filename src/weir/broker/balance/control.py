"""What the leader asks of brokers, itself among them."""

from collections.abc import Callable, Iterable
from typing import Protocol

from weir.broker.api.cluster import Bundles
from weir.broker.balance.measuring import LoadMeter
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.bundles import BundleName
from weir.model.load import BrokerLoad
from weir.model.registry import BrokerInfo
from weir.wire.peer.bundles import HandOver, SplitBundle
from weir.wire.peer.node import Done, ReportLoad


class BrokerControl(Protocol):
    """Each raises a WeirError if the broker cannot be asked or cannot do it."""

    def brokers(self) -> list[str]:
        """Those that are registered now, in a fixed order."""

    async def load(self, broker_id: str) -> BrokerLoad: ...

    async def hand_over(self, owner: str, bundle: str, to: str) -> None:
        """Done when the other broker has it."""

    async def split(self, owner: str, bundle: str) -> None: ...


class PeerControl:
    """Over the protocol among brokers."""

    def __init__(
        self, peers: PeerCalls, brokers: Callable[[], Iterable[BrokerInfo]], *, load_timeout_s: float = 5.0
    ) -> None:
        self._peers = peers
        self._brokers = brokers
        self._load_timeout_s = load_timeout_s

    def brokers(self) -> list[str]:
        return [broker.broker_id for broker in self._brokers()]

    async def load(self, broker_id: str) -> BrokerLoad:
        return await self._peers.ask(broker_id, ReportLoad(), timeout_s=self._load_timeout_s)

    async def hand_over(self, owner: str, bundle: str, to: str) -> None:
        await self._peers.ask(owner, HandOver(BundleName.parse(bundle), to))

    async def split(self, owner: str, bundle: str) -> None:
        await self._peers.ask(owner, SplitBundle(BundleName.parse(bundle)))


def answer_leader(handlers: PeerHandlers, bundles: Bundles, meter: LoadMeter) -> None:
    """Have this broker do what a leader asks of it."""

    async def report(_: ReportLoad) -> BrokerLoad:
        return meter.load()

    async def hand_over(request: HandOver) -> Done:
        await bundles.hand_over(request.bundle, request.to)
        return Done()

    async def split(request: SplitBundle) -> Done:
        await bundles.split(request.bundle, meter.split_point(request.bundle))
        return Done()

    handlers.on(ReportLoad, report)
    handlers.on(HandOver, hand_over)
    handlers.on(SplitBundle, split)
