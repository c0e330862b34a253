"""Receive buffers: recycled when nobody looks, never while somebody does; held only while bytes come."""

import asyncio
from random import Random

import pytest

from weir.runtime.real_buffers import CHUNK_BYTES, COPIED_BYTES, BufferPool, Inbox
from weir.runtime.real_net import RealNetwork

MANY = COPIED_BYTES + 1


def fill(inbox: Inbox, data: bytes) -> None:
    left = memoryview(data)
    while left:
        space = inbox.space()
        count = min(len(space), len(left))
        space[:count] = left[:count]
        inbox.filled(count)
        left = left[count:]


def room(inbox: Inbox) -> int:
    return len(inbox.space())


def test_a_chunk_is_filled_from_its_start_once_its_last_view_is_gone() -> None:
    pool = BufferPool()
    inbox = Inbox(pool)
    fill(inbox, bytes(MANY))
    held = inbox.take()
    inbox.finish()
    assert room(inbox) == CHUNK_BYTES - MANY
    piece = held[10:20][2:4]
    del held
    assert room(inbox) == CHUNK_BYTES - MANY  # a slice of a view is enough
    del piece
    assert room(inbox) == CHUNK_BYTES


def test_a_full_chunk_is_taken_again_once_nobody_looks() -> None:
    pool = BufferPool()
    inbox = Inbox(pool)
    fill(inbox, bytes(CHUNK_BYTES))
    chunk = inbox._chunk
    held = inbox.take()
    inbox.finish()
    assert pool.lend() is not chunk
    del held
    pool.open.clear()
    assert pool.lend() is chunk


def test_few_bytes_leave_the_chunk_to_others() -> None:
    pool = BufferPool()
    inboxes = [Inbox(pool) for _ in range(100)]
    for number, inbox in enumerate(inboxes):
        fill(inbox, bytes([number]) * COPIED_BYTES)
    assert len(pool.open) == 1
    assert room(inboxes[0]) == CHUNK_BYTES
    assert [bytes(inbox.take()) for inbox in inboxes] == [bytes([number]) * COPIED_BYTES for number in range(100)]


def test_a_read_that_brings_nothing_takes_nothing() -> None:
    pool = BufferPool()
    inbox, other = Inbox(pool), Inbox(pool)
    inbox.space()
    fill(other, b"x" * MANY)
    assert other.take() == b"x" * MANY
    assert inbox.size == 0


@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_out_in_order_and_whole_whoever_else_receives_meanwhile(seed: int) -> None:
    dice = Random(seed)
    pool = BufferPool()
    inboxes = [Inbox(pool) for _ in range(4)]
    sent, got = [bytearray() for _ in inboxes], [bytearray() for _ in inboxes]
    held: list[tuple[memoryview, bytes]] = []
    for _ in range(400):
        at = dice.randrange(4)
        data = dice.randbytes(8) * dice.choice((1, 50, 512, 513, 4_000, 20_000))
        fill(inboxes[at], data)
        sent[at] += data
        while inboxes[at].size and dice.random() < 0.7:
            taken = inboxes[at].take()
            got[at] += taken
            held.append((taken, bytes(taken)))
        if dice.random() < 0.3:
            inboxes[at].finish()
        if dice.random() < 0.1:
            assert all(view == copy for view, copy in held)  # nothing was written over
            held = held[-dice.randrange(20) :]
    for at, inbox in enumerate(inboxes):
        while inbox.size:
            got[at] += inbox.take()
    assert got == sent


def test_a_held_slice_is_never_overwritten_by_later_bytes() -> None:
    inbox = Inbox(BufferPool())
    fill(inbox, b"\x01" * MANY)
    held = inbox.take()
    for _ in range(100):
        fill(inbox, b"\x02" * (CHUNK_BYTES // 2))
        while inbox.size:
            inbox.take()
    assert bytes(held) == b"\x01" * MANY


@pytest.mark.parametrize("size", [10, 10_000], ids=["few bytes", "many bytes"])
def test_connections_that_wait_hold_no_chunk(size: int) -> None:
    async def serve() -> None:
        net = RealNetwork()
        listener = await net.listen("127.0.0.1", 0)
        pairs = []
        for _ in range(50):
            client = await net.connect("127.0.0.1", listener.port)
            pairs.append((client, await listener.accept()))
        for client, _ in pairs:
            client.write([bytes(size)])
        for _, served in pairs:
            left = size
            while left:
                left -= len(await served.receive())
        waiting = [asyncio.ensure_future(served.receive()) for _, served in pairs]
        await asyncio.sleep(0)
        assert all(served._inbox._chunk is None for _, served in pairs)
        for client, _ in pairs:
            client.close()
        async with asyncio.timeout(60):
            assert [bytes(await end) for end in waiting] == [b""] * 50
        listener.close()

    asyncio.run(serve())


def test_what_nobody_takes_is_bounded_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.runtime.real_buffers._CROWDED_BYTES", CHUNK_BYTES)

    async def serve() -> None:
        net = RealNetwork()
        listener = await net.listen("127.0.0.1", 0)
        pairs = []
        for _ in range(30):
            client = await net.connect("127.0.0.1", listener.port)
            pairs.append((client, await listener.accept()))
        for client, _ in pairs:
            client.write([bytes(1024 * 1024)])
        async with asyncio.timeout(60):
            while not all(served._inbox.size for _, served in pairs):
                await asyncio.sleep(0.01)
        most = net._pool.waiting
        taken = []
        async with asyncio.timeout(60):
            for _, served in pairs:
                left = 1024 * 1024
                while left:
                    left -= len(await served.receive())
                    most = max(most, net._pool.waiting)
                taken.append(left)
        assert most <= 30 * 16 * 1024 + 3 * CHUNK_BYTES  # of 30 MiB
        assert net._pool.waiting == 0
        pairs[0][0].write([bytes(100_000)])
        async with asyncio.timeout(60):
            while not net._pool.waiting:
                await asyncio.sleep(0.01)
        for client, served in pairs:
            served.close()
            client.close()
        assert net._pool.waiting == 0  # whoever ends takes nothing with it
        listener.close()

    asyncio.run(serve())


def test_what_came_in_small_pieces_is_taken_together() -> None:
    inbox = Inbox(BufferPool())
    for piece in (b"a", b"b", b"c" * COPIED_BYTES):
        fill(inbox, piece)
    fill(inbox, b"d" * MANY)
    assert bytes(inbox.take()) == b"ab" + b"c" * COPIED_BYTES
    assert bytes(inbox.take()) == b"d" * MANY
    assert inbox.size == 0
