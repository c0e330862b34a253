"""Opening an embedded metadata store: what a crash may leave is mended, what it may not is refused.

A log is read record by record; revisions follow one another without a gap. Where no valid record follows:

    last log   something shows that more was durable      verdict
    --------   -----------------------------------------  ----------------------------------------------------
    any        nothing is left to read, and no            COMPLETE
    yes        no                                         TORN_TAIL: cut off; it was never acknowledged
    yes        a later record or a snapshot               DAMAGED: refused
    no         (the next log does)                        DAMAGED: refused

What shows it: a later valid record of the log with `durable` at or past the missing revision, a snapshot of it
(one is finished only when the log has it), or a next log (one is begun only when the last is durable).
"""

from dataclasses import dataclass
from enum import Enum

from weir.meta.embedded_files import contents, log_path, read_whole, snapshot_path
from weir.meta.interfaces import Change, Versioned
from weir.meta.state import NO_LEASE, KeySpace
from weir.model.errors import MetaCorruptError, WireError
from weir.runtime import Disk
from weir.wire.metalog import (
    HEADER_BYTES,
    LOG_MAGIC,
    SNAPSHOT_MAGIC,
    FileHeader,
    LogRecord,
    decode_header,
    decode_record,
    find_record,
)

#: What holds the leased keys of a process that is gone.
LEASE_OF_THE_DEAD = -1


class Verdict(Enum):
    """What the end of a log's valid records means."""

    COMPLETE = "complete"
    TORN_TAIL = "torn tail"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state, and the log to go on with."""

    state: KeySpace
    file_id: int
    #: The revision that names the log, and its bytes up to the last valid record.
    log_first: int
    log_data: bytes
    snapshot_bytes: int
    #: Files that nothing needs any more.
    obsolete: list[str]


def judge(*, rest: int, is_last: bool, proven: bool) -> Verdict:
    """The table above: `rest` bytes follow the last valid record; `proven`: more was durable."""
    if proven or (rest and not is_last):
        return Verdict.DAMAGED
    return Verdict.TORN_TAIL if rest else Verdict.COMPLETE


async def recover(disk: Disk, folder: str) -> Recovered:
    """Read the folder of a store."""
    # The process before may have died between a rename and its sync: what is built on a name must not outlast it.
    await disk.sync_dir(folder)
    found = await contents(disk, folder)
    state, snapshot_bytes = await _load_snapshot(disk, folder, found.snapshots)
    covered = state.revision
    needed = _needed_logs(found.logs, covered, folder)
    file_id, log_data = 0, b""
    for first, following in zip(needed, [*needed[1:], None], strict=True):
        is_last = following is None
        must_reach = covered if following is None else following - 1
        path = log_path(folder, first)
        data = await read_whole(disk, path)
        header = _header(LOG_MAGIC, data, path, first)
        file_id = header.file_id
        log_data = data[: _replay(state, data, header, path, is_last=is_last, must_reach=must_reach)]
    obsolete = [log_path(folder, first) for first in found.logs if first not in needed]
    obsolete += [snapshot_path(folder, revision) for revision in found.snapshots[:-1]]
    obsolete += found.unfinished
    return Recovered(state, file_id, needed[-1], log_data, snapshot_bytes, obsolete)


def _needed_logs(logs: list[int], covered: int, folder: str) -> list[int]:
    """The logs that hold what came after the snapshot; the first may begin before it."""
    older = [first for first in logs if first <= covered + 1]
    if not older:
        raise MetaCorruptError(f"{folder}: the log that holds revision {covered + 1} is missing")
    return [first for first in logs if first >= older[-1]]


async def _load_snapshot(disk: Disk, folder: str, snapshots: list[int]) -> tuple[KeySpace, int]:
    if not snapshots:
        return KeySpace(), 0
    path = snapshot_path(folder, snapshots[-1])
    data = await read_whole(disk, path)
    header = _header(SNAPSHOT_MAGIC, data, path, snapshots[-1])
    state = KeySpace(revision=header.revision)
    offset = HEADER_BYTES
    for _ in range(header.records):
        try:
            record = decode_record(data, offset, header.file_id)
        except WireError as bad:
            raise MetaCorruptError(f"{path}: {bad.what}") from bad
        item = Versioned(record.key, record.value or b"", record.revision)
        state.load(item, LEASE_OF_THE_DEAD if record.leased else NO_LEASE)
        offset = record.end
    if offset != len(data):
        raise MetaCorruptError(f"{path}: {len(data) - offset} bytes follow its last record")
    return state, len(data)


def _header(magic: bytes, data: bytes, path: str, revision: int) -> FileHeader:
    try:
        header = decode_header(magic, data)
    except WireError as bad:
        raise MetaCorruptError(f"{path}: {bad}") from bad
    if header.revision != revision:
        raise MetaCorruptError(f"{path} says that it begins at revision {header.revision}")
    return header


def _replay(state: KeySpace, data: bytes, header: FileHeader, path: str, *, is_last: bool, must_reach: int) -> int:
    """Apply the log's records to the state; returns where the valid ones end."""
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
    proven = expected <= must_reach or _durable_later(data, offset, header.file_id) >= expected
    if judge(rest=len(data) - offset, is_last=is_last, proven=proven) is Verdict.DAMAGED:
        raise MetaCorruptError(
            f"{path}: revision {expected}, at offset {offset}, is damaged or missing, though it was durable"
        )
    return offset


def _record_at(data: bytes, offset: int, file_id: int, expected: int) -> LogRecord | None:
    try:
        record = decode_record(data, offset, file_id)
    except WireError:
        return None
    return record if record.revision == expected else None


def _durable_later(data: bytes, offset: int, file_id: int) -> int:
    """The furthest revision that any record beyond `offset` knew to be durable."""
    furthest = 0
    while (record := find_record(data, offset, file_id)) is not None:
        furthest = max(furthest, record.durable)
        offset = record.end
    return furthest
