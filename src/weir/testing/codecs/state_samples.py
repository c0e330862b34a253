"""Samples of what the storage keeps about itself: compactions, marks of ledgers to be repaired, lost entries."""

from random import Random

from pyroaring import BitMap64

from weir.ledger.losses import LostRun, decode_runs, encode_runs
from weir.ledger.marks import decode_suspects, encode_suspects
from weir.model.exchanges import Binding, Destination, Exchange, ExchangeType, StoredBinding, StoredExchange
from weir.model.ids import BookieId, LedgerId
from weir.stream.compaction_record import Compacted
from weir.testing.codecs.fuzzing import Codec
from weir.wire.exchanges import decode_record, encode_record


def _offsets(dice: Random) -> BitMap64:
    return BitMap64(dice.getrandbits(dice.choice((8, 40))) for _ in range(dice.randrange(9)))


def sample_compacted(dice: Random) -> bytes:
    tombstones = tuple((dice.getrandbits(41), _offsets(dice)) for _ in range(dice.randrange(3)))
    ledger_id = dice.choice((None, LedgerId(dice.getrandbits(40))))
    horizon, start = dice.getrandbits(40), dice.getrandbits(20)
    return Compacted(
        horizon, ledger_id, 7, _offsets(dice), start, 99, 5, tombstones, dice.random() < 0.5
    ).to_bytes()


def sample_suspects(dice: Random) -> bytes:
    return encode_suspects(tuple(BookieId(f"b{n}") for n in range(dice.randrange(4))))


def sample_runs(dice: Random) -> bytes:
    first = dice.getrandbits(20)
    return encode_runs(
        tuple(LostRun(first, first + n, -1, dice.getrandbits(40), 5, "b1: ö") for n in range(dice.randrange(4)))
    )


def sample_exchange_record(dice: Random) -> bytes:
    arguments = {"alternate-exchange": "other", "t": [1, b"x", {"n": None}]} if dice.random() < 0.5 else {}
    if dice.random() < 0.5:
        kind = dice.choice((ExchangeType.TOPIC, ExchangeType.HEADERS))
        return encode_record(StoredExchange(Exchange(f"x{dice.getrandbits(9)}", kind, arguments=arguments), "id"))
    to = Destination(f"q{dice.getrandbits(9)}", exchange=dice.random() < 0.5)
    return encode_record(StoredBinding(Binding("x", to, "a.*.#", arguments), "id", "other"))


STATE_CODECS = [
    Codec("exchange or binding", sample_exchange_record, decode_record),
    Codec("finished compaction", sample_compacted, Compacted.from_bytes),
    Codec("mark of an under-replicated ledger", sample_suspects, decode_suspects),
    Codec("lost entries", sample_runs, decode_runs),
]
