"""A node whose secret is not that of its cluster is told so when it starts, and not by the first message."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.bookie.settings import BookieSettings, SpaceSettings
from weir.broker.peers.peer_calls import PeerCredentials
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import ConfigError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.bookie_node import BookieNode, BookieNodeSettings
from weir.server.remote_storage import check_belongs
from weir.testing.world.world import World, simulate
from weir.wire.metadata import BookieInfo
from weir.wire.node.proof import ClusterSecret

OURS = PeerCredentials(ClusterSecret(b"o" * 32))
THEIRS = PeerCredentials(ClusterSecret(b"t" * 32))


class Cluster:
    """Bookies of one metadata store, each on a node of its own; the test runs on the node `client`."""

    def __init__(self, world: World, runtime: Runtime) -> None:
        self._world = world
        self._core = MemoryCore(runtime.clock)
        self.runtime = runtime

    async def start(self, name: str, credentials: PeerCredentials) -> BookieInfo:
        space = SpaceSettings(low_water_bytes=0, high_water_bytes=0)
        bookie = BookieSettings(BookieId(name), "/data", space=space)
        settings = BookieNodeSettings(bookie, "memory:", Address(name, 3181))

        async def main(runtime: Runtime) -> ConfigError | None:
            node = BookieNode(runtime, settings, meta=MemoryMeta(self._core, runtime), credentials=credentials)
            try:
                await node.start()
            except ConfigError as refused:
                return refused
            return None

        refused = await self._world.node(name).run(main)
        if refused is not None:
            raise refused
        return BookieInfo(BookieId(name), name, 3181)

    async def check(self, *bookies: BookieInfo) -> None:
        found = {one.bookie_id: one for one in bookies}
        await check_belongs(self.runtime, found, OURS, setting="cluster.secret")


def in_a_cluster(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def scenario(world: World) -> None:
        await world.node("client").start(lambda runtime: test(Cluster(world, runtime)))

    simulate(1, scenario)


def test_a_secret_that_no_bookie_knows_is_told_by_its_setting() -> None:
    async def test(cluster: Cluster) -> None:
        theirs = await cluster.start("b1", THEIRS)
        with pytest.raises(
            ConfigError, match=r"cluster\.secret is not the secret of this cluster: bookie b1 at b1"
        ):
            await cluster.check(theirs)

    in_a_cluster(test)


def test_one_that_knows_it_is_enough_and_nobody_there_is_no_refusal() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.check()
        gone = BookieInfo(BookieId("b9"), "client", 1)
        await cluster.check(gone)
        ours = await cluster.start("b1", OURS)
        await cluster.check(gone, ours)

    in_a_cluster(test)


def test_a_bookie_asks_the_others_before_it_registers() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.start("b1", THEIRS)
        with pytest.raises(ConfigError, match="--cluster-secret is not the secret of this cluster"):
            await cluster.start("b2", OURS)
        await cluster.start("b3", THEIRS)

    in_a_cluster(test)
