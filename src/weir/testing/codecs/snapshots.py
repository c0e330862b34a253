"""Codecs of what brokers keep in the state of streams, with valid samples, for the fuzz tests."""

from random import Random

from pyroaring import BitMap64

from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, Stored, TransactionState
from weir.testing.codecs.fuzzing import Codec
from weir.wire.snapshots import groups, producers, subscriptions, transactions
from weir.wire.snapshots import groups as positions
from weir.wire.snapshots import subscriptions as retries
from weir.wire.snapshots import transactions as half
from weir.wire.snapshots import transactions as transaction_index


def _bitmap(dice: Random, first: int = 0) -> BitMap64:
    """Single offsets, runs, and some far away, as they come about."""
    found = BitMap64([first + dice.randrange(1000) for _ in range(dice.randrange(20))])
    if dice.random() < 0.5:
        found.add_range(first + 5000, first + 5000 + dice.randrange(3000))
    if dice.random() < 0.2:
        found.add(1 << 40)
    if dice.random() < 0.5:
        found.run_optimize()
    return found


def _text(dice: Random) -> str:
    return dice.choice(("", "name", "Größe", 'a "note"'))


def _topics(dice: Random) -> tuple[TopicName, ...]:
    return tuple(TopicName.parse(f"persistent://acme/sales/t{n}") for n in range(dice.randrange(3)))


def _entries(dice: Random) -> dict[int, int]:
    return {dice.getrandbits(40): dice.getrandbits(20) for _ in range(dice.randrange(3))}


# --- groups ------------------------------------------------------------------------------------------------------


def _member(dice: Random) -> groups.MemberRecord:
    return groups.MemberRecord(
        _text(dice),
        dice.choice((None, "static")),
        _text(dice),
        "10.0.0.1",
        dice.choice((10.0, 0.5)),
        60.0,
        dice.getrandbits(41),
        {"range": dice.randbytes(6), "sticky": b""},
        dice.randbytes(dice.randrange(9)),
        _topics(dice),
        _text(dice),
    )


def sample_group(dice: Random) -> bytes:
    members = tuple(_member(dice) for _ in range(dice.randrange(3)))
    generation = dice.getrandbits(31)
    return groups.encode_group(
        groups.GroupRecord(generation, "consumer", "range", "m", dice.getrandbits(41), members, _text(dice))
    )


def sample_pending(dice: Random) -> bytes:
    held = {
        part: CommittedOffset(dice.getrandbits(62), dice.randrange(-1, 9), _text(dice)) for part in _topics(dice)
    }
    return groups.encode_pending(dice.getrandbits(62), held)


def sample_position(dice: Random) -> bytes:
    said = CommittedOffset(dice.choice((-1, dice.getrandbits(62))), dice.randrange(-1, 9), _text(dice), 1 << 40)
    return positions.encode_position(
        positions.StoredPosition(said, dice.getrandbits(62), dice.choice((0, dice.getrandbits(62) + 1)))
    )


# --- transactions ------------------------------------------------------------------------------------------------


def sample_transaction(dice: Random) -> bytes:
    moved = {part: CommittedOffset(dice.getrandbits(40), -1, _text(dice)) for part in _topics(dice)}
    return transactions.encode_transaction(
        transactions.TransactionRecord(
            dice.getrandbits(62),
            dice.getrandbits(15),
            -1,
            -1,
            dice.choice((-1, 7)),
            _text(dice),
            dice.choice(tuple(TransactionState)),
            60_000,
            dice.getrandbits(41),
            dice.getrandbits(41),
            _topics(dice),
            {"group": moved},
        )
    )


def sample_open(dice: Random) -> bytes:
    return transaction_index.encode_open(
        transaction_index.OpenTransaction(dice.getrandbits(62), dice.getrandbits(40), _bitmap(dice))
        for _ in range(dice.randrange(4))
    )


def sample_piece(dice: Random) -> bytes:
    aborted = tuple(
        transaction_index.Aborted(dice.getrandbits(62), first := dice.getrandbits(40), first + 9, first)
        for _ in range(dice.randrange(4))
    )
    return transaction_index.encode_piece(transaction_index.Piece(aborted, _bitmap(dice)))


def sample_delays(dice: Random) -> bytes:
    opened = {dice.getrandbits(62): _bitmap(dice) for _ in range(dice.randrange(3))}
    return transaction_index.encode_delays(transaction_index.Delays(opened, _bitmap(dice), _entries(dice)))


# --- producers and subscriptions ---------------------------------------------------------------------------------


def sample_producers(dice: Random) -> bytes:
    def stored() -> Stored:
        first = dice.getrandbits(20)
        return Stored(dice.getrandbits(15), first, first + 4, dice.getrandbits(40), dice.getrandbits(32))

    records = [
        producers.ProducerRecord(
            dice.getrandbits(62),
            dice.getrandbits(15),
            dice.randrange(-1, 1 << 31),
            dice.getrandbits(41),
            dice.randrange(-1, 9),
            [stored() for _ in range(dice.randrange(5))],
        )
        for _ in range(dice.randrange(4))
    ]
    return producers.encode_producers(dice.getrandbits(40), records)


def sample_dedup(dice: Random) -> bytes:
    names = {f"{_text(dice)}{n}": (dice.getrandbits(40), dice.getrandbits(41)) for n in range(dice.randrange(4))}
    return producers.encode_dedup(producers.DedupSnapshot(dice.getrandbits(40), _entries(dice), names))


def sample_half(dice: Random) -> bytes:
    entries = [dice.getrandbits(dice.choice((4, 20))) for _ in range(dice.randrange(9))]
    committed = BitMap64(entries[::2])
    rolled_back = BitMap64(entries[1::2]) - committed
    checks = {dice.getrandbits(30): (dice.randrange(16), dice.getrandbits(41)) for _ in range(dice.randrange(3))}
    return half.encode_half(half.HalfRecord(committed, rolled_back, checks, dice.choice((0, 99))))


def sample_held_stamps(dice: Random) -> bytes:
    last = {dice.getrandbits(62): (dice.getrandbits(15), dice.getrandbits(31)) for _ in range(dice.randrange(4))}
    return producers.encode_held_stamps(producers.HeldStampsRecord(last, _entries(dice)))


def sample_retries(dice: Random) -> bytes:
    def due() -> dict[int, BitMap64]:
        return {dice.randrange(1 << 50): _bitmap(dice, 0) for _ in range(dice.randrange(3))}

    digits = [_bitmap(dice, 0) for _ in range(dice.randrange(4))]
    return retries.encode_retries(retries.RetryState(digits, due(), due()))


def sample_cursor(dice: Random) -> bytes:
    mark_delete = dice.randrange(-1, 1 << 30)
    return subscriptions.encode_cursor(mark_delete, _bitmap(dice, mark_delete + 2))


SNAPSHOT_CODECS: list[Codec] = [
    Codec("consumer group", sample_group, groups.decode_group),
    Codec(
        "a member's departure",
        lambda dice: groups.encode_departure(_text(dice), _text(dice)),
        groups.decode_departure,
    ),
    Codec("a group's partitions", lambda dice: groups.encode_parts(_topics(dice)), groups.decode_parts),
    Codec("committed position", sample_position, positions.decode_position),
    Codec("positions held ready", sample_pending, groups.decode_pending),
    Codec("transaction", sample_transaction, transactions.decode_transaction),
    Codec(
        "sink",
        lambda dice: transactions.encode_sink(dice.getrandbits(40), _text(dice)),
        transactions.decode_sink,
    ),
    Codec("open transactions", sample_open, transaction_index.decode_open),
    Codec("decided transactions", sample_piece, transaction_index.decode_piece),
    Codec("delays in transactions", sample_delays, transaction_index.decode_delays),
    Codec("idempotent producers", sample_producers, producers.decode_producers),
    Codec("deduplication", sample_dedup, producers.decode_dedup),
    Codec("stamps of what is held", sample_held_stamps, producers.decode_held_stamps),
    Codec("half messages of a ledger", sample_half, half.decode_half),
    Codec("topic epoch", lambda dice: producers.encode_epoch(dice.getrandbits(40)), producers.decode_epoch),
    Codec(
        "subscription",
        lambda dice: subscriptions.encode_subscription({_text(dice): _text(dice)}),
        subscriptions.decode_subscription,
    ),
    Codec("cursor", sample_cursor, subscriptions.decode_cursor),
    Codec("retries", sample_retries, retries.decode_retries),
]
