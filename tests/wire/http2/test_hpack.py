"""Header blocks, judged by the package hpack."""

import hpack
from hypothesis import given
from hypothesis import strategies as st

from weir.wire.http2 import huffman
from weir.wire.http2.hpack import HeaderDecoder, encode

_NAMES = st.sampled_from([b":path", b"accept", b"x-mq-date-time", b"a", b"content-type"]) | st.binary(
    min_size=1, max_size=20
)
_BLOCKS = st.lists(st.lists(st.tuples(_NAMES, st.binary(max_size=60)), max_size=20), max_size=20)


@given(_BLOCKS, st.booleans())
def test_what_another_encoder_says_is_decoded(
    blocks: list[list[tuple[bytes, bytes]]], huffman_coded: bool
) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1 << 20)
    for number, headers in enumerate(blocks):
        if number == 10:
            encoder.header_table_size = 100
        assert decoder.decode(encoder.encode(headers, huffman=huffman_coded)) == headers


@given(st.lists(st.tuples(_NAMES, st.binary(max_size=400)), max_size=10))
def test_what_is_encoded_another_decoder_reads(headers: list[tuple[bytes, bytes]]) -> None:
    assert [tuple(one) for one in hpack.Decoder().decode(encode(headers), raw=True)] == headers


@given(st.binary(max_size=200))
def test_every_string_comes_out_of_its_huffman_code(text: bytes) -> None:
    encoder = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    )
    assert huffman.decode(encoder.encode(text)) == text
