"""Every codec of `weir.wire`, and those that stand elsewhere, with valid samples, for the fuzz tests.

To put a codec under fuzz, append it to CODECS: a name, a function that makes a valid sample out of dice, and the
decoder. If a checksum would turn most mutations away at the door, give `reseal` too.
"""

from collections.abc import Callable
from random import Random
from struct import pack_into

from weir.model.cluster import BrokerLoad, BundleLoad
from weir.model.errors import BookieError
from weir.model.ids import NO_ENTRY, BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.testing.codecs.files import FILE_CODECS
from weir.testing.codecs.fuzzing import Codec, reseal_rest
from weir.testing.codecs.kafka_samples import KAFKA_CODECS
from weir.testing.codecs.meta_samples import META_CODECS
from weir.testing.codecs.peer_samples import PEER_CODECS
from weir.testing.codecs.record_samples import RECORD_CODECS
from weir.testing.codecs.samples import sample_entry, sample_id
from weir.testing.codecs.snapshots import SNAPSHOT_CODECS
from weir.testing.codecs.state_samples import STATE_CODECS
from weir.wire import bookie, metadata
from weir.wire import bookie as bookie_hello
from weir.wire.bookie import error_from, failed_from
from weir.wire.broker_load import decode_load, encode_load
from weir.wire.checksum import crc32c
from weir.wire.entry import decode_entry
from weir.wire.node.frames import CRC_BYTES, PREFIX_BYTES, FrameSplitter

# --- samples ------------------------------------------------------------------------------------------------


def _sample_entries(dice: Random, ledger_id: int) -> list[tuple[EntryId, Buffer]]:
    encoded = [sample_entry(dice, ledger_id) for _ in range(dice.randrange(4))]
    return [(decode_entry(data).entry_id, data) for data in encoded]


def sample_request(dice: Random) -> bytes:
    """A request frame's body."""
    request, ledger, first = dice.getrandbits(64), LedgerId(sample_id(dice)), EntryId(sample_id(dice))
    make: Callable[[], bytes] = dice.choice(
        (
            lambda: b"".join(
                bookie.encode_add(request, ledger, _sample_entries(dice, ledger), recovery=bool(dice.randrange(2)))
            ),
            lambda: bookie.encode_read(request, ledger, first, EntryId(2**63 - 1), dice.getrandbits(32)),
            lambda: bookie.encode_poll(request, ledger, dice.choice((first, NO_ENTRY)), dice.getrandbits(32)),
            lambda: bookie.encode_last_confirmed(request, ledger),
            lambda: bookie.encode_confirm(ledger, first),
            lambda: bookie.encode_fence(request, ledger),
            lambda: bookie.encode_delete(request, ledger),
            lambda: bookie.encode_ping(request),
        )
    )
    return make()[PREFIX_BYTES:]


def sample_response(dice: Random) -> bytes:
    """A response frame's body."""
    request, ledger, last = dice.getrandbits(64), LedgerId(sample_id(dice)), EntryId(sample_id(dice))
    make: Callable[[], bytes] = dice.choice(
        (
            lambda: bookie.encode_done([dice.getrandbits(64) for _ in range(dice.randrange(5))]),
            lambda: b"".join(bookie.encode_entries(request, ledger, last, _sample_entries(dice, ledger))),
            lambda: bookie.encode_confirmed(request, dice.choice((last, NO_ENTRY))),
            lambda: bookie.encode_failed(failed_from(request, BookieError("it failed", hint="do this – or that"))),
        )
    )
    return make()[PREFIX_BYTES:]


def _sample_name(dice: Random) -> BookieId:
    return BookieId(dice.choice(("", "b1", "bookie-ä", "x" * 200)))


def sample_hello(dice: Random) -> bytes:
    hello = bookie_hello.Hello(_sample_name(dice), 1, dice.randrange(1, 2**16), dice.getrandbits(32))
    return bookie_hello.encode_hello(hello)[PREFIX_BYTES:]


def sample_welcome(dice: Random) -> bytes:
    welcome = bookie_hello.Welcome(_sample_name(dice), dice.getrandbits(16), dice.getrandbits(32), 1 << 20)
    return bookie_hello.encode_welcome(welcome)[PREFIX_BYTES:]


def sample_stream(dice: Random) -> bytes:
    """Several frames in a row."""
    bodies = [dice.choice((sample_request, sample_response))(dice) for _ in range(dice.randrange(1, 4))]
    return b"".join(len(body).to_bytes(4, "little") + body for body in bodies)


def sample_ledger(dice: Random) -> bytes:
    ack = dice.randrange(1, 4)
    write = ack + dice.randrange(3)
    quorum = Quorum(write + dice.randrange(3), write, ack)
    bookies = tuple(BookieId(f"b{n}") for n in range(quorum.ensemble))
    fragments = tuple(Fragment(EntryId(n * 10), bookies) for n in range(dice.randrange(1, 4)))
    state = dice.choice(tuple(LedgerState))
    return metadata.encode_ledger(
        LedgerMetadata(LedgerId(sample_id(dice)), quorum, fragments, state, EntryId(sample_id(dice)), 7, 8)
    )


def sample_bookie_info(dice: Random) -> bytes:
    return metadata.encode_bookie_info(
        metadata.BookieInfo(BookieId("b1"), "host", dice.randrange(65536), dice.choice(("", "rack-ö")))
    )


def sample_cookie(dice: Random) -> bytes:
    return metadata.encode_cookie(metadata.Cookie(BookieId("b1"), dice.randbytes(8).hex()))


def sample_load(dice: Random) -> bytes:
    bundles = tuple(
        BundleLoad(f"t/n/0x{n:08x}_0xffffffff", dice.random(), 2.0, 3.0, 4.0, dice.randrange(9))
        for n in range(dice.randrange(4))
    )
    return encode_load(BrokerLoad("b1", bundles, dice.random(), 0.25, 1.0, 2.0, 3.0, 4.0, 7))


# --- decoders and seals --------------------------------------------------------------------------------------


def _decode_stream(data: bytes) -> list[memoryview]:
    """The bytes in pieces through a splitter that takes frames of 256 bytes."""
    splitter = FrameSplitter(256)
    step = 1 + (data[0] if data else 0) % 64
    return [frame for at in range(0, len(data), step) for frame in splitter.feed(data[at : at + step])]


def _decode_response(data: bytes) -> object:
    response = bookie.decode_response(data)
    return error_from(response) if isinstance(response, bookie.Failed) else response


#: Bytes under the checksum of each kind of frame with entries; other kinds are covered to their end.
_COVERED_FIELDS = {bookie.FrameType.ADD: 22, bookie.FrameType.ENTRIES: 29}


def _reseal_body(data: bytearray) -> None:
    if len(data) > CRC_BYTES:
        fields = _COVERED_FIELDS.get(bookie.FrameType(data[CRC_BYTES])) if data[CRC_BYTES] in _KINDS else None
        end = len(data) if fields is None else CRC_BYTES + fields
        pack_into("<I", data, 0, crc32c(memoryview(data)[CRC_BYTES:end]))


_KINDS = frozenset(int(kind) for kind in bookie.FrameType)

CODECS: list[Codec] = [
    Codec("entry", sample_entry, decode_entry, reseal_rest),
    Codec("frames", sample_stream, _decode_stream),
    Codec("bookie hello", sample_hello, bookie_hello.decode_hello, _reseal_body),
    Codec("bookie welcome", sample_welcome, bookie_hello.decode_welcome, _reseal_body),
    Codec("bookie request", sample_request, bookie.decode_request, _reseal_body),
    Codec("bookie response", sample_response, _decode_response, _reseal_body),
    Codec("ledger metadata", sample_ledger, metadata.decode_ledger),
    Codec("bookie registration", sample_bookie_info, metadata.decode_bookie_info),
    Codec("cookie", sample_cookie, metadata.decode_cookie),
    Codec("load report", sample_load, decode_load),
    *FILE_CODECS,
    *SNAPSHOT_CODECS,
    *STATE_CODECS,
    *RECORD_CODECS,
    *KAFKA_CODECS,
    *META_CODECS,
    *PEER_CODECS,
]
