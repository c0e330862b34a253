"""Receive buffers: recycled when nobody looks, never while somebody does."""

from weir.runtime.real_buffers import CHUNK_BYTES, BufferPool, Inbox


def fill(inbox: Inbox, data: bytes) -> None:
    left = memoryview(data)
    while left:
        space = inbox.space()
        count = min(len(space), len(left))
        space[:count] = left[:count]
        inbox.filled(count)
        left = left[count:]


def test_a_chunk_is_taken_again_once_its_last_view_is_gone() -> None:
    pool = BufferPool()
    chunk = pool.take()
    identity = id(chunk)
    view = memoryview(chunk)[10:20]
    pool.retire(chunk)
    del chunk
    other = pool.take()
    assert id(other) != identity
    view.release()
    del view
    assert id(pool.take()) == identity


def test_a_slice_of_a_view_is_enough_to_keep_a_chunk() -> None:
    pool = BufferPool()
    chunk = pool.take()
    identity = id(chunk)
    piece = memoryview(memoryview(chunk)[10:20])[2:4]
    pool.retire(chunk)
    del chunk
    assert id(pool.take()) != identity
    assert len(piece) == 2


def test_bytes_come_out_of_the_inbox_in_order_and_whole() -> None:
    inbox = Inbox(BufferPool())
    data = bytes(i % 251 for i in range(3 * CHUNK_BYTES))
    out = bytearray()
    for start in range(0, len(data), 50_000):
        fill(inbox, data[start : start + 50_000])
        if start % 100_000 == 0:
            out += inbox.take()
    while inbox.size:
        out += inbox.take()
    assert bytes(out) == data


def test_a_held_slice_is_never_overwritten_by_later_bytes() -> None:
    inbox = Inbox(BufferPool())
    fill(inbox, b"\x01" * 1000)
    held = inbox.take()
    for _ in range(100):
        fill(inbox, b"\x02" * (CHUNK_BYTES // 2))
        while inbox.size:
            inbox.take()
    assert bytes(held) == b"\x01" * 1000
