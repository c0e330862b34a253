"""Random and mutated bytes: a decoder answers a value or a WireError, whatever it is fed."""

from random import Random
from struct import error as struct_error
from struct import unpack_from

import pytest

from weir.testing.codecs.every import CODECS
from weir.testing.codecs.fuzzing import Codec, fuzz
from weir.testing.kinds import rounds

#: The promise is 100,000 over all codecs in every run of the tests; each seed is fixed, so a failure repeats.
ROUNDS = max(10_000, 200_000 // len(CODECS))


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_decoder_raises_nothing_but_wire_errors(codec: Codec) -> None:
    refused = fuzz(codec, rounds(ROUNDS), Random(f"fuzz {codec.name}"))
    assert refused > rounds(ROUNDS) // 8, "the mutations hardly break anything; is the sample far too lax?"


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_every_sample_that_is_not_mutated_decodes(codec: Codec) -> None:
    dice = Random(f"samples {codec.name}")
    for _ in range(200):
        codec.decode(codec.sample(dice))


@pytest.mark.parametrize("codec", [c for c in CODECS if c.reseal], ids=lambda codec: codec.name)
def test_resealed_samples_still_decode_so_that_mutations_reach_behind_the_checksum(codec: Codec) -> None:
    dice = Random(f"reseal {codec.name}")
    assert codec.reseal is not None
    for _ in range(200):
        data = bytearray(codec.sample(dice))
        codec.reseal(data)
        codec.decode(bytes(data))


def test_together_they_are_at_least_a_hundred_thousand() -> None:
    assert ROUNDS * len(CODECS) >= 100_000


def test_the_fuzz_finds_a_decoder_that_lets_another_error_escape() -> None:
    careless = Codec("careless", lambda dice: dice.randbytes(8), lambda data: unpack_from("<Q", data))
    with pytest.raises(struct_error):
        fuzz(careless, 1000, Random(1))
