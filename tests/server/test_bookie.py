"""A bookie node: its parts start together, serve together, and end in order."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.bookie.settings import BookieSettings, SpaceSettings
from weir.broker.peers.peer_calls import PeerCredentials
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import (
    AddressInUseError,
    BookieCookieError,
    BookieUnavailableError,
    FileLockedError,
    WeirError,
)
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.bookie_node import BookieNode, BookieNodeSettings
from weir.testing.world.world import World, simulate
from weir.wire.entry import encode_entry
from weir.wire.node.proof import ClusterSecret

B1 = BookieId("b1")
LEDGER = LedgerId(7)
SPACE = SpaceSettings(low_water_bytes=0, high_water_bytes=0)


def entry(entry_id: int) -> tuple[EntryId, bytes]:
    return EntryId(entry_id), encode_entry(LEDGER, entry_id, entry_id - 1, 0, b"payload")


class Place:
    """A world with a metadata store; the test runs on the node `client`, bookies on theirs."""

    credentials: PeerCredentials | None = None

    def __init__(self, world: World, runtime: Runtime) -> None:
        self.world = world
        self.runtime = runtime
        self.core = MemoryCore(runtime.clock)
        self.meta = MemoryMeta(self.core, runtime)
        self.directory = BookieDirectory(runtime.clock, self.meta)
        self.pool = RemoteBookiePool(runtime, self.directory.resolve)

    async def start(self, host: str, folder: str = "/data", **options: Any) -> BookieNode:
        settings = BookieNodeSettings(
            BookieSettings(B1, folder, space=SPACE), "memory:", Address(host, 3181), rack="r1", **options
        )

        async def main(runtime: Runtime) -> BookieNode | WeirError:
            node = BookieNode(runtime, settings, meta=MemoryMeta(self.core, runtime), credentials=self.credentials)
            try:
                await node.start()
            except WeirError as refused:  # the process lives on, so that what it forgot to let go would show
                return refused
            return node

        started = await self.world.node(host).run(main)
        if isinstance(started, WeirError):
            raise started
        return started

    async def close(self, host: str, node: BookieNode) -> None:
        await self.world.node(host).run(lambda _: node.close())

    async def registered(self) -> list[str]:
        listing = await self.meta.list("/weir/bookies/")
        return [item.key for item in listing.items if not item.key.startswith(keys.COOKIES)]


def at_a_place(test: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            place = Place(world, runtime)
            await place.directory.start()
            await test(place)
            await place.pool.close()
            await place.directory.close()

        await world.node("client").start(main)

    simulate(1, scenario)


def test_a_node_is_found_in_the_metadata_and_stores_what_it_is_sent() -> None:
    async def test(place: Place) -> None:
        node = await place.start("host1")
        await place.runtime.clock.sleep(0.1)
        assert list(place.directory.writable()) == [B1]
        assert place.directory.rack_of(B1) == "r1"
        remote = place.pool.get(B1)
        await remote.add(LEDGER, [entry(0), entry(1)])
        result = await remote.read(LEDGER, EntryId(0), EntryId(9), max_bytes=10**6)
        assert result.entries == [entry(0), entry(1)]
        assert node.bookie.ledgers() == [LEDGER]
        await place.close("host1", node)

    at_a_place(test)


def test_a_node_with_credentials_of_the_cluster_serves_who_has_them() -> None:
    async def test(place: Place) -> None:
        place.credentials = PeerCredentials(ClusterSecret(b"s" * 32))
        node = await place.start("host1")
        await place.runtime.clock.sleep(0.1)
        with pytest.raises(BookieUnavailableError):
            await place.pool.get(B1).add(LEDGER, [entry(0)])
        known = RemoteBookiePool(place.runtime, place.directory.resolve, secret=place.credentials.secret)
        await known.get(B1).add(LEDGER, [entry(0)])
        assert node.bookie.ledgers() == [LEDGER]
        await known.close()
        await place.close("host1", node)

    at_a_place(test)


def test_after_close_it_is_unregistered_and_keeps_its_entries_for_the_next_start() -> None:
    async def test(place: Place) -> None:
        node = await place.start("host1")
        await place.runtime.clock.sleep(0.1)
        await place.pool.get(B1).add(LEDGER, [entry(0)])
        await place.close("host1", node)
        assert await place.registered() == []
        with pytest.raises(BookieUnavailableError):
            await place.pool.get(B1).last_confirmed(LEDGER)
        node = await place.start("host1")
        await place.runtime.clock.sleep(6)
        result = await place.pool.get(B1).read(LEDGER, EntryId(0), EntryId(0), max_bytes=100)
        assert result.entries == [entry(0)]
        await place.close("host1", node)

    at_a_place(test)


def test_a_second_node_with_the_same_id_on_another_disk_is_refused_and_leaves_nothing_behind() -> None:
    async def test(place: Place) -> None:
        node = await place.start("host1")
        with pytest.raises(BookieCookieError, match="another disk"):
            await place.start("host2")
        assert await place.registered() == [keys.bookie_writable(B1)]
        await place.close("host1", node)
        with pytest.raises(BookieCookieError):  # and not for a lock or port that the failed start kept
            await place.start("host2")

    at_a_place(test)


def test_a_disk_that_was_wiped_is_refused() -> None:
    async def test(place: Place) -> None:
        node = await place.start("host1", "/disk")
        await place.close("host1", node)
        with pytest.raises(BookieCookieError, match="another disk"):
            await place.start("host1", "/fresh-disk")

    at_a_place(test)


def test_a_disk_with_ledgers_is_refused_by_the_metadata_of_another_cluster() -> None:
    async def test(place: Place) -> None:
        node = await place.start("host1")
        await place.runtime.clock.sleep(0.1)
        await place.pool.get(B1).add(LEDGER, [entry(0)])
        await place.close("host1", node)
        place.core = MemoryCore(place.runtime.clock)
        with pytest.raises(BookieCookieError, match="does not know it"):
            await place.start("host1")

    at_a_place(test)


def test_a_folder_in_use_and_a_port_in_use_are_told_apart() -> None:
    async def test(place: Place) -> None:
        node = await place.start("host1")
        with pytest.raises(FileLockedError):
            await place.start("host1")
        await place.close("host1", node)
        blocker = await place.world.node("host1").run(lambda runtime: runtime.net.listen("host1", 3181))
        with pytest.raises(AddressInUseError):
            await place.start("host1")
        assert await place.registered() == []
        blocker.close()
        await place.close("host1", await place.start("host1"))  # the failed start let the folder go

    at_a_place(test)


def test_a_node_that_dies_is_gone_from_the_metadata_after_its_lease() -> None:
    async def test(place: Place) -> None:
        await place.start("host1")
        place.world.node("host1").crash()
        await place.runtime.clock.sleep(15)
        assert await place.registered() == []

    at_a_place(test)


def test_ledgers_that_were_deleted_while_it_was_away_are_found() -> None:
    async def test(place: Place) -> None:
        node = await place.start("host1", orphan_interval_s=30.0)
        await place.runtime.clock.sleep(0.1)
        remote = place.pool.get(B1)
        await place.meta.put(keys.ledger(LEDGER), b"metadata")
        await remote.add(LEDGER, [entry(0)])
        await place.runtime.clock.sleep(40)
        assert node.bookie.ledgers() == [LEDGER]
        await place.meta.delete(keys.ledger(LEDGER))
        await place.runtime.clock.sleep(40)
        assert node.bookie.ledgers() == []
        await place.close("host1", node)

    at_a_place(test)


def test_a_node_that_was_not_started_has_no_address() -> None:
    async def test(place: Place) -> None:
        settings = BookieNodeSettings(BookieSettings(B1, "/data"), "memory:", Address("host", 1))
        node = BookieNode(place.runtime, settings)
        with pytest.raises(BookieUnavailableError):
            assert node.address
        with pytest.raises(BookieUnavailableError):
            assert node.bookie
        await node.close()

    at_a_place(test)
