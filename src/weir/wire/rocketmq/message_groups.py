"""Which queue a message group is in: by SipHash-2-4, as RocketMQ's client for Java chooses, so that what it sends
comes to the right broker at once."""

from functools import lru_cache

_MASK = 0xFFFF_FFFF_FFFF_FFFF
#: The key that these clients use: the bytes 0 to 15.
_KEY0, _KEY1 = 0x0706050403020100, 0x0F0E0D0C0B0A0908
_SIGN = 1 << 63


@lru_cache(maxsize=16_384)
def queue_of(group: str, queues: int) -> int:
    """One of so many queues. The hash is taken for a signed number, as Java does."""
    hashed = siphash(group.encode())
    return (hashed - 2 * _SIGN if hashed & _SIGN else hashed) % queues


def siphash(data: bytes) -> int:
    """SipHash-2-4 of the data, an unsigned number of 64 bits."""
    a, b = _KEY0 ^ 0x736F6D6570736575, _KEY1 ^ 0x646F72616E646F6D
    c, d = _KEY0 ^ 0x6C7967656E657261, _KEY1 ^ 0x7465646279746573
    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        a, b, c, d = _round(*_round(a, b, c, d ^ word))
        a ^= word
    c ^= 0xFF
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & _MASK
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c = (c + d) & _MASK
    d = _rotated(d, 16) ^ c
    a = (a + d) & _MASK
    d = _rotated(d, 21) ^ a
    c = (c + b) & _MASK
    b = _rotated(b, 17) ^ c
    return a, b, _rotated(c, 32), d


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK
