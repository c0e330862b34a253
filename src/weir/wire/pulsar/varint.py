"""Protobuf's variable-length integers, for the few commands that are built by hand."""

MAX_U64 = 2**64 - 1


def varint(value: int) -> bytes:
    """`value` in groups of seven bits, the low ones first. A negative one is sent as its 64-bit complement."""
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    if 0 <= value < 0x4000:
        return (value & 0x7F | 0x80 | value >> 7 << 8).to_bytes(2, "little")
    if 0 <= value < 0x200000:
        return (value & 0x7F | 0x8080 | (value & 0x3F80) << 1 | value >> 14 << 16).to_bytes(3, "little")
    value &= MAX_U64
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
