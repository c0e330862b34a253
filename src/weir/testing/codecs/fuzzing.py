"""Feeds decoders with mutated and random bytes, repeatably."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from struct import pack_into

from weir.model.errors import WireError
from weir.wire.checksum import crc32c


@dataclass(frozen=True, slots=True)
class Codec:
    """One decoder under fuzz. `reseal` puts the right checksum into mutated bytes, so that they get past it."""

    name: str
    sample: Callable[[Random], bytes]
    decode: Callable[[bytes], object]
    reseal: Callable[[bytearray], None] | None = None


# --- mutations ----------------------------------------------------------------------------------------------

#: Numbers that break length and count fields.
_EDGES = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def _flip_bit(data: bytearray, dice: Random, _other: bytes) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _truncate(data: bytearray, dice: Random, _other: bytes) -> None:
    del data[dice.randrange(len(data) + 1) :]


def _insert(data: bytearray, dice: Random, _other: bytes) -> None:
    at = dice.randrange(len(data) + 1)
    data[at:at] = dice.randbytes(dice.randrange(1, 9))


def _cut_out(data: bytearray, dice: Random, _other: bytes) -> None:
    at = dice.randrange(len(data) + 1)
    del data[at : at + dice.randrange(1, 9)]


def _edit_number(data: bytearray, dice: Random, _other: bytes) -> None:
    width, letter = dice.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    if len(data) >= width:
        number = dice.choice(_EDGES) if dice.random() < 0.7 else dice.randrange(len(data) + 16)
        pack_into("<" + letter, data, dice.randrange(len(data) - width + 1), number % (1 << 8 * width))


def _splice(data: bytearray, dice: Random, other: bytes) -> None:
    data[dice.randrange(len(data) + 1) :] = other[dice.randrange(len(other) + 1) :]


def _append(data: bytearray, dice: Random, other: bytes) -> None:
    data += other[: dice.randrange(len(other) + 1)]


_MUTATIONS = (_flip_bit, _truncate, _insert, _cut_out, _edit_number, _edit_number, _splice, _append)


def mutate(data: bytes, dice: Random, other: bytes, reseal: Callable[[bytearray], None] | None = None) -> bytes:
    """The bytes with one to three mutations; half of the time with a checksum that is right again."""
    mutated = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        dice.choice(_MUTATIONS)(mutated, dice, other)
    if reseal is not None and dice.random() < 0.5:
        reseal(mutated)
    return bytes(mutated)


def fuzz(codec: Codec, rounds: int, dice: Random) -> int:
    """Feed the decoder `rounds` byte strings: mutated samples, and one in eight random. WireErrors are what it
    may raise; how many it raised is returned, and anything else comes out."""
    refused = 0
    pool = [codec.sample(dice) for _ in range(32)]
    for n in range(rounds):
        if n % 8 == 0:
            pool[dice.randrange(len(pool))] = codec.sample(dice)
            data = dice.randbytes(dice.randrange(200))
        else:
            data = mutate(dice.choice(pool), dice, dice.choice(pool), codec.reseal)
        try:
            codec.decode(data)
        except WireError:
            refused += 1
        except Exception as escaped:
            escaped.add_note(f"{codec.name} let this escape for {data.hex()}")
            raise
    return refused


def reseal_rest(data: bytearray) -> None:
    """For formats that begin with a checksum over all the rest."""
    if len(data) >= 4:
        pack_into("<I", data, 0, crc32c(memoryview(data)[4:]))
