"""Files of the embedded metadata store as bytes: a header, then records, in logs and snapshots alike.

    header: magic 8 | crc32c u32 | file id u64 | revision u64 | records u64
    record: magic u32 | crc32c u32 | key length u32 | value length u32 | flags u32 | revision u64 | durable u64
            | key | value

Every version of the format has this header: a header of an unknown version is believed only if its checksum, which
covers the version, is right. Otherwise it is damaged.

A log's header names the revision of its first record; a snapshot's the revision that it was taken at, and how
many records it has. A record of a snapshot is a block of neighbouring keys (`wire.metablock`): its key is the
first of them, its revision their number, and it is leased if one of them is.

A record's checksum is seeded with the file's id and the record's offset, so that only a record of this file at
this place is valid: not one that a value happens to contain, not one left from before.
`durable` is the revision up to which the log was known to be durable when the record was written; it lets
recovery tell a torn tail from damage (docs/adr/0005).

A run of neighbouring keys of the metadata as bytes: packed together, since neighbours look alike.

    zstd of: count u32 | (key length u16 | value length u32 | version u64 | leased u8) x count | keys | values

A snapshot of the embedded store holds such blocks, and so does its memory for keys that nobody uses; a million
topics take some 20 bytes each (docs/adr/0027).
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from struct import Struct, error
from typing import NamedTuple, TypeVar

from cramjam import CompressionError, DecompressionError, zstd

from weir.model.errors import ChecksumError, FrameTooLargeError, UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.checksum import crc32c

_COUNT = Struct("<I")
_ITEM = Struct("<HIQB")
#: Fast: blocks are packed while others wait.
_LEVEL = 1


def pack_block(items: Sequence[tuple[str, bytes, int]], leased: Container[str] = ()) -> bytes:
    """The items, and which of their keys are leased."""
    names = [key.encode() for key, _, _ in items]
    heads = [
        _ITEM.pack(len(name), len(value), version, key in leased)
        for name, (key, value, version) in zip(names, items, strict=True)
    ]
    raw = b"".join([_COUNT.pack(len(items)), *heads, *names, *(value for _, value, _ in items)])
    try:
        return bytes(zstd.compress(raw, _LEVEL))
    except CompressionError as bad:
        raise WireError(f"keys cannot be packed: {bad}") from bad


T = TypeVar("T")


def unpack_block(packed: bytes, make: Callable[[str, bytes, int], T]) -> tuple[list[T], list[str]]:
    """The items, made of key, value and version, and those of their keys that are leased."""
    try:
        raw = bytes(zstd.decompress(packed))
        (count,) = _COUNT.unpack_from(raw)
        name_at = _COUNT.size + count * _ITEM.size
        heads = list(_ITEM.iter_unpack(raw[_COUNT.size : name_at]))
        value_at = name_at + sum(head[0] for head in heads)
        items: list[T] = []
        leased: list[str] = []
        for name_bytes, value_bytes, version, flag in heads:
            name_end, value_end = name_at + name_bytes, value_at + value_bytes
            key = raw[name_at:name_end].decode()
            items.append(make(key, raw[value_at:value_end], version))
            if flag:
                leased.append(key)
            name_at, value_at = name_end, value_end
    except (DecompressionError, error, UnicodeDecodeError) as bad:
        raise WireError(f"a block of keys cannot be unpacked: {bad}") from bad
    if len(items) != count or value_at != len(raw):
        raise WireError(f"a block of keys has {len(raw)} bytes instead of {value_at}")
    return items, leased


LOG_MAGIC = b"WEIRml01"
SNAPSHOT_MAGIC = b"WEIRms02"
#: Snapshots of before, with a record for each key; still read.
SNAPSHOT_OF_KEYS_MAGIC = b"WEIRms01"
_FAMILY_BYTES = 6

_HEADER = Struct("<8sIQQQ")
_HEADER_COVERED = Struct("<QQQ")
_HEADER_COVERED_AT = 12
_RECORD = Struct("<4sIIIIQQ")
_RECORD_COVERED = Struct("<IIIQQ")
_RECORD_COVERED_AT = 8
_RECORD_MAGIC = b"\xabWMr"
_SEED = Struct("<QQ")

HEADER_BYTES = _HEADER.size
RECORD_HEAD_BYTES = _RECORD.size
#: Bounds what a damaged length makes a reader take for a record.
MAX_KEY_BYTES = 64 * 1024
MAX_VALUE_BYTES = 16 * 1024 * 1024

_DELETED = 1
_LEASED = 2


class FileHeader(NamedTuple):
    """What a file is. `records` counts a snapshot's records; a log has 0 here."""

    file_id: int
    revision: int
    records: int


class LogRecord(NamedTuple):
    """A key was put, or deleted (no value); `end` is where the next record begins."""

    key: str
    value: bytes | None
    revision: int
    durable: int
    leased: bool
    end: int


def encode_header(magic: bytes, header: FileHeader) -> bytes:
    crc = crc32c(_HEADER_COVERED.pack(*header), crc32c(magic))
    return _HEADER.pack(magic, crc, *header)


def decode_header(magic: bytes, data: Buffer) -> FileHeader:
    """The header at the front of a file of this kind."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"a file header needs {HEADER_BYTES} bytes, {len(data)} are there")
    found, crc, file_id, revision, records = _HEADER.unpack_from(data)
    if found[:_FAMILY_BYTES] != magic[:_FAMILY_BYTES]:
        raise WireError(f"not a metadata file: it begins with {found!r}")
    if crc32c(memoryview(data)[_HEADER_COVERED_AT:HEADER_BYTES], crc32c(found)) != crc:
        raise ChecksumError("the file header's checksum does not match")
    if found != magic:
        raise UnknownVersionError(f"file format {found!r}", hint="written by a newer Weir: upgrade this one")
    return FileHeader(file_id, revision, records)


def encode_record(
    file_id: int, offset: int, key: str, value: bytes | None, *, revision: int, durable: int, leased: bool = False
) -> bytes:
    """The record as it must lie at `offset` of the file."""
    name = key.encode()
    body = b"" if value is None else value
    flags = (_DELETED if value is None else 0) | (_LEASED if leased else 0)
    covered = _RECORD_COVERED.pack(len(name), len(body), flags, revision, durable)
    crc = crc32c(body, crc32c(name, crc32c(covered, crc32c(_SEED.pack(file_id, offset)))))
    return b"".join((_RECORD_MAGIC, crc.to_bytes(4, "little"), covered, name, body))


def decode_record(data: Buffer, offset: int, file_id: int) -> LogRecord:
    """The record at `offset` of the file whose whole bytes are `data`."""
    if len(data) - offset < _RECORD.size:
        raise WireError(f"{len(data) - offset} bytes are left for a record")
    magic, crc, key_length, value_length, flags, revision, durable = _RECORD.unpack_from(data, offset)
    if magic != _RECORD_MAGIC:
        raise WireError(f"no record begins at offset {offset}")
    if key_length > MAX_KEY_BYTES or value_length > MAX_VALUE_BYTES:
        raise FrameTooLargeError(f"a record announces {key_length} + {value_length} bytes")
    middle = offset + _RECORD.size + key_length
    end = middle + value_length
    if end > len(data):
        raise WireError(f"a record of {end - offset} bytes is cut off after {len(data) - offset}")
    view = memoryview(data)
    if crc32c(view[offset + _RECORD_COVERED_AT : end], crc32c(_SEED.pack(file_id, offset))) != crc:
        raise ChecksumError(f"the checksum of the record at offset {offset} does not match")
    if flags & ~(_DELETED | _LEASED):
        raise WireError(f"a record has unknown flags {flags:#x}")
    try:
        key = str(view[offset + _RECORD.size : middle], "utf-8")
    except UnicodeDecodeError as bad:
        raise WireError(f"a key is not text: {bad}") from bad
    value = None if flags & _DELETED else bytes(view[middle:end])
    return LogRecord(key, value, revision, durable, bool(flags & _LEASED), end)


def record_offsets(data: bytes, offset: int) -> Iterator[int]:
    """Where records may begin, from `offset` on."""
    while (offset := data.find(_RECORD_MAGIC, offset)) >= 0:
        yield offset
        offset += 1


def record_checksums(data: bytes, offset: int, file_ids: Iterable[int]) -> list[int] | None:
    """The checksum that the record at `offset` has, and those that it must have in files with these ids; None if
    no record of plausible size begins there."""
    if len(data) - offset < _RECORD.size:
        return None
    _, stored, key_length, value_length, *_ = _RECORD.unpack_from(data, offset)
    end = offset + _RECORD.size + key_length + value_length
    if key_length > MAX_KEY_BYTES or value_length > MAX_VALUE_BYTES or end > len(data):
        return None
    covered = memoryview(data)[offset + _RECORD_COVERED_AT : end]
    return [stored, *(crc32c(covered, crc32c(_SEED.pack(file_id, offset))) for file_id in file_ids)]


def find_record(data: bytes, offset: int, file_id: int) -> LogRecord | None:
    """The first whole record that begins at or after `offset`, wherever it lies."""
    for begin in record_offsets(data, offset):
        try:
            return decode_record(data, begin, file_id)
        except WireError:
            continue
    return None
