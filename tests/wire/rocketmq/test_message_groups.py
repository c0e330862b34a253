"""Which queue a message group is in, against the published vectors of SipHash-2-4."""

import pytest

from weir.wire.rocketmq.message import queue_of, siphash


@pytest.mark.parametrize(
    ("length", "hashed"),
    [(0, 0x726FDB47DD0E0E31), (1, 0x74F839C593DC67FD), (8, 0x93F5F5799A932462), (15, 0xA129CA6149BE45E5)],
)
def test_the_hash_is_siphash(length: int, hashed: int) -> None:
    assert siphash(bytes(range(length))) == hashed


def test_a_group_is_in_the_queue_that_javas_client_chooses() -> None:
    hashed = siphash(b"orders")
    signed = hashed - (1 << 64) if hashed >> 63 else hashed
    assert [queue_of("orders", queues) for queues in range(1, 9)] == [signed % queues for queues in range(1, 9)]
