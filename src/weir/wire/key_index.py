"""Where the messages of a key are: the codec of an index of keys.

A run is a ledger: entry 0 is its head, and each of the 2^bits entries behind it a bucket, by the first bits of a
key's hash. A bucket is a number of records, in no order that matters.

    head:   magic 4s | version u8 | bits u8 | first offset u64 | end offset u64 | records u64
    record: hash 8s | offset u64

    state: version u8 | number of runs u32 | (ledger u64 | first u64 | end u64 | records u64 | bits u8 | level u8)*
           | ledgers that are to go u32 | u64*

Numbers are little-endian.
"""

from hashlib import blake2b
from struct import Struct, error

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer, value

VERSION = 1
_MAGIC = b"WKIX"
_HEAD = Struct("<4sBBQQQ")
_RECORD = Struct("<8sQ")
_STATE = Struct("<BI")
_RUN = Struct("<QQQQBB")
_U32 = Struct("<I")
_U64 = Struct("<Q")
RECORD_BYTES = _RECORD.size
HASH_BYTES = 8


@value
class Run:
    """What is known of the keys of the messages in [first, end): a ledger with so many records. `level`: how often
    smaller ones were merged to it."""

    ledger: int
    first: int
    end: int
    records: int
    bits: int
    level: int


def key_hash(key: bytes) -> bytes:
    """The same for ever: it is stored."""
    return blake2b(key, digest_size=HASH_BYTES).digest()


def encode_record(hashed: bytes, offset: int) -> bytes:
    return _RECORD.pack(hashed, offset)


def bucket_of(hashed: Buffer, bits: int) -> int:
    """By the first bits of a hash, or of a record, which begins with one."""
    return (hashed[0] << 24 | hashed[1] << 16 | hashed[2] << 8 | hashed[3]) >> (32 - bits)


def encode_head(run: Run) -> bytes:
    return _HEAD.pack(_MAGIC, VERSION, run.bits, run.first, run.end, run.records)


def check_head(data: Buffer, run: Run) -> None:
    """WireError if it is another's."""
    try:
        magic, version, bits, first, end, records = _HEAD.unpack(data)
    except error as bad:
        raise WireError(f"the head of an index of keys is malformed: {bad}") from bad
    if (magic, version, bits, first, end, records) != (_MAGIC, VERSION, run.bits, run.first, run.end, run.records):
        raise WireError("the head of an index of keys does not belong to it")


def offsets_in(bucket: Buffer, hashed: bytes) -> list[int]:
    """The offsets that a bucket has for a hash, ascending."""
    data = bytes(bucket)
    if len(data) % RECORD_BYTES:
        raise WireError("a bucket of an index of keys is malformed")
    found: list[int] = []
    at = data.find(hashed)
    while at >= 0:
        if at % RECORD_BYTES == 0:
            found.append(_U64.unpack_from(data, at + HASH_BYTES)[0])
        at = data.find(hashed, at + 1)
    return sorted(found)


def encode_state(runs: list[Run], left: list[int]) -> bytes:
    parts = [_STATE.pack(VERSION, len(runs))]
    parts += [_RUN.pack(run.ledger, run.first, run.end, run.records, run.bits, run.level) for run in runs]
    parts.append(_U32.pack(len(left)))
    parts += [_U64.pack(ledger) for ledger in left]
    return b"".join(parts)


def decode_state(data: Buffer) -> tuple[list[Run], list[int]]:
    try:
        version, count = _STATE.unpack_from(data)
        if version != VERSION:
            raise UnknownVersionError(f"an index of keys of version {version}", hint="of a newer Weir?")
        at = _STATE.size
        runs = []
        for _ in range(count):
            runs.append(Run(*_RUN.unpack_from(data, at)))
            at += _RUN.size
        (left_count,) = _U32.unpack_from(data, at)
        at += _U32.size
        left = [_U64.unpack_from(data, at + place * _U64.size)[0] for place in range(left_count)]
    except error as bad:
        raise WireError(f"the record of an index of keys is malformed: {bad}") from bad
    return runs, left
