"""Finds the id of a metadata file whose header is damaged, so that its records can still be checked.

The id seeds the checksum of each record. CRC32C is linear over GF(2): each bit of the id always flips the same
bits of the checksum. So a whole record shows the id, and a second record, or the similarity to what the header
says, confirms it."""

from collections.abc import Iterator, Sequence

from weir.model.errors import WireError
from weir.wire.metalog import HEADER_BYTES, decode_record, find_record, record_checksums, record_offsets

_ID_BITS = 64
#: The checksum determines so many bits of the id; ids that differ in the others seed the same checksums.
_FOUND_BITS = 32
#: Records that are tried.
_CANDIDATES = 16


def find_file_id(data: bytes) -> int | None:
    """An id for which records of the file are valid, or None if nothing confirms one."""
    claimed = int.from_bytes(data[12:20], "little")
    if find_record(data, HEADER_BYTES, claimed) is not None:
        return claimed
    tried = []
    for _, offset in zip(range(_CANDIDATES), record_offsets(data, HEADER_BYTES), strict=False):
        checksums = record_checksums(data, offset, [claimed, 0, *(1 << bit for bit in range(_ID_BITS))])
        if checksums is None:
            continue
        stored, of_claimed, of_zero, *of_bits = checksums
        effects = [each ^ of_zero for each in of_bits]
        tried.append((offset, stored ^ of_claimed, effects))
        found = _solve(effects[:_FOUND_BITS], stored ^ of_zero)
        if found is not None and _is_confirmed(data, offset, found):
            return found
    for _, difference, effects in tried:
        delta = _two_bytes(effects, difference)
        if delta is not None:
            return claimed ^ delta
    return None


def _is_confirmed(data: bytes, offset: int, file_id: int) -> bool:
    """Whether the record at the offset, which any checksum fits, and another one behind it are whole."""
    try:
        record = decode_record(data, offset, file_id)
    except WireError:  # a damaged length made it one
        return False
    return find_record(data, record.end, file_id) is not None


def _solve(effects: Sequence[int], wanted: int) -> int | None:
    """The bits whose effects together are the wanted one."""
    basis: dict[int, tuple[int, int]] = {}
    for number, effect in enumerate(effects):
        rest, bits = _reduced(basis, effect)
        if rest:
            basis[rest.bit_length()] = rest, bits ^ (1 << number)
    rest, bits = _reduced(basis, wanted)
    return None if rest else bits


def _reduced(basis: dict[int, tuple[int, int]], value: int) -> tuple[int, int]:
    """The value without what the basis spans, and the bits that took it away."""
    bits = 0
    for length in range(_FOUND_BITS, 0, -1):
        if value.bit_length() == length and length in basis:
            value ^= basis[length][0]
            bits ^= basis[length][1]
    return value, bits


def _two_bytes(effects: Sequence[int], wanted: int) -> int | None:
    """A change of at most two bytes that has the wanted effect. More would fit any checksum by chance."""
    deltas = {0: 0, **{effect: delta for delta, effect in _single_bytes(effects)}}
    return next(
        (delta ^ deltas[effect ^ wanted] for effect, delta in deltas.items() if effect ^ wanted in deltas), None
    )


def _single_bytes(effects: Sequence[int]) -> Iterator[tuple[int, int]]:
    for shift in range(0, _ID_BITS, 8):
        for value in range(1, 256):
            effect = 0
            for bit in range(8):
                if value >> bit & 1:
                    effect ^= effects[shift + bit]
            yield value << shift, effect
