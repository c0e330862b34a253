"""Samples that several codecs are made of."""

from random import Random

from weir.wire.entry import encode_entry


def sample_id(dice: Random) -> int:
    """Small ids mostly, the largest at times."""
    return dice.choice((dice.randrange(4), dice.getrandbits(63), 2**63 - 1))


def sample_entry(dice: Random, ledger_id: int | None = None) -> bytes:
    ledger = sample_id(dice) if ledger_id is None else ledger_id
    entry_id = sample_id(dice)
    return encode_entry(ledger, entry_id, entry_id - 1, dice.getrandbits(40), dice.randbytes(dice.randrange(40)))
