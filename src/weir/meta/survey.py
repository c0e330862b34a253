"""Survey of the folder of a stopped embedded metadata store: reads every readable key, despite damage.

It reads a whole store like an open does. In a damaged store it reads each record independently: the newest
snapshot with a readable header, without its damaged blocks, then every record of every log; the latest version of
each key counts. It writes nothing.

If the header of a file is damaged, `find_file_id` derives the file's id, so that the checksums of records can
still be verified. The id seeds the checksum of each record. CRC32C is linear over GF(2): each bit of the id always
flips the same bits of the checksum. So a whole record reveals the id, and a second record, or the similarity to
the id in the header, confirms it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from weir.meta.embedded_recovery import Recovered, contents, end_path, log_path, read_whole, recover, snapshot_path
from weir.meta.interfaces import Versioned
from weir.meta.key_space import NO_LEASE
from weir.model.errors import FileMissingError, MetaCorruptError, UnknownVersionError, WireError
from weir.runtime.interfaces import Disk
from weir.runtime.loss_records import load_end_record
from weir.wire.metadata_log import (
    HEADER_BYTES,
    LOG_MAGIC,
    RECORD_HEAD_BYTES,
    SNAPSHOT_MAGIC,
    SNAPSHOT_OF_KEYS_MAGIC,
    FileHeader,
    LogRecord,
    decode_header,
    decode_record,
    find_record,
    record_checksums,
    record_offsets,
    unpack_block,
)

_ID_BITS = 64
#: The checksum determines this many bits of the id; ids that differ in other bits seed the same checksums.
_FOUND_BITS = 32
#: Number of records to try.
_CANDIDATES = 16


def find_file_id(data: bytes) -> int | None:
    """An id that makes records of the file valid, or None without a confirmed one."""
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
    """Whether the record at the offset, which any checksum fits, and another one after it are whole."""
    try:
        record = decode_record(data, offset, file_id)
    except WireError:  # a damaged length made it look like a record
        return False
    return find_record(data, record.end, file_id) is not None


def _solve(effects: Sequence[int], wanted: int) -> int | None:
    """The bits that combine to the wanted effect."""
    basis: dict[int, tuple[int, int]] = {}
    for number, effect in enumerate(effects):
        rest, bits = _reduced(basis, effect)
        if rest:
            basis[rest.bit_length()] = rest, bits ^ (1 << number)
    rest, bits = _reduced(basis, wanted)
    return None if rest else bits


def _reduced(basis: dict[int, tuple[int, int]], value: int) -> tuple[int, int]:
    """The value reduced by the basis, and the bits of the reduction."""
    bits = 0
    for length in range(_FOUND_BITS, 0, -1):
        if value.bit_length() == length and length in basis:
            value ^= basis[length][0]
            bits ^= basis[length][1]
    return value, bits


def _two_bytes(effects: Sequence[int], wanted: int) -> int | None:
    """A change of at most two bytes with the wanted effect. More bytes would fit any checksum by chance."""
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


@dataclass(frozen=True, slots=True)
class MetaDamage:
    """An unreadable place in a file, and its consequences."""

    path: str
    offset: int
    what: str


@dataclass(slots=True)
class MetaSurvey:
    """Every key without a lease, and the damage."""

    items: dict[str, Versioned] = field(default_factory=dict)
    #: The last revision that a client may have seen.
    revision: int = 0
    damages: list[MetaDamage] = field(default_factory=list)
    #: The number of changes known as missing.
    lost_changes: int = 0

    def under(self, prefix: str) -> list[Versioned]:
        return sorted(item for key, item in self.items.items() if key.startswith(prefix))


async def survey_meta(disk: Disk, folder: str) -> MetaSurvey:
    """Survey the folder; the caller must have its lock. UnknownVersionError if a newer Weir wrote it."""
    found = MetaSurvey()
    try:
        names = await contents(disk, folder)
    except FileMissingError as gone:
        found.damages.append(MetaDamage(folder, 0, gone.what))
        return found
    end = await load_end_record(disk, end_path(folder))
    if not names.logs and not names.snapshots:
        found.damages.append(MetaDamage(folder, 0, "the folder has neither a log nor a snapshot"))
        return found
    try:
        recovered = await recover(disk, folder, end)
    except MetaCorruptError as bad:
        await _piecemeal(disk, folder, found, 0 if end is None else end.revision)
        if not found.damages:
            found.damages.append(MetaDamage(folder, 0, bad.what))
        return found
    if isinstance(recovered, Recovered):
        state = recovered.state
        found.items = {item.key: item for item in state.under("") if state.lease_of(item.key) == NO_LEASE}
        found.revision = state.revision
    return found


async def _piecemeal(disk: Disk, folder: str, found: MetaSurvey, acknowledged: int) -> None:
    names = await contents(disk, folder)
    keys = _Keys(found)
    begun = 0
    for revision in reversed(names.snapshots):
        path = snapshot_path(folder, revision)
        if keys.snapshot(path, await read_whole(disk, path), revision):
            begun = revision
            break
    expected = begun + 1
    for first in names.logs:
        path = log_path(folder, first)
        expected = max(expected, keys.log(path, await read_whole(disk, path), first, expected))
    if acknowledged >= expected:
        missing = acknowledged - expected + 1
        found.lost_changes += missing
        what = f"{missing} acknowledged changes, up to revision {acknowledged}, are in no file"
        found.damages.append(MetaDamage(folder, 0, what))
    found.revision = max([acknowledged, expected - 1, *names.snapshots, *(first - 1 for first in names.logs)])
    keys.settle()


class _Keys:
    """Keys by their latest change, for changes in any order."""

    def __init__(self, found: MetaSurvey) -> None:
        self._found = found
        #: Value (None: deleted), version, and whether the key had a lease.
        self._latest: dict[str, tuple[bytes | None, int, bool]] = {}

    def settle(self) -> None:
        self._found.items = {
            key: Versioned(key, value, version)
            for key, (value, version, leased) in self._latest.items()
            if value is not None and not leased
        }

    def snapshot(self, path: str, data: bytes, revision: int) -> bool:
        """Read a snapshot; returns whether its header is readable."""
        magic = _magic(data)
        of_keys = magic == SNAPSHOT_OF_KEYS_MAGIC
        header = self._header(magic, path, data, revision)
        if header is None:
            return False
        before, records, offset = "", 0, HEADER_BYTES
        while (record := self._record(data, offset, header.file_id)) is not None:
            if record[0] > offset:
                what = f"a block of keys is damaged: those between {before or 'the first'} and {record[1].key}"
                self._found.damages.append(MetaDamage(path, offset, what))
            before = self._block(path, record[0], record[1], of_keys=of_keys) or before
            records, offset = records + 1, record[1].end
        if offset < len(data) or records < header.records:
            known = f"{header.records - records} of {header.records}" if header.records else "the last"
            what = f"{known} blocks of keys are gone, from {before or 'the first'} on"
            self._found.damages.append(MetaDamage(path, offset, what))
        return True

    def _block(self, path: str, offset: int, record: LogRecord, *, of_keys: bool) -> str:
        """Add the keys of a snapshot's record; returns the last of them."""
        if of_keys:
            self._put(record.key, record.value, record.revision, leased=record.leased)
            return record.key
        try:
            items, leased = unpack_block(record.value or b"", Versioned)
        except WireError as bad:
            self._found.damages.append(MetaDamage(path, offset, bad.what))
            return record.key
        held = dict.fromkeys(leased)
        for item in items:
            self._put(item.key, item.value, item.version, leased=item.key in held)
        return items[-1].key if items else record.key

    def log(self, path: str, data: bytes, first: int, expected: int) -> int:
        """Add every record of a log; returns the revision after the last."""
        header = self._header(LOG_MAGIC, path, data, first)
        if header is None:
            return expected
        if header.revision > expected:
            self._gap(path, 0, expected, header.revision)
        expected, offset = header.revision, HEADER_BYTES
        while (found := self._record(data, offset, header.file_id)) is not None:
            at, record = found
            if at > offset or record.revision > expected:
                self._gap(path, offset, expected, record.revision)
            self._put(record.key, record.value, record.revision, leased=record.leased)
            expected, offset = record.revision + 1, record.end
        return expected

    def _gap(self, path: str, offset: int, first: int, following: int) -> None:
        missing = max(0, following - first)
        self._found.lost_changes += missing
        what = f"changes {first} to {following - 1} cannot be read" if missing else "bytes that are no record"
        self._found.damages.append(MetaDamage(path, offset, what))

    def _put(self, key: str, value: bytes | None, version: int, *, leased: bool) -> None:
        known = self._latest.get(key)
        if known is None or version >= known[1]:
            self._latest[key] = value, version, leased

    @staticmethod
    def _record(data: bytes, offset: int, file_id: int) -> tuple[int, LogRecord] | None:
        """The next whole record, and its offset."""
        try:
            record = decode_record(data, offset, file_id)
            return offset, record
        except WireError:
            found = find_record(data, offset + 1, file_id)
        if found is None:
            return None
        begin = found.end - RECORD_HEAD_BYTES - len(found.value or b"") - len(found.key.encode())
        return begin, found

    def _header(self, magic: bytes, path: str, data: bytes, revision: int) -> FileHeader | None:
        """The header; if it is damaged, reconstructed from the file's name and its records."""
        try:
            return decode_header(magic, data)
        except UnknownVersionError:
            raise
        except WireError as bad:
            file_id = find_file_id(data)
            header = None if file_id is None else FileHeader(file_id, revision, 0)
            gone = "" if header is not None else "; without it no record of the file can be verified"
            self._found.damages.append(MetaDamage(path, 0, f"{bad.what}{gone}"))
            return header


def _magic(data: bytes) -> bytes:
    """The magic of a snapshot, even with a damaged header: the older kind has a record per key, not per block."""
    for magic in (SNAPSHOT_MAGIC, SNAPSHOT_OF_KEYS_MAGIC):
        with suppress(WireError):
            decode_header(magic, data)
            return magic
    file_id = find_file_id(data)
    first = None if file_id is None else find_record(data, HEADER_BYTES, file_id)
    try:
        unpack_block(b"" if first is None else first.value or b"", Versioned)
    except WireError:
        return SNAPSHOT_OF_KEYS_MAGIC if first is not None else SNAPSHOT_MAGIC
    return SNAPSHOT_MAGIC
