"""A leader that asks brokers over their protocol, and what these do then."""

import pytest

from weir.broker.balance.balancer import PeerControl, answer_leader
from weir.broker.balance.load_meter import LoadMeter
from weir.broker.peers.peer_calls import PeerHandlers
from weir.broker.rates import Traffic
from weir.model.cluster import Boundaries, BundleName, topic_hash
from weir.model.errors import NotOwnerError, PeerUnavailableError
from weir.model.registry import BrokerInfo
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.runtime.real import RealClock
from weir.testing.in_process_peers import InProcessPeers
from weir.testing.world.resources import SimResources

WHOLE = BundleName(DEFAULT_NAMESPACE, 0, 0xFFFFFFFF)


class Clock(RealClock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Topic:
    def __init__(self, name: str, messages: int) -> None:
        self.name = TopicName.parse(name)
        self._messages = messages

    def traffic(self) -> Traffic:
        return Traffic(self._messages)


class FakeBundles:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    async def hand_over(self, bundle: BundleName, to: str) -> None:
        if to == "nobody":
            raise NotOwnerError("not mine")
        self.asked.append((bundle, to))

    async def split(self, bundle: BundleName, at: int | None = None) -> tuple[BundleName, BundleName]:
        self.asked.append((bundle, at))
        return bundle.halves(at)


class Stage:
    """A leader "a" and a broker "b" with two busy topics."""

    def __init__(self) -> None:
        peers, handlers, clock = InProcessPeers(), PeerHandlers(), Clock()
        self.topics = sorted((Topic("x", 100), Topic("y", 100)), key=lambda topic: topic_hash(topic.name))
        self.bundles = FakeBundles()
        meter = LoadMeter(
            "b", clock, SimResources(), topics=lambda: self.topics, bundle_of=Boundaries.even(1).bundle_of
        )
        clock.now = 10.0
        answer_leader(handlers, self.bundles, meter)  # type: ignore[arg-type]
        peers.join("b", handlers)
        registered = [BrokerInfo("a", "1"), BrokerInfo("b", "1"), BrokerInfo("gone", "1")]
        self.control = PeerControl(peers.join("a", PeerHandlers()), lambda: registered)


async def test_a_broker_says_how_much_work_it_has() -> None:
    control = Stage().control
    assert control.brokers() == ["a", "b", "gone"]
    load = await control.load("b")
    assert (load.broker_id, load.messages_in, len(load.bundles), load.bundles[0].topics) == ("b", 20, 1, 2)
    with pytest.raises(PeerUnavailableError):
        await control.load("gone")


async def test_a_broker_hands_over_what_it_is_told_to_or_says_why_not() -> None:
    stage = Stage()
    await stage.control.hand_over("b", str(WHOLE), "a")
    assert stage.bundles.asked == [(WHOLE, "a")]
    with pytest.raises(NotOwnerError):
        await stage.control.hand_over("b", str(WHOLE), "nobody")


async def test_a_broker_splits_where_its_load_is_halved() -> None:
    stage = Stage()
    await stage.control.load("b")
    await stage.control.split("b", str(WHOLE))
    assert stage.bundles.asked == [(WHOLE, topic_hash(stage.topics[1].name))]
