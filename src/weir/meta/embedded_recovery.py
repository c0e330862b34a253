"""Recovery of an embedded metadata store: repairs what a crash may leave, refuses any other damage.

Recovery reads a log record by record; revisions must follow one another without a gap. At the end of the valid
records:

    last log   proof that more was durable                verdict     --------
-----------------------------------------  ----------------------------------------------------     any        no
bytes follow, and no                    COMPLETE     yes        no
TORN_TAIL: cut off; it was never acknowledged     yes        a later record or a snapshot               DAMAGED:
refused     no         (the next log does)                        DAMAGED: refused

Proof is a later valid record of the log with `durable` at or past the missing revision, a snapshot of it (complete
only when the log has it), a next log (created only when the last one is durable), or the end record beside the
logs (`weir.runtime.loss_records`), which follows every sync: without it, a log that was cut at the end of a
record, or whose tail became zeros, looks complete or torn (docs/adr/0022).

This module also has the file names in the folder, and writes files that appear whole or not at all.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from weir.meta.interfaces import Change, Versioned
from weir.meta.key_space import NO_LEASE, KeySpace
from weir.model.diagnosis import Loss
from weir.model.errors import DiskFullError, FileMissingError, MetaCorruptError, WireError
from weir.runtime.interfaces import Disk
from weir.wire.end_record import EndRecord
from weir.wire.metadata_log import (
    HEADER_BYTES,
    LOG_MAGIC,
    SNAPSHOT_MAGIC,
    SNAPSHOT_OF_KEYS_MAGIC,
    FileHeader,
    LogRecord,
    decode_header,
    decode_record,
    find_record,
    unpack_block,
)

LOCK_NAME = "lock"
_LOG = "log-"
_SNAPSHOT = "snapshot-"
_UNFINISHED = ".tmp"
_GIVEN_UP = "given-up-"


class Contents(NamedTuple):
    """Content of the folder: revisions in the names of logs and snapshots, ascending, and temporary files."""

    logs: list[int]
    snapshots: list[int]
    unfinished: list[str]


def log_path(folder: str, first_revision: int) -> str:
    """Path of the log that starts with this revision."""
    return f"{folder}/{_LOG}{first_revision:020d}"


def snapshot_path(folder: str, revision: int) -> str:
    """Path of the snapshot of every key at this revision."""
    return f"{folder}/{_SNAPSHOT}{revision:020d}"


def end_path(folder: str) -> str:
    """Path of the acknowledged end of the logs (`weir.runtime.loss_records`)."""
    return f"{folder}/end"


def given_up_path(path: str) -> str:
    """New name of a file that an accepted loss made useless; Weir does not read it again."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{_GIVEN_UP}{name}"


async def contents(disk: Disk, folder: str) -> Contents:
    found = Contents([], [], [])
    for name in await disk.list(folder):
        if name.endswith(_UNFINISHED):
            found.unfinished.append(f"{folder}/{name}")
        elif name.startswith(_LOG) and name[len(_LOG) :].isdecimal():
            found.logs.append(int(name[len(_LOG) :]))
        elif name.startswith(_SNAPSHOT) and name[len(_SNAPSHOT) :].isdecimal():
            found.snapshots.append(int(name[len(_SNAPSHOT) :]))
    return found


async def write_whole(disk: Disk, path: str, parts: AsyncIterator[Sequence[bytes]]) -> int:
    """Create a file with this content, durably, in one step as seen by a crash; returns its size."""
    unfinished = path + _UNFINISHED
    file = await disk.open(unfinished, create=True)
    size = 0
    try:
        await file.truncate(0)
        async for buffers in parts:
            await file.write_at(size, buffers)
            size += sum(len(buffer) for buffer in buffers)
        await file.sync()
    except DiskFullError:
        await file.close()
        await remove_quietly(disk, [unfinished])  # it takes the missing space
        raise
    except BaseException:
        await file.close()
        raise
    await file.close()
    await disk.rename(unfinished, path)
    await disk.sync_dir(path.rpartition("/")[0])
    return size


async def read_whole(disk: Disk, path: str) -> bytes:
    file = await disk.open(path)
    try:
        return bytes(await file.read_at(0, await file.size()))
    finally:
        await file.close()


async def remove_quietly(disk: Disk, paths: Sequence[str]) -> None:
    """Remove files that no recovery needs; a crash may leave any of them."""
    for path in paths:
        try:
            await disk.remove(path)
        except FileMissingError:
            continue


#: Lease id for the leased keys of the previous process.
LEASE_OF_THE_DEAD = -1


class Verdict(Enum):
    """Verdict on the end of a log's valid records."""

    COMPLETE = "complete"
    TORN_TAIL = "torn tail"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The recovered state, and the log to continue."""

    state: KeySpace
    file_id: int
    #: The first revision of the log, and its bytes up to the last valid record.
    log_first: int
    log_data: bytes
    snapshot_bytes: int
    #: Files that the store no longer needs.
    obsolete: list[str]


@dataclass(slots=True)
class Losses:
    """Missing changes: an error where recovery finds them, or recorded if the operator accepts their loss."""

    accepted: bool = False
    found: list[Loss] = field(default_factory=list)
    #: The last revision known as acknowledged.
    through: int = 0
    #: The number of lost changes up to there, once recovery knows the last recovered revision.
    changes: int = 0

    def lack(self, path: str, what: str, cause: BaseException | None = None) -> None:
        if not self.accepted:
            raise MetaCorruptError(f"{path}: {what}") from cause
        self.found.append(Loss(path, what))


def judge(*, rest: int, is_last: bool, proven: bool) -> Verdict:
    """Apply the table above: `rest` bytes follow the last valid record; `proven`: more was durable."""
    if proven or (rest and not is_last):
        return Verdict.DAMAGED
    return Verdict.TORN_TAIL if rest else Verdict.COMPLETE


async def recover(
    disk: Disk, folder: str, end: EndRecord | None = None, losses: Losses | None = None
) -> Recovered | KeySpace:
    """Read the folder of a store, whose logs must reach at least the `end`. With accepted losses, returns only the
    state before the first one: the logs are of no use then."""
    losses = losses or Losses()
    # The previous process may have died between a rename and its sync: new files must not outlast the names they
    # need.
    await disk.sync_dir(folder)
    found = await contents(disk, folder)
    losses.through = max([0 if end is None else end.revision, *found.snapshots, *(f - 1 for f in found.logs)])
    state, snapshot_bytes = await _load_snapshot(disk, folder, found.snapshots, losses)
    covered = state.revision
    needed = [] if losses.found else _needed_logs(found.logs, covered, folder, losses)
    file_id, log_data = 0, b""
    for first, following in zip(needed, [*needed[1:], None], strict=False):
        is_last = following is None
        must_reach = losses.through if following is None else following - 1
        path = log_path(folder, first)
        data = await read_whole(disk, path)
        header = _header(LOG_MAGIC, data, path, first, losses)
        if header is None:
            break
        file_id = header.file_id
        whole = _replay(state, data, header, is_last=is_last, must_reach=must_reach)
        if isinstance(whole, _Short):
            losses.lack(path, whole.told(len(data), end))
            losses.through = max(losses.through, whole.through)
            break
        log_data = data[:whole]
    if losses.found:
        losses.changes = max(0, losses.through - state.revision)
        return state
    obsolete = [log_path(folder, first) for first in found.logs if first not in needed]
    obsolete += [snapshot_path(folder, revision) for revision in found.snapshots[:-1]]
    obsolete += found.unfinished
    return Recovered(state, file_id, needed[-1], log_data, snapshot_bytes, obsolete)


def _needed_logs(logs: list[int], covered: int, folder: str, losses: Losses) -> list[int]:
    """The logs with revisions after the snapshot; the first one may begin before it."""
    older = [first for first in logs if first <= covered + 1]
    if not older:
        acknowledged = f"; changes up to revision {losses.through} had been acknowledged" if losses.through else ""
        losses.lack(folder, f"the log that holds revision {covered + 1} is missing{acknowledged}")
        return []
    return [first for first in logs if first >= older[-1]]


async def _load_snapshot(disk: Disk, folder: str, snapshots: list[int], losses: Losses) -> tuple[KeySpace, int]:
    if not snapshots:
        return KeySpace(), 0
    path = snapshot_path(folder, snapshots[-1])
    data = await read_whole(disk, path)
    of_keys = data[: len(SNAPSHOT_OF_KEYS_MAGIC)] == SNAPSHOT_OF_KEYS_MAGIC
    magic, load, what = (
        (SNAPSHOT_OF_KEYS_MAGIC, _load_key, "keys") if of_keys else (SNAPSHOT_MAGIC, _load_block, "blocks of keys")
    )
    header = _header(magic, data, path, snapshots[-1], losses)
    if header is None:
        return KeySpace(), 0
    state = KeySpace(revision=header.revision)
    offset = HEADER_BYTES
    for number in range(header.records):
        try:
            record = decode_record(data, offset, header.file_id)
            load(state, record)
        except WireError as bad:
            missing = f"{header.records - number} of {header.records} {what} are missing"
            losses.lack(path, f"{bad.what}: {missing}", bad)
            return state, len(data)
        offset = record.end
    if offset != len(data):
        losses.lack(path, f"{len(data) - offset} bytes follow its last record")
    return state, len(data)


def _load_key(state: KeySpace, record: LogRecord) -> None:
    item = Versioned(record.key, record.value or b"", record.revision)
    state.load(item, LEASE_OF_THE_DEAD if record.leased else NO_LEASE)


def _load_block(state: KeySpace, record: LogRecord) -> None:
    """Load a block. The checksum has verified its bytes, so they stay packed until a read of a key in it."""
    packed = record.value or b""
    leased = unpack_block(packed, Versioned)[1] if record.leased else []
    state.load_block(record.key, packed, items=record.revision, leased=leased, holder=LEASE_OF_THE_DEAD)


def _header(magic: bytes, data: bytes, path: str, revision: int, losses: Losses) -> FileHeader | None:
    """The file's header; None without a valid one, if the loss is accepted."""
    try:
        header = decode_header(magic, data)
    except WireError as bad:
        told = f"; changes up to revision {losses.through} had been acknowledged" if losses.through else ""
        losses.lack(path, f"{bad}{told}", bad)
        return None
    if header.revision != revision:
        losses.lack(path, f"it says that it begins at revision {header.revision}")
        return None
    return header


class _Short(NamedTuple):
    """A log that ends before the acknowledged revision."""

    offset: int
    #: The first missing revision, and the last one known as acknowledged.
    missing: int
    through: int

    def told(self, size: int, end: EndRecord | None) -> str:
        count = self.through - self.missing + 1
        expected = "" if end is None else f"; they ended at offset {end.end} of the log that begins at {end.file}"
        return (
            f"its records are whole up to offset {self.offset} of {size}, revision {self.missing - 1}, but"
            f" revision {self.missing}, at offset {self.offset}, is damaged or missing, though it was durable: at"
            f" least {count} acknowledged changes, up to revision {self.through}, are gone{expected}"
        )


def _replay(state: KeySpace, data: bytes, header: FileHeader, *, is_last: bool, must_reach: int) -> "int | _Short":
    """Apply the log's records to the state; returns the end of the valid ones, or the proof that more should
    follow."""
    offset = HEADER_BYTES
    expected = header.revision
    while True:
        record = _record_at(data, offset, header.file_id, expected)
        if record is None:
            break
        if expected > state.revision:
            lease_id = LEASE_OF_THE_DEAD if record.leased else NO_LEASE
            state.apply(Change(record.key, record.value, expected), lease_id)
        offset = record.end
        expected += 1
    through = max(must_reach, _durable_later(data, offset, header.file_id))
    verdict = judge(rest=len(data) - offset, is_last=is_last, proven=through >= expected)
    return _Short(offset, expected, max(through, expected)) if verdict is Verdict.DAMAGED else offset


def _record_at(data: bytes, offset: int, file_id: int, expected: int) -> LogRecord | None:
    try:
        record = decode_record(data, offset, file_id)
    except WireError:
        return None
    return record if record.revision == expected else None


def _durable_later(data: bytes, offset: int, file_id: int) -> int:
    """The highest revision that a record after `offset` reports as durable."""
    furthest = 0
    while (record := find_record(data, offset, file_id)) is not None:
        furthest = max(furthest, record.durable)
        offset = record.end
    return furthest
