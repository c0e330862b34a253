"""LZ4 as Kafka's clients write it: a frame of blocks that do not need one another.

Java's clients and brokers read no other frames; the library that compresses writes linked blocks.
"""

from cramjam import lz4

from weir.model.ids import Buffer

#: Magic, version 1 with independent blocks and no checksums, blocks of 64 KiB; the checksum of those two bytes.
_HEAD = b"\x04\x22\x4d\x18\x60\x40\x82"
_BLOCK_BYTES = 64 * 1024
#: In a block's size: it is not compressed.
_PLAIN = 1 << 31
_END = bytes(4)


def lz4_frame(data: Buffer) -> bytes:
    """All of `data`, compressed."""
    view = memoryview(data)
    parts = [_HEAD]
    for at in range(0, len(view), _BLOCK_BYTES):
        block = view[at : at + _BLOCK_BYTES]
        packed = bytes(lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += (len(packed).to_bytes(4, "little"), packed)
        else:
            parts += ((len(block) | _PLAIN).to_bytes(4, "little"), bytes(block))
    parts.append(_END)
    return b"".join(parts)
