"""Brokers in the simulated world that ask each other while links between them are cut, one way and both, and
brokers crash: every request comes to an end, and one that failed unsent was never done."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.peers.peer_calls import PeerClientSettings, PeerCredentials, PeerHandlers, PeerServerSettings
from weir.broker.peers.peer_client import PeerPool
from weir.broker.peers.peer_server import PeerServer
from weir.model.errors import PeerError, PeerUnavailableError
from weir.model.registry import BrokerInfo
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate
from weir.wire.node.proof import ClusterSecret
from weir.wire.peer.calls import AdminAnswer, AdminCall, Done, Ping

NAMES = ("b1", "b2", "b3")
SECRET = PeerCredentials(ClusterSecret(b"s" * 32))
PORT = 7000
REGISTERED = [BrokerInfo(name, "1", {"peer": f"{name}:{PORT}"}) for name in NAMES]
CLIENT = PeerClientSettings(request_timeout_s=4.0, ping_interval_s=1.0, ping_timeout_s=1.0)


class Brokers:
    """Three brokers; each notes what it was asked to do, which a crash does not make it forget."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pools: dict[str, PeerPool] = {}
        self.done: dict[str, list[str]] = {name: [] for name in NAMES}

    async def start(self, name: str) -> None:
        async def serve(runtime: Runtime) -> None:
            handlers = PeerHandlers()

            async def perform(call: AdminCall) -> AdminAnswer:
                self.done[name].append(call.path)
                await runtime.clock.sleep(runtime.rng.uniform(0, 0.2))
                return AdminAnswer(200, call.path.encode())

            handlers.on(AdminCall, perform)
            settings = PeerServerSettings(name, PORT)
            await PeerServer(runtime, name, handlers, settings, credentials=SECRET).start()
            self.pools[name] = PeerPool(
                runtime, name, handlers, lambda: REGISTERED, settings=CLIENT, credentials=SECRET
            )

        await self.world.node(name).start(serve)


def with_brokers(test: Callable[[Brokers], Any], seed: int = 1) -> Any:
    async def scenario(world: World) -> Any:
        brokers = Brokers(world)
        for name in NAMES:
            await brokers.start(name)
        return await test(brokers)

    return simulate(seed, scenario)


async def answered(brokers: Brokers, asker: str, asked: str) -> None:
    """Ask until it is answered."""
    while True:
        try:
            assert await brokers.pools[asker].ask(asked, Ping()) == Done()
            return
        except PeerUnavailableError:
            await brokers.world.sleep(0.1)


def test_a_link_that_is_cut_either_way_is_noticed_and_is_good_again_when_it_is_healed() -> None:
    async def test(brokers: Brokers) -> None:
        links = brokers.world.net
        for source, target in (("b1", "b2"), ("b2", "b1")):
            await answered(brokers, "b1", "b2")
            links.block(source, target)
            with pytest.raises(PeerUnavailableError):
                await brokers.pools["b1"].ask("b2", Ping())
            assert await brokers.pools["b1"].ask("b3", Ping()) == Done()
            links.unblock(source, target)
            await answered(brokers, "b1", "b2")

    with_brokers(test)


def test_a_cut_link_fails_its_requests_long_before_they_time_out_by_themselves() -> None:
    async def test(brokers: Brokers) -> None:
        await answered(brokers, "b1", "b2")
        brokers.world.net.partition(["b1"], ["b2", "b3"])
        began = brokers.world.now
        with pytest.raises(PeerUnavailableError, match="ping"):
            await brokers.pools["b1"].ask("b2", AdminCall("r", "GET", "/x"), timeout_s=60.0)
        assert brokers.world.now - began < 10.0

    with_brokers(test)


def test_a_broker_that_crashed_answers_again_after_its_restart() -> None:
    async def test(brokers: Brokers) -> None:
        await answered(brokers, "b1", "b2")
        brokers.world.node("b2").crash()
        with pytest.raises(PeerUnavailableError):
            await brokers.pools["b1"].ask("b2", Ping())
        await brokers.start("b2")
        await answered(brokers, "b1", "b2")

    with_brokers(test)


@pytest.mark.parametrize("seed", range(1, 6))
def test_whatever_is_cut_every_request_ends_and_none_is_done_twice_or_done_unsent(seed: int) -> None:
    async def test(brokers: Brokers) -> None:
        world, links, dice = brokers.world, brokers.world.net, brokers.world.rng("test")
        unsent: list[tuple[str, str]] = []
        good: list[tuple[str, str]] = []

        async def ask(number: int) -> None:
            await world.sleep(dice.uniform(0, 20))
            asker, asked = dice.sample(NAMES, 2)
            path = f"/{number}"
            try:
                answer = await brokers.pools[asker].ask(asked, AdminCall("r", "GET", path))
            except PeerUnavailableError as failed:
                if not failed.sent:
                    unsent.append((asked, path))
            except PeerError:
                unsent.append((asked, path))
            else:
                assert answer.body == path.encode()
                good.append((asked, path))

        async def cut() -> None:
            for _ in range(12):
                await world.sleep(dice.uniform(0.2, 2))
                one, other = dice.sample(NAMES, 2)
                links.block(one, other)
                if dice.random() < 0.5:
                    links.block(other, one)
                await world.sleep(dice.uniform(0.2, 3))
                links.heal()

        await asyncio.gather(cut(), *(ask(number) for number in range(150)))
        links.heal()
        for asker in NAMES:
            for asked in NAMES:
                await answered(brokers, asker, asked)
        done = [(name, path) for name, paths in brokers.done.items() for path in paths]
        assert len(done) == len(set(done)), "nothing is sent twice"
        assert not set(done) & set(unsent), "what was not sent was not done"
        assert set(good) <= set(done)
        assert len(good) > 50
        assert unsent, "the cuts did something"

    with_brokers(test, seed)


def test_the_same_seed_asks_the_same() -> None:
    async def test(brokers: Brokers) -> list[str]:
        for number in range(20):
            await brokers.pools["b1"].ask("b2", AdminCall("r", "GET", f"/{number}"))
        return [*brokers.done["b2"], f"{brokers.world.now:.9f}"]

    assert with_brokers(test, 3) == with_brokers(test, 3)
