"""A handle on a bookie of another node, over the simulated network: time-outs, breaks and all."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.bookie.server import BookieServer, ServerSettings, SessionLimits
from weir.ledger.interfaces import Bookie, BookiePool
from weir.ledger.remote_bookie import RemoteBookie, RemoteBookiePool, RemoteSettings
from weir.model.errors import (
    BookieBusyError,
    BookieError,
    BookieReadOnlyError,
    BookieUnavailableError,
    LedgerFencedError,
    NetworkError,
    NoSuchEntryError,
)
from weir.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.testing.storage.fakes import FakeBookie
from weir.testing.world.world import World, simulate
from weir.wire import bookie as wire
from weir.wire.bookie import Hello, Welcome, encode_hello, encode_welcome
from weir.wire.entry import encode_entry
from weir.wire.metadata import BookieInfo
from weir.wire.node.frames import FrameSplitter
from weir.wire.node.proof import ClusterSecret

B1 = BookieId("b1")
LEDGER = LedgerId(7)
PORT = 3181
SECRET = ClusterSecret(b"s" * 32)


def entry(entry_id: int, payload: bytes = b"payload") -> tuple[EntryId, bytes]:
    return EntryId(entry_id), encode_entry(LEDGER, entry_id, entry_id - 1, 0, payload)


def resolve(bookie_id: BookieId) -> BookieInfo | None:
    return BookieInfo(bookie_id, "server", PORT)


class Place:
    """A world with a bookie's server on one node; the test runs on another."""

    secret: ClusterSecret | None = None

    def __init__(self, world: World, runtime: Runtime) -> None:
        self.world = world
        self.runtime = runtime
        self.bookie = FakeBookie("b1")
        self.limits = SessionLimits()

    async def _serve(self, runtime: Runtime) -> None:
        settings = ServerSettings(port=PORT, limits=self.limits, max_strangers=4)
        server = BookieServer(runtime, self.bookie, B1, settings, secret=self.secret)
        await server.start()

    async def start(self) -> None:
        await self.world.node("server").start(self._serve)

    def remote(
        self, settings: RemoteSettings | None = None, *, secret: ClusterSecret | None = None
    ) -> RemoteBookie:
        return RemoteBookie(self.runtime, B1, resolve, settings, secret=secret)


def at_a_place(
    test: Callable[[Place], Coroutine[Any, Any, None]], seed: int = 1, *, secret: ClusterSecret | None = None
) -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            place = Place(world, runtime)
            place.secret = secret
            await place.start()
            await test(place)

        await world.node("client").start(main)

    simulate(seed, scenario)


async def failure_of(answer: "asyncio.Future[None]") -> BaseException | None:
    await asyncio.wait([answer])
    return answer.exception()


def test_every_verb_reaches_the_bookie_and_comes_back() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        await remote.add(LEDGER, [entry(0), entry(1)])
        await remote.add(LEDGER, [entry(2)])
        result = await remote.read(LEDGER, EntryId(0), EntryId(9), max_bytes=10**6)
        assert result.entries == [entry(0), entry(1), entry(2)]
        assert result.last_confirmed == 1
        assert await remote.last_confirmed(LEDGER) == 1
        remote.confirm(LEDGER, EntryId(2))
        polled = await remote.poll(LEDGER, EntryId(1), timeout_s=5)
        assert polled.entries == [entry(2)]
        assert await remote.fence(LEDGER) == 2
        assert await remote.fence(LedgerId(99)) == NO_ENTRY
        with pytest.raises(LedgerFencedError):
            await remote.add(LEDGER, [entry(3)])
        await remote.add(LEDGER, [entry(3)], recovery=True)
        await remote.delete(LEDGER)
        assert LEDGER not in place.bookie.ledgers
        await remote.close()

    at_a_place(test)


def test_a_bookie_with_a_secret_serves_who_knows_it_and_nobody_else() -> None:
    async def test(place: Place) -> None:
        known = place.remote(secret=SECRET)
        await known.add(LEDGER, [entry(0)])
        assert (await known.read(LEDGER, EntryId(0), EntryId(0), max_bytes=9)).entries == [entry(0)]
        for stranger in (place.remote(), place.remote(secret=ClusterSecret(b"o" * 32))):
            with pytest.raises(BookieUnavailableError):
                await stranger.fence(LEDGER)
            await stranger.close()
        await known.add(LEDGER, [entry(1)])
        await known.close()

    at_a_place(test, secret=SECRET)


@pytest.mark.parametrize(
    "sent", [encode_hello(Hello(B1)), wire.encode_fence(1, LEDGER), b"GET / HTTP/1.1\r\n\r\n"]
)
def test_a_stranger_gets_not_a_byte_out_of_a_bookie_with_a_secret(sent: bytes) -> None:
    async def test(place: Place) -> None:
        connection = await place.runtime.net.connect("server", PORT)
        connection.write([sent])
        with pytest.raises(NetworkError):
            while await connection.receive():
                raise AssertionError("it said something")
            raise NetworkError("the stream ended")

    at_a_place(test, secret=SECRET)


def test_strangers_keep_no_broker_away_from_a_bookie() -> None:
    async def test(place: Place) -> None:
        for _ in range(30):
            await place.runtime.net.connect("server", PORT)
        known = place.remote(secret=SECRET)
        await known.add(LEDGER, [entry(0)])
        await known.close()

    at_a_place(test, secret=SECRET)


def test_a_bookie_without_the_secret_is_told_nothing() -> None:
    async def test(place: Place) -> None:
        remote = place.remote(secret=SECRET)
        with pytest.raises(BookieUnavailableError):
            await remote.add(LEDGER, [entry(0)])
        assert not place.bookie.ledgers
        await remote.close()

    at_a_place(test)


def test_refusals_are_the_errors_that_the_bookie_raised() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        await remote.add(LEDGER, [entry(0)])
        with pytest.raises(NoSuchEntryError, match="entry 5"):
            await remote.read(LEDGER, EntryId(5), EntryId(5), max_bytes=1)
        place.bookie.read_only = True
        with pytest.raises(BookieReadOnlyError):
            await remote.add(LEDGER, [entry(1)])
        await remote.close()

    at_a_place(test)


def test_adds_are_queued_while_the_connection_is_made_and_go_out_in_order() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        adds = [remote.add(LEDGER, [entry(n)]) for n in range(100)]
        assert not any(add.done() for add in adds)
        await asyncio.gather(*adds)
        assert list(place.bookie.ledgers[LEDGER].entries) == list(range(100))
        await remote.close()

    at_a_place(test)


def test_all_of_one_turn_goes_out_in_one_write() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        await remote.add(LEDGER, [entry(0)])
        writes: list[int] = []
        connection = remote._link._connection  # type: ignore[union-attr]
        original = connection.write  # type: ignore[union-attr]
        connection.write = lambda buffers: (writes.append(len(buffers)), original(buffers))  # type: ignore
        await asyncio.gather(*(remote.add(LEDGER, [entry(n)]) for n in range(50)))
        assert len(writes) == 1
        await remote.close()

    at_a_place(test)


def test_what_is_in_flight_when_the_connection_breaks_fails_and_later_requests_use_a_new_one() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        await remote.add(LEDGER, [entry(0)])
        place.bookie.hold()
        lost = remote.add(LEDGER, [entry(1)])
        polling = asyncio.ensure_future(remote.poll(LEDGER, EntryId(50), timeout_s=100))
        await place.runtime.clock.sleep(1)
        place.world.net.break_connections("client", "server")
        assert isinstance(await failure_of(lost), BookieUnavailableError)
        with pytest.raises(BookieUnavailableError):
            await polling
        place.bookie.release()
        await place.runtime.clock.sleep(1)
        await remote.add(LEDGER, [entry(2)])
        await remote.close()

    at_a_place(test)


def test_a_bookie_that_is_down_fails_requests_and_is_found_again_when_it_is_back() -> None:
    async def test(place: Place) -> None:
        server = place.world.node("server")
        remote = place.remote()
        await remote.add(LEDGER, [entry(0)])
        server.kill()
        assert isinstance(await failure_of(remote.add(LEDGER, [entry(1)])), BookieUnavailableError)
        for _ in range(20):
            assert isinstance(await failure_of(remote.add(LEDGER, [entry(1)])), BookieUnavailableError)
            await place.runtime.clock.sleep(0.5)
        server.restart()
        await place.runtime.clock.sleep(6)
        await remote.add(LEDGER, [entry(2)])
        await remote.close()

    at_a_place(test)


def test_during_the_back_off_requests_fail_at_once_instead_of_queueing() -> None:
    async def test(place: Place) -> None:
        place.world.node("server").kill()
        remote = place.remote(RemoteSettings(first_backoff_s=5.0))
        assert isinstance(await failure_of(remote.add(LEDGER, [entry(0)])), BookieUnavailableError)
        refused = remote.add(LEDGER, [entry(0)])
        assert refused.done()
        assert isinstance(refused.exception(), BookieUnavailableError)
        await remote.close()

    at_a_place(test)


def test_a_request_that_is_not_answered_in_time_fails_and_the_connection_stays() -> None:
    async def test(place: Place) -> None:
        remote = place.remote(RemoteSettings(request_timeout_s=2.0))
        await remote.add(LEDGER, [entry(0)])
        link = remote._link
        place.bookie.hold()
        began = place.runtime.clock.monotonic()
        assert isinstance(await failure_of(remote.add(LEDGER, [entry(1)])), BookieUnavailableError)
        assert 2.0 <= place.runtime.clock.monotonic() - began < 2.5
        assert remote.idle
        place.bookie.release()  # the late answer is ignored
        await remote.add(LEDGER, [entry(2)])
        assert remote._link is link
        await remote.close()

    at_a_place(test)


def test_a_poll_may_wait_longer_than_other_requests() -> None:
    async def test(place: Place) -> None:
        remote = place.remote(RemoteSettings(request_timeout_s=2.0))
        result = await remote.poll(LEDGER, NO_ENTRY, timeout_s=30)
        assert result == ([], NO_ENTRY)
        await remote.close()

    at_a_place(test)


def test_a_silent_partition_is_found_by_pinging_although_nobody_asks_anything() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        await remote.add(LEDGER, [entry(0)])
        place.world.net.partition(["client"], ["server"])
        await place.runtime.clock.sleep(12)
        assert remote._link is None
        place.world.net.heal()
        await place.runtime.clock.sleep(1)
        await remote.add(LEDGER, [entry(1)])
        await remote.close()

    at_a_place(test)


def test_pings_keep_an_idle_connection_alive_on_both_sides() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        await remote.add(LEDGER, [entry(0)])
        link = remote._link
        await place.runtime.clock.sleep(1000)
        assert remote._link is link
        await remote.add(LEDGER, [entry(1)])
        await remote.close()

    at_a_place(test)


def test_requests_in_flight_are_bounded_in_number_and_bytes() -> None:
    async def test(place: Place) -> None:
        few = place.remote(RemoteSettings(max_requests=3))
        place.bookie.hold()
        accepted = [few.add(LEDGER, [entry(n)]) for n in range(3)]
        assert isinstance(await failure_of(few.add(LEDGER, [entry(3)])), BookieBusyError)
        small = place.remote(RemoteSettings(max_bytes=1000))
        accepted.append(small.add(LEDGER, [entry(4, bytes(5000))]))  # a single large one always passes
        assert isinstance(await failure_of(small.add(LEDGER, [entry(5)])), BookieBusyError)
        await place.runtime.clock.sleep(1)
        place.bookie.release()
        await asyncio.gather(*accepted)
        assert few.idle
        await few.add(LEDGER, [entry(3)])
        await small.add(LEDGER, [entry(5)])
        await few.close()
        await small.close()

    at_a_place(test)


def test_an_add_that_the_bookie_would_not_take_is_refused_here() -> None:
    async def test(place: Place) -> None:
        place.limits = SessionLimits(max_frame_bytes=1000)
        place.world.node("server").kill()
        await place.start()
        remote = place.remote()
        await remote.add(LEDGER, [entry(0)])
        with pytest.raises(BookieError, match="1000"):
            await remote.add(LEDGER, [entry(1, bytes(1000))])
        await remote.close()

    at_a_place(test)


def test_another_bookie_at_the_address_is_never_written_to() -> None:
    async def test(place: Place) -> None:
        remote = RemoteBookie(place.runtime, BookieId("b2"), resolve)
        error = await failure_of(remote.add(LEDGER, [entry(0)]))
        assert isinstance(error, BookieUnavailableError)
        assert "b1" in str(error)
        assert place.bookie.ledgers == {}
        await remote.close()

    at_a_place(test)


def test_a_bookie_that_is_not_registered_is_unavailable() -> None:
    async def test(place: Place) -> None:
        remote = RemoteBookie(place.runtime, B1, lambda _: None)
        with pytest.raises(BookieUnavailableError, match="not registered"):
            await remote.last_confirmed(LEDGER)
        await remote.close()

    at_a_place(test)


def test_a_closed_handle_refuses() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        place.bookie.hold()
        flying = remote.add(LEDGER, [entry(0)])
        await remote.close()
        assert isinstance(flying.exception(), BookieUnavailableError)
        with pytest.raises(BookieUnavailableError, match="closed"):
            await remote.last_confirmed(LEDGER)

    at_a_place(test)


def test_a_handle_dropped_while_it_connects_can_connect_again() -> None:
    async def test(place: Place) -> None:
        remote = place.remote()
        first = remote.add(LEDGER, [entry(0)])
        remote.disconnect()
        assert isinstance(first.exception(), BookieUnavailableError)
        await place.runtime.clock.sleep(1)
        await remote.add(LEDGER, [entry(1)])
        await place.runtime.clock.sleep(1)
        assert list(place.bookie.ledgers[LEDGER].entries) == [1]
        await remote.close()

    at_a_place(test)


# --- a server that lies -------------------------------------------------------------------------------------


def liar(answer: Callable[[wire.Request], bytes]) -> Callable[[Runtime], Coroutine[Any, Any, None]]:
    """A server that welcomes, and answers every request with what the function makes of it."""

    async def serve(runtime: Runtime) -> None:
        listener = await runtime.net.listen("server", PORT)
        while True:
            connection = await listener.accept()
            await connection.receive()
            connection.write([encode_welcome(Welcome(B1, 1, 0, wire.MAX_FRAME_BYTES))])
            splitter = FrameSplitter(wire.MAX_FRAME_BYTES)
            while data := await connection.receive():
                for body in splitter.feed(data):
                    connection.write([answer(wire.decode_request(body))])

    return serve


LIES: dict[str, Callable[[wire.Request], bytes]] = {
    "garbage": lambda _: b"\x0a\0\0\0garbage!!!",
    "a huge length": lambda _: b"\xff\xff\xff\xff",
    "an answer of another kind": lambda request: wire.encode_confirmed(request.request_id, EntryId(1)),  # type: ignore[union-attr]
    "a damaged answer": lambda request: wire.encode_done([request.request_id])[:-1] + b"\x55",  # type: ignore[union-attr]
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_breaks_the_protocol_loses_its_connection(lie: str) -> None:
    async def test(place: Place) -> None:
        place.world.node("server").kill()
        place.world.node("server").start(liar(LIES[lie]))
        await place.runtime.clock.sleep(1)
        remote = place.remote()
        assert isinstance(await failure_of(remote.add(LEDGER, [entry(0)])), BookieUnavailableError)
        assert remote._link is None
        await remote.close()

    at_a_place(test)


def test_entries_that_were_not_asked_for_are_refused() -> None:
    def answer(request: wire.Request) -> bytes:
        assert isinstance(request, wire.Read)
        return b"".join(wire.encode_entries(request.request_id, LEDGER, EntryId(9), [entry(5)]))

    async def test(place: Place) -> None:
        place.world.node("server").kill()
        place.world.node("server").start(liar(answer))
        await place.runtime.clock.sleep(1)
        remote = place.remote()
        with pytest.raises(BookieError, match="not asked for"):
            await remote.read(LEDGER, EntryId(0), EntryId(3), max_bytes=100)
        with pytest.raises(BookieError, match="not asked for"):
            await remote.read(LedgerId(8), EntryId(0), EntryId(9), max_bytes=100)
        await remote.close()

    at_a_place(test)


# --- the pool -----------------------------------------------------------------------------------------------


def test_the_pool_keeps_one_handle_per_bookie_and_calls_a_local_one_directly() -> None:
    async def test(place: Place) -> None:
        pool = RemoteBookiePool(place.runtime, resolve)
        handle: Bookie = pool.get(B1)
        as_pool: BookiePool = pool
        assert as_pool.get(B1) is handle
        await handle.add(LEDGER, [entry(0)])
        local = FakeBookie("here")
        pool.add_local(BookieId("here"), local)
        assert pool.get(BookieId("here")) is local
        pool.remove_local(BookieId("here"))
        assert pool.get(BookieId("here")) is not local
        await pool.close()
        assert isinstance(await failure_of(handle.add(LEDGER, [entry(1)])), BookieUnavailableError)

    at_a_place(test)


def test_the_pool_drops_a_bookie_that_is_gone_but_never_one_that_owes_an_answer() -> None:
    async def test(place: Place) -> None:
        registered = True
        settings = RemoteSettings(evict_interval_s=10, request_timeout_s=1000)
        pool = RemoteBookiePool(place.runtime, lambda b: resolve(b) if registered else None, settings)
        handle = pool.get(B1)
        await handle.add(LEDGER, [entry(0)])
        place.bookie.hold()
        owed = handle.add(LEDGER, [entry(1)])
        registered = False
        await place.runtime.clock.sleep(30)
        assert pool.get(B1) is handle
        place.bookie.release()
        await owed
        await place.runtime.clock.sleep(30)
        assert pool.get(B1) is not handle
        registered = True
        await handle.add(LEDGER, [entry(2)])  # whoever kept the old handle can go on
        await pool.close()
        assert isinstance(handle, RemoteBookie)
        await handle.close()

    at_a_place(test)


@pytest.mark.parametrize("seed", range(20))
def test_under_faults_every_request_ends_and_every_acknowledged_entry_is_there(seed: int) -> None:
    async def test(place: Place) -> None:
        remote = place.remote(RemoteSettings(request_timeout_s=3.0))
        dice = place.world.rng("test")
        acknowledged: list[int] = []

        async def write(entry_id: int) -> None:
            try:
                await remote.add(LEDGER, [entry(entry_id)])
                acknowledged.append(entry_id)
            except BookieUnavailableError:
                pass

        for n in range(60):
            if dice.random() < 0.1:
                place.world.net.break_connections("client", "server")
            if dice.random() < 0.05:
                place.world.net.partition(["client"], ["server"])
            if dice.random() < 0.5:
                place.world.net.heal()
            async with asyncio.TaskGroup() as group:
                for k in range(5):
                    group.create_task(write(5 * n + k))
            await place.runtime.clock.sleep(dice.random())
        assert remote.idle or remote._pinged_at is not None
        assert acknowledged
        held = place.bookie.ledgers[LEDGER].entries
        assert [n for n in acknowledged if n not in held] == []
        await remote.close()

    at_a_place(test, seed)
