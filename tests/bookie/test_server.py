"""The bookie's server over real sockets: what it answers, and what it withstands."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from weir.bookie.server import NEXT, BookieServer, Event, ServerSettings, SessionLimits, State
from weir.model.errors import (
    BookieBusyError,
    BookieUnavailableError,
    ChecksumError,
    ConnectionLostError,
    EntryCorruptError,
    FrameTooLargeError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.runtime.interfaces import Connection
from weir.runtime.real import real_runtime
from weir.testing.storage.fakes import FakeBookie
from weir.wire import bookie as wire
from weir.wire.bookie import Hello, Welcome, decode_welcome, encode_hello, error_from
from weir.wire.entry import encode_entry
from weir.wire.node.frames import FrameSplitter

LEDGER = LedgerId(7)
B1 = BookieId("b1")


def entry(entry_id: int, payload: bytes = b"payload", ledger_id: int = LEDGER) -> tuple[EntryId, bytes]:
    return EntryId(entry_id), encode_entry(ledger_id, entry_id, entry_id - 1, 0, payload)


class Client:
    """The other side, by hand: sends bytes, and takes frames one after the other."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._splitter = FrameSplitter(wire.MAX_FRAME_BYTES)
        self._frames: list[memoryview] = []

    def send(self, *buffers: Buffer) -> None:
        self.connection.write(buffers)

    async def frame(self) -> memoryview:
        while not self._frames:
            data = await self.connection.receive()
            if not data:
                raise ConnectionLostError("end of stream")
            self._frames += self._splitter.feed(data)
        return self._frames.pop(0)

    async def response(self) -> wire.Response:
        return wire.decode_response(await self.frame())

    async def hello(self) -> Welcome:
        self.send(encode_hello(Hello(B1)))
        welcome = decode_welcome(await self.frame())
        assert isinstance(welcome, Welcome)
        return welcome

    async def farewell(self) -> WeirError:
        """The server's last word; after it, the connection ends."""
        failed = await self.response()
        assert isinstance(failed, wire.Failed)
        assert failed.request_id == 0
        self.connection.close()
        return error_from(failed)

    async def ended(self) -> None:
        with pytest.raises(ConnectionLostError):
            await self.frame()

    async def works(self) -> None:
        self.send(wire.encode_ping(4242))
        assert await self.response() == wire.Done((4242,))


class Running:
    """A server, the fake behind it, and as many clients as wanted."""

    def __init__(self, bookie: FakeBookie, server: BookieServer) -> None:
        self.runtime = real_runtime()
        self.bookie = bookie
        self.server = server
        self.clients: list[Client] = []

    async def knock(self) -> Client:
        client = Client(await self.runtime.net.connect("127.0.0.1", self.server.port))
        self.clients.append(client)
        return client

    async def client(self) -> Client:
        client = await self.knock()
        await client.hello()
        return client


@asynccontextmanager
async def serving(
    limits: SessionLimits | None = None, *, max_connections: int = 100, close_grace_s: float = 5.0
) -> AsyncIterator[Running]:
    bookie = FakeBookie("b1")
    settings = ServerSettings(
        max_connections=max_connections,
        limits=limits or SessionLimits(),
        sweep_interval_s=0.01,
        close_grace_s=close_grace_s,
    )
    server = BookieServer(real_runtime(), bookie, B1, settings)
    await server.start()
    running = Running(bookie, server)
    try:
        yield running
    finally:
        for client in running.clients:
            client.connection.abort()
        await server.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it holds; the test's own time-out is the limit."""
    while not condition():
        await asyncio.sleep(0.001)


# --- what it answers ----------------------------------------------------------------------------------------


async def test_a_hello_is_answered_with_who_and_how_much() -> None:
    async with serving() as running:
        client = await running.knock()
        assert await client.hello() == Welcome(B1, 1, 0, wire.MAX_FRAME_BYTES)


async def test_every_request_is_answered() -> None:
    async with serving() as running:
        client = await running.client()
        client.send(*wire.encode_add(1, LEDGER, [entry(0), entry(1), entry(2)]))
        assert await client.response() == wire.Done((1,))
        client.send(wire.encode_read(2, LEDGER, EntryId(0), EntryId(9), 10**6))
        assert await client.response() == wire.Entries(2, LEDGER, EntryId(1), [entry(0), entry(1), entry(2)])  # type: ignore[list-item]
        client.send(wire.encode_last_confirmed(3, LEDGER))
        assert await client.response() == wire.Confirmed(3, EntryId(1))
        client.send(wire.encode_confirm(LEDGER, EntryId(2)), wire.encode_poll(4, LEDGER, EntryId(1), 10_000))
        assert await client.response() == wire.Entries(4, LEDGER, EntryId(2), [entry(2)])  # type: ignore[list-item]
        client.send(wire.encode_fence(5, LEDGER))
        assert await client.response() == wire.Confirmed(5, EntryId(2))
        client.send(wire.encode_delete(6, LEDGER))
        assert await client.response() == wire.Done((6,))
        client.send(wire.encode_ping(7))
        assert await client.response() == wire.Done((7,))


async def test_refusals_come_as_the_error_that_the_bookie_raised() -> None:
    async with serving() as running:
        client = await running.client()
        client.send(wire.encode_read(1, LEDGER, EntryId(0), EntryId(0), 10))
        failed = await client.response()
        assert isinstance(failed, wire.Failed)
        assert type(error_from(failed)) is NoSuchLedgerError
        await running.bookie.fence(LEDGER)
        client.send(*wire.encode_add(2, LEDGER, [entry(0)]))
        failed = await client.response()
        assert isinstance(failed, wire.Failed)
        assert failed.request_id == 2
        assert type(error_from(failed)) is LedgerFencedError
        client.send(wire.encode_read(3, LEDGER, EntryId(0), EntryId(0), 10))
        failed = await client.response()
        assert isinstance(failed, wire.Failed)
        assert type(error_from(failed)) is NoSuchEntryError


async def test_a_fenced_ledger_takes_a_recovery_add() -> None:
    async with serving() as running:
        client = await running.client()
        await running.bookie.fence(LEDGER)
        client.send(*wire.encode_add(1, LEDGER, [entry(0)], recovery=True))
        assert await client.response() == wire.Done((1,))


async def test_adds_that_complete_together_are_acknowledged_in_one_frame() -> None:
    async with serving() as running:
        client = await running.client()
        running.bookie.hold()
        for n in range(50):
            client.send(*wire.encode_add(n + 1, LEDGER, [entry(n)]))
        await until(lambda: running.bookie.most_unacknowledged == 50)
        running.bookie.release()
        assert await client.response() == wire.Done(tuple(range(1, 51)))


async def test_answers_overtake_each_other() -> None:
    async with serving() as running:
        client = await running.client()
        running.bookie.hold()
        client.send(*wire.encode_add(1, LEDGER, [entry(0)]), wire.encode_poll(2, LEDGER, EntryId(5), 60_000))
        client.send(wire.encode_ping(3))
        assert await client.response() == wire.Done((3,))
        running.bookie.release()
        assert await client.response() == wire.Done((1,))
        running.bookie.confirm(LEDGER, EntryId(6))
        assert await client.response() == wire.Entries(2, LEDGER, EntryId(6), [])


async def test_an_entry_that_arrives_damaged_is_refused_and_not_stored() -> None:
    async with serving() as running:
        client = await running.client()
        entry_id, data = entry(0)
        damaged = data[:-1] + bytes([data[-1] ^ 1])
        client.send(*wire.encode_add(1, LEDGER, [(entry_id, damaged)]))
        failed = await client.response()
        assert isinstance(failed, wire.Failed)
        assert type(error_from(failed)) is EntryCorruptError
        assert LEDGER not in running.bookie.ledgers
        await client.works()


async def test_a_failure_inside_says_nothing_of_the_insides(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running:
        client = await running.client()

        async def broken(ledger_id: LedgerId) -> EntryId:
            raise KeyError("/secret/path")

        running.bookie.last_confirmed = broken  # type: ignore[method-assign]
        client.send(wire.encode_last_confirmed(1, LEDGER))
        failed = await client.response()
        assert isinstance(failed, wire.Failed)
        assert "secret" not in failed.what + failed.hint
        assert "secret" in caplog.text
        await client.works()


async def test_a_read_is_cut_at_the_servers_own_limit() -> None:
    async with serving(SessionLimits(max_read_bytes=2500)) as running:
        client = await running.client()
        client.send(*wire.encode_add(1, LEDGER, [entry(n, bytes(1000)) for n in range(9)]))
        await client.response()
        client.send(wire.encode_read(2, LEDGER, EntryId(0), EntryId(8), 2**32 - 1))
        answer = await client.response()
        assert isinstance(answer, wire.Entries)
        assert [entry_id for entry_id, _ in answer.entries] == [0, 1]


# --- what it withstands -------------------------------------------------------------------------------------


async def test_a_wrong_magic_is_told_and_closed() -> None:
    async with serving() as running:
        client, other = await running.knock(), await running.client()
        hello = bytearray(encode_hello(Hello(B1)))
        hello[8:12] = b"KAFK"
        client.send(hello)
        assert isinstance(await client.farewell(), ChecksumError)
        await client.ended()
        await other.works()


async def test_another_protocol_is_told_and_closed() -> None:
    async with serving() as running:
        client, other = await running.knock(), await running.client()
        client.send(b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n")
        assert isinstance(await client.farewell(), FrameTooLargeError)
        await other.works()


async def test_an_unknown_version_is_told_and_closed() -> None:
    async with serving() as running:
        client, other = await running.knock(), await running.client()
        client.send(encode_hello(Hello(B1, oldest=7, newest=9)))
        assert isinstance(await client.farewell(), UnknownVersionError)
        await client.ended()
        await other.works()


async def test_a_client_that_means_another_bookie_is_told_and_closed() -> None:
    async with serving() as running:
        client, other = await running.knock(), await running.client()
        client.send(encode_hello(Hello(BookieId("b2"))))
        assert isinstance(await client.farewell(), BookieUnavailableError)
        await other.works()


async def test_a_request_before_the_hello_is_refused() -> None:
    async with serving() as running:
        client, other = await running.knock(), await running.client()
        client.send(wire.encode_ping(1))
        assert isinstance(await client.farewell(), WireError)
        await other.works()


@pytest.mark.parametrize("length", [wire.MAX_FRAME_BYTES + 1, 2**32 - 1])
async def test_a_huge_length_is_refused_by_its_announcement(length: int) -> None:
    async with serving() as running:
        client, other = await running.client(), await running.client()
        client.send(length.to_bytes(4, "little"))
        assert isinstance(await client.farewell(), FrameTooLargeError)
        await other.works()


async def test_a_length_that_is_fine_later_is_too_large_before_the_hello() -> None:
    async with serving() as running:
        client = await running.knock()
        client.send((8192).to_bytes(4, "little"))
        assert isinstance(await client.farewell(), FrameTooLargeError)


async def test_a_frame_torn_by_a_close_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running:
        client, other = await running.client(), await running.client()
        client.send(b"".join(wire.encode_add(1, LEDGER, [entry(0)]))[:-3])
        client.connection.close()
        await until(lambda: running.server.connections == 1)
        assert caplog.text.count("within a frame") == 1
        assert LEDGER not in running.bookie.ledgers
        await other.works()


async def test_garbage_in_the_middle_is_logged_once_and_closed_after_what_came_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running:
        client, other = await running.client(), await running.client()
        client.send(*wire.encode_add(1, LEDGER, [entry(0)]), b"\x10\0\0\0" + b"garbage!" * 100)
        assert await client.response() == wire.Done((1,))
        assert isinstance(await client.farewell(), WireError)
        await client.ended()
        await other.works()
        assert caplog.text.count("is closed") == 1
        assert "Traceback" not in caplog.text


async def test_a_client_that_dies_leaves_no_session_behind() -> None:
    async with serving() as running:
        client, other = await running.client(), await running.client()
        running.bookie.hold()
        client.send(*wire.encode_add(1, LEDGER, [entry(0)]), wire.encode_poll(2, LEDGER, EntryId(9), 60_000))
        await until(lambda: running.bookie.most_unacknowledged == 1)
        client.connection.abort()
        await until(lambda: running.server.connections == 1)
        running.bookie.release()
        await other.works()


async def test_a_fence_is_completed_although_its_client_is_gone() -> None:
    async with serving() as running:
        client = await running.client()
        begun, go_on, fenced = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow_fence(ledger_id: LedgerId) -> EntryId:
            begun.set()
            await go_on.wait()
            fenced.set()
            return EntryId(-1)

        running.bookie.fence = slow_fence  # type: ignore[method-assign]
        client.send(wire.encode_fence(1, LEDGER))
        await begun.wait()
        client.connection.abort()
        await until(lambda: running.server.connections == 0)
        go_on.set()
        await fenced.wait()


async def test_adds_beyond_the_limit_are_not_read_until_earlier_ones_are_answered() -> None:
    async with serving(SessionLimits(max_requests=10)) as running:
        client, other = await running.client(), await running.client()
        running.bookie.hold()
        for n in range(200):
            client.send(*wire.encode_add(n + 1, LEDGER, [entry(n)]))
        await until(lambda: running.bookie.most_unacknowledged == 10)
        await other.works()
        assert running.bookie.most_unacknowledged == 10
        running.bookie.release()
        acknowledged: list[int] = []
        while len(acknowledged) < 200:
            done = await client.response()
            assert isinstance(done, wire.Done)
            acknowledged += done.request_ids
        assert sorted(acknowledged) == list(range(1, 201))


async def test_bytes_in_flight_are_bounded_too() -> None:
    async with serving(SessionLimits(max_bytes=50_000)) as running:
        client = await running.client()
        running.bookie.hold()
        for n in range(100):
            client.send(*wire.encode_add(n + 1, LEDGER, [entry(n, bytes(10_000))]))
        await until(lambda: running.bookie.most_unacknowledged == 5)
        for _ in range(20):
            await asyncio.sleep(0)
        assert running.bookie.most_unacknowledged == 5
        running.bookie.release()
        acknowledged = 0
        while acknowledged < 100:
            done = await client.response()
            assert isinstance(done, wire.Done)
            acknowledged += len(done.request_ids)


async def test_a_flood_of_reads_without_reading_the_answers_is_held_back_and_ended() -> None:
    limits = SessionLimits(max_bytes=4 * 1024 * 1024, stall_timeout_s=0.3)
    async with serving(limits) as running:
        client, other = await running.client(), await running.client()
        client.send(*wire.encode_add(1, LEDGER, [entry(0, bytes(1024 * 1024))]))
        assert await client.response() == wire.Done((1,))
        reads = 0
        original = running.bookie.read

        async def counted(ledger_id: LedgerId, first: EntryId, last: EntryId, *, max_bytes: int) -> object:
            nonlocal reads
            reads += 1
            return await original(ledger_id, first, last, max_bytes=max_bytes)

        running.bookie.read = counted  # type: ignore[method-assign,assignment]
        for n in range(5000):
            client.send(wire.encode_read(n + 2, LEDGER, EntryId(0), EntryId(0), 1024 * 1024))
        await until(lambda: running.server.connections == 1)
        # What the kernel's buffers and this side's inbox took, and the limit: nowhere near 5000 answers.
        assert reads < 100
        await other.works()


async def test_too_many_polls_are_refused_and_do_not_stop_adds() -> None:
    async with serving(SessionLimits(max_polls=3, max_requests=5)) as running:
        client = await running.client()
        for n in range(3):
            client.send(wire.encode_poll(n + 1, LEDGER, EntryId(0), 60_000))
        client.send(wire.encode_poll(4, LEDGER, EntryId(0), 60_000))
        failed = await client.response()
        assert isinstance(failed, wire.Failed)
        assert failed.request_id == 4
        assert type(error_from(failed)) is BookieBusyError
        for n in range(10):
            client.send(*wire.encode_add(10 + n, LEDGER, [entry(0)]))
        acknowledged = 0
        while acknowledged < 10:
            done = await client.response()
            assert isinstance(done, wire.Done)
            acknowledged += len(done.request_ids)


async def test_connections_over_the_limit_are_told_and_closed_and_room_comes_back() -> None:
    async with serving(max_connections=3) as running:
        clients = [await running.client() for _ in range(3)]
        for _ in range(5):
            refused = await running.knock()
            assert isinstance(await refused.farewell(), BookieBusyError)
        for client in clients:
            await client.works()
        clients.pop().connection.close()
        await until(lambda: running.server.connections < 3)
        await (await running.client()).works()


async def test_a_client_that_never_says_hello_is_ended() -> None:
    async with serving(SessionLimits(hello_timeout_s=0.02)) as running:
        client = await running.knock()
        await client.ended()
        assert running.server.connections == 0


@pytest.mark.slow
async def test_a_client_that_falls_silent_is_ended_and_one_that_pings_is_not() -> None:
    async with serving(SessionLimits(idle_timeout_s=2.0)) as running:
        silent, alive = await running.client(), await running.client()
        while running.server.connections == 2:
            await alive.works()
            await asyncio.sleep(0.01)
        await silent.ended()
        await alive.works()


# --- how it ends --------------------------------------------------------------------------------------------


async def test_close_answers_what_was_accepted_and_says_why() -> None:
    async with serving() as running:
        client = await running.client()
        running.bookie.hold()
        client.send(*wire.encode_add(1, LEDGER, [entry(0)]), wire.encode_poll(2, LEDGER, EntryId(9), 60_000))
        await until(lambda: running.bookie.most_unacknowledged == 1)
        closing = asyncio.ensure_future(running.server.close())
        await asyncio.sleep(0)
        running.bookie.release()
        assert await client.response() == wire.Done((1,))
        assert isinstance(await client.farewell(), BookieUnavailableError)
        await closing
        assert running.server.connections == 0


async def test_close_does_not_wait_for_ever_for_a_bookie_that_is_stuck() -> None:
    async with serving(close_grace_s=0.2) as running:
        client = await running.client()
        running.bookie.hold()
        client.send(*wire.encode_add(1, LEDGER, [entry(0)]))
        await until(lambda: running.bookie.most_unacknowledged == 1)
        await running.server.close()
        await client.ended()


def test_the_table_of_moves_knows_every_state_and_never_leaves_the_end() -> None:
    assert list(NEXT) == list(State)
    assert set(NEXT[State.CLOSED].values()) == {State.CLOSED}
    for state, moves in NEXT.items():
        assert moves[Event.GONE] is State.CLOSED, state
        assert (Event.WELCOMED in moves) == (state is State.HELLO)
