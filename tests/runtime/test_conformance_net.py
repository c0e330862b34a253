"""What `weir.runtime.interfaces` says of networks, listeners and connections, over every runtime."""

import asyncio

import pytest

from weir.model.errors import AddressInUseError, ConnectFailedError, ConnectionLostError
from weir.runtime.interfaces import Connection
from weir.testing.world.drivers import ConformanceSite, on_every_runtime

#: More than any runtime queues before it pushes back, kernel buffers included.
TOO_MUCH = 64 * 1024 * 1024


async def pair(place: ConformanceSite) -> tuple[Connection, Connection]:
    """Both ends of a connection: who connected, and who accepted."""
    listener = await place.runtime.net.listen(place.host, 0)
    near = await place.runtime.net.connect(listener.host, listener.port)
    far = await listener.accept()
    listener.close()
    return near, far


async def read_all(connection: Connection) -> bytes:
    pieces = []
    while piece := await connection.receive():
        pieces.append(bytes(piece))
    return b"".join(pieces)


async def read_exactly(connection: Connection, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await connection.receive()
        assert piece, "the stream ended too early"
        data += piece
    return bytes(data)


async def turns(place: ConformanceSite) -> None:
    """Give everything a chance to go wrong."""
    for _ in range(50):
        await place.runtime.clock.sleep(0.001)


# --- network and listener -----------------------------------------------------------------------------------


@on_every_runtime
async def test_port_0_binds_any_free_port(place: ConformanceSite) -> None:
    first = await place.runtime.net.listen(place.host, 0)
    second = await place.runtime.net.listen(place.host, 0)
    assert first.port > 0
    assert second.port > 0
    assert first.port != second.port
    assert first.host == place.host
    first.close()
    second.close()


@on_every_runtime
async def test_an_address_in_use_cannot_be_bound_until_it_is_free(place: ConformanceSite) -> None:
    listener = await place.runtime.net.listen(place.host, 0)
    with pytest.raises(AddressInUseError):
        await place.runtime.net.listen(place.host, listener.port)
    listener.close()
    again = await place.runtime.net.listen(place.host, listener.port)
    assert again.port == listener.port
    again.close()


@on_every_runtime
async def test_connecting_where_nobody_listens_fails(place: ConformanceSite) -> None:
    listener = await place.runtime.net.listen(place.host, 0)
    listener.close()
    with pytest.raises(ConnectFailedError):
        await place.runtime.net.connect(place.host, listener.port, timeout_s=5.0)


@on_every_runtime
async def test_accept_gives_one_connection_after_the_other(place: ConformanceSite) -> None:
    listener = await place.runtime.net.listen(place.host, 0)
    accepting = asyncio.create_task(listener.accept())
    first = await place.runtime.net.connect(place.host, listener.port)
    first.write([b"1"])
    assert bytes(await (await accepting).receive()) == b"1"
    second = await place.runtime.net.connect(place.host, listener.port)
    second.write([b"2"])
    assert bytes(await (await listener.accept()).receive()) == b"2"
    listener.close()


@on_every_runtime
async def test_a_closed_listener_accepts_no_more(place: ConformanceSite) -> None:
    listener = await place.runtime.net.listen(place.host, 0)
    waiting = asyncio.create_task(listener.accept())
    await place.runtime.clock.sleep(0)
    listener.close()
    with pytest.raises(ConnectionLostError):
        await waiting
    with pytest.raises(ConnectionLostError):
        await listener.accept()
    listener.close()


@on_every_runtime
async def test_connections_already_accepted_live_on_when_the_listener_closes(place: ConformanceSite) -> None:
    near, far = await pair(place)  # has closed its listener
    near.write([b"hello"])
    assert await read_exactly(far, 5) == b"hello"
    far.write([b"there"])
    assert await read_exactly(near, 5) == b"there"


@on_every_runtime
async def test_a_cancelled_accept_loses_no_connection(place: ConformanceSite) -> None:
    listener = await place.runtime.net.listen(place.host, 0)
    waiting = asyncio.create_task(listener.accept())
    await place.runtime.clock.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    near = await place.runtime.net.connect(place.host, listener.port)
    near.write([b"x"])
    assert bytes(await (await listener.accept()).receive()) == b"x"
    listener.close()


@on_every_runtime
async def test_the_peer_is_a_host_and_a_port(place: ConformanceSite) -> None:
    listener = await place.runtime.net.listen(place.host, 0)
    near = await place.runtime.net.connect(place.host, listener.port)
    far = await listener.accept()
    assert near.peer == f"{place.host}:{listener.port}"
    host, _, port = far.peer.rpartition(":")
    assert host == place.host
    assert int(port) > 0
    listener.close()


# --- receiving and writing ----------------------------------------------------------------------------------


@on_every_runtime
async def test_bytes_arrive_complete_and_in_order_both_ways_at_once(place: ConformanceSite) -> None:
    near, far = await pair(place)
    there = b"".join(b"there %d " % i for i in range(50_000))
    back = b"".join(b"back %d " % i for i in range(50_000))

    async def send(connection: Connection, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), 5000):
            connection.write([view[start : start + 1000], bytearray(view[start + 1000 : start + 5000])])
            await connection.drain()

    _, _, got_there, got_back = await asyncio.gather(
        send(near, there), send(far, back), read_exactly(far, len(there)), read_exactly(near, len(back))
    )
    assert got_there == there
    assert got_back == back


@on_every_runtime
async def test_receive_waits_for_bytes_and_gives_what_came(place: ConformanceSite) -> None:
    near, far = await pair(place)
    receiving = asyncio.create_task(far.receive())
    await turns(place)
    assert not receiving.done()
    near.write([b"x"])
    assert bytes(await receiving) == b"x"


@on_every_runtime
async def test_a_cancelled_receive_loses_no_bytes(place: ConformanceSite) -> None:
    near, far = await pair(place)
    receiving = asyncio.create_task(far.receive())
    await place.runtime.clock.sleep(0)
    receiving.cancel()
    await asyncio.wait([receiving])
    near.write([b"still here"])
    assert await read_exactly(far, 10) == b"still here"


@on_every_runtime
async def test_a_received_buffer_is_never_overwritten_while_a_view_of_it_lives(place: ConformanceSite) -> None:
    near, far = await pair(place)
    kept = []

    async def send() -> None:
        for i in range(200):
            near.write([bytes([i]) * 20_000])
            await near.drain()
        near.close()

    sending = asyncio.create_task(send())
    while piece := await far.receive():
        kept.append(memoryview(piece)[: len(piece)])
        del piece
    await sending
    assert b"".join(kept) == b"".join(bytes([i]) * 20_000 for i in range(200))


@on_every_runtime
async def test_write_does_not_wait(place: ConformanceSite) -> None:
    near, far = await pair(place)
    chunk = bytes(1024 * 1024)
    for _ in range(8):
        near.write([chunk])
    near.close()
    assert len(await read_all(far)) == 8 * len(chunk)


@on_every_runtime
async def test_writing_nothing_sends_nothing(place: ConformanceSite) -> None:
    near, far = await pair(place)
    near.write([])
    near.write([b""])
    near.write([b"x", b""])
    near.write([b"", b"y", b"", b"z"])
    near.close()
    assert await read_all(far) == b"xyz"


@pytest.mark.slow
@on_every_runtime
async def test_drain_waits_while_too_much_is_queued_and_ends_when_the_peer_reads(place: ConformanceSite) -> None:
    near, far = await pair(place)
    near.write([bytes(TOO_MUCH)])
    draining = asyncio.create_task(near.drain())
    await turns(place)
    assert not draining.done()
    await read_exactly(far, TOO_MUCH)
    await draining


@pytest.mark.slow
@on_every_runtime
async def test_drain_waits_for_many_buffers_written_at_once_as_for_one(place: ConformanceSite) -> None:
    near, far = await pair(place)
    pieces = [bytes([n % 251]) * (TOO_MUCH // 1024) for n in range(1024)]
    for at in range(0, len(pieces), 16):
        near.write(pieces[at : at + 16])
    draining = asyncio.create_task(near.drain())
    await turns(place)
    assert not draining.done()
    assert await read_exactly(far, TOO_MUCH) == b"".join(pieces)
    await draining


@pytest.mark.slow
@on_every_runtime
async def test_what_has_not_left_yet_is_counted_until_the_peer_reads_or_the_connection_is_gone(
    place: ConformanceSite,
) -> None:
    near, far = await pair(place)
    assert near.unsent_bytes == 0
    near.write([bytes(TOO_MUCH // 2), bytes(TOO_MUCH // 2)])
    assert 0 < near.unsent_bytes <= TOO_MUCH
    await read_exactly(far, TOO_MUCH)
    await near.drain()
    assert near.unsent_bytes == 0
    near.write([bytes(TOO_MUCH)])
    near.abort()
    while near.unsent_bytes:
        await turns(place)


@on_every_runtime
async def test_drain_returns_when_little_is_queued(place: ConformanceSite) -> None:
    near, _far = await pair(place)
    await near.drain()
    near.write([b"little"])
    await near.drain()


@on_every_runtime
async def test_drain_tells_when_the_connection_broke(place: ConformanceSite) -> None:
    near, far = await pair(place)
    near.write([bytes(TOO_MUCH)])
    draining = asyncio.create_task(near.drain())
    await turns(place)
    far.abort()
    with pytest.raises(ConnectionLostError):
        await draining
    with pytest.raises(ConnectionLostError):
        await near.drain()


# --- ending -------------------------------------------------------------------------------------------------


@on_every_runtime
async def test_close_sends_what_is_queued_and_then_ends_the_stream(place: ConformanceSite) -> None:
    near, far = await pair(place)
    data = bytes(range(256)) * 20_000
    near.write([data])
    near.close()
    assert await read_all(far) == data
    assert bytes(await far.receive()) == b"", "an ended stream stays ended"


@on_every_runtime
async def test_close_ends_the_stream_for_the_one_who_closes_too(place: ConformanceSite) -> None:
    near, _far = await pair(place)
    receiving = asyncio.create_task(near.receive())
    await place.runtime.clock.sleep(0)
    near.close()
    assert bytes(await receiving) == b""
    assert bytes(await near.receive()) == b""


@on_every_runtime
async def test_closing_twice_is_fine(place: ConformanceSite) -> None:
    near, far = await pair(place)
    near.close()
    near.close()
    assert await read_all(far) == b""
    far.close()
    far.close()
    near.close()


@on_every_runtime
async def test_writing_to_a_closed_or_broken_connection_does_nothing(place: ConformanceSite) -> None:
    near, far = await pair(place)
    near.write([b"before"])
    near.close()
    near.write([b"after"])
    assert await read_all(far) == b"before"
    one, other = await pair(place)
    one.abort()
    one.write([b"into the void"])
    with pytest.raises(ConnectionLostError):
        await other.receive()
    other.write([b"into the void"])


@on_every_runtime
async def test_one_who_is_told_the_end_may_still_answer_a_peer_that_closed(place: ConformanceSite) -> None:
    near, far = await pair(place)
    near.close()
    assert await read_all(far) == b""
    far.write([b"too late, but harmless"])
    far.close()


@on_every_runtime
async def test_a_broken_connection_is_an_error_and_not_an_end(place: ConformanceSite) -> None:
    near, far = await pair(place)
    receiving = asyncio.create_task(far.receive())
    await place.runtime.clock.sleep(0)
    near.abort()
    with pytest.raises(ConnectionLostError):
        await receiving
    with pytest.raises(ConnectionLostError):
        await far.receive()


@on_every_runtime
async def test_abort_drops_what_is_queued(place: ConformanceSite) -> None:
    near, far = await pair(place)
    near.write([bytes(TOO_MUCH)])
    near.abort()
    received = 0
    with pytest.raises(ConnectionLostError):
        while True:
            received += len(await far.receive())
    assert received < TOO_MUCH


@on_every_runtime
async def test_one_who_aborts_receives_no_more_and_is_told_that_it_broke(place: ConformanceSite) -> None:
    near, _far = await pair(place)
    receiving = asyncio.create_task(near.receive())
    await place.runtime.clock.sleep(0)
    near.abort()
    near.abort()
    with pytest.raises(ConnectionLostError):
        await receiving
