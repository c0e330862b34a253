"""A run of neighbouring keys of the metadata as bytes: packed together, since neighbours look alike.

    zstd of: count u32 | (key length u16 | value length u32 | version u64 | leased u8) x count | keys | values

A snapshot of the embedded store holds such blocks, and so does its memory for keys that nobody uses; a million
topics take some 20 bytes each (docs/adr/0027).
"""

from collections.abc import Callable, Container, Sequence
from struct import Struct, error
from typing import TypeVar

from cramjam import CompressionError, DecompressionError, zstd

from weir.model.errors import WireError

_COUNT = Struct("<I")
_ITEM = Struct("<HIQB")
#: Fast: blocks are packed while others wait.
_LEVEL = 1


def pack_block(items: Sequence[tuple[str, bytes, int]], leased: Container[str] = ()) -> bytes:
    """The items, and which of their keys are leased."""
    names = [key.encode() for key, _, _ in items]
    heads = [
        _ITEM.pack(len(name), len(value), version, key in leased)
        for name, (key, value, version) in zip(names, items, strict=True)
    ]
    raw = b"".join([_COUNT.pack(len(items)), *heads, *names, *(value for _, value, _ in items)])
    try:
        return bytes(zstd.compress(raw, _LEVEL))
    except CompressionError as bad:
        raise WireError(f"keys cannot be packed: {bad}") from bad


T = TypeVar("T")


def unpack_block(packed: bytes, make: Callable[[str, bytes, int], T]) -> tuple[list[T], list[str]]:
    """The items, made of key, value and version, and those of their keys that are leased."""
    try:
        raw = bytes(zstd.decompress(packed))
        (count,) = _COUNT.unpack_from(raw)
        name_at = _COUNT.size + count * _ITEM.size
        heads = list(_ITEM.iter_unpack(raw[_COUNT.size : name_at]))
        value_at = name_at + sum(head[0] for head in heads)
        items: list[T] = []
        leased: list[str] = []
        for name_bytes, value_bytes, version, flag in heads:
            name_end, value_end = name_at + name_bytes, value_at + value_bytes
            key = raw[name_at:name_end].decode()
            items.append(make(key, raw[value_at:value_end], version))
            if flag:
                leased.append(key)
            name_at, value_at = name_end, value_end
    except (DecompressionError, error, UnicodeDecodeError) as bad:
        raise WireError(f"a block of keys cannot be unpacked: {bad}") from bad
    if len(items) != count or value_at != len(raw):
        raise WireError(f"a block of keys has {len(raw)} bytes instead of {value_at}")
    return items, leased
