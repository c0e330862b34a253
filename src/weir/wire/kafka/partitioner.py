"""Which partition a key belongs to, as Kafka's own clients choose it: murmur2."""

_M = 0x5BD1E995
_SEED = 0x9747B28C
_ALL = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """32 bits, without a sign."""
    size = len(data)
    found = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _M & _ALL
        part = (part ^ part >> 24) * _M & _ALL
        found = (found * _M & _ALL) ^ part
    if size & 3:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _M & _ALL
    found = (found ^ found >> 13) * _M & _ALL
    return found ^ found >> 15


def partition_of(key: bytes, count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % count
