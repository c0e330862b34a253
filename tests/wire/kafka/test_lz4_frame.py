"""LZ4 frames as Kafka's Java clients and brokers read them."""

import pytest

from weir.wire.kafka.compression import compressor, decompress
from weir.wire.kafka.record_batch import Compression

#: Of the frame's first byte behind the magic ones: its version; that no block needs another.
_VERSION_1, _INDEPENDENT = 0x40, 0x20
_SAMPLES = {
    "nothing": b"",
    "one block": b"abc" * 100,
    "several blocks": b"weir" * 50_000,
    "what does not shrink": bytes(range(256)) * 10,
}


@pytest.mark.parametrize("sample", _SAMPLES)
def test_what_was_compressed_comes_out_again(sample: str) -> None:
    compress = compressor(Compression.LZ4)
    assert compress is not None
    packed = compress(_SAMPLES[sample])
    assert bytes(decompress(Compression.LZ4, packed)) == _SAMPLES[sample]


def test_blocks_are_independent_as_java_wants_them() -> None:
    compress = compressor(Compression.LZ4)
    assert compress is not None
    assert compress(b"abc" * 50_000)[4] == _VERSION_1 | _INDEPENDENT
