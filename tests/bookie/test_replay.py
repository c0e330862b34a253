"""Replay's decision table: every row, and every file that leads to it."""

from itertools import product
from pathlib import Path

import pytest

from weir.bookie.folder import Layout
from weir.bookie.journal_endings import TABLE, Case, CheckpointSide, Ending, Proof, decide
from weir.bookie.journal_scan import NOTHING_BEFORE, JournalReplay, JournalScan
from weir.model.errors import JournalCorruptError
from weir.runtime.real import real_runtime
from weir.testing.storage.bookies import entry
from weir.wire.bookie_files import (
    BLOCK_BYTES,
    Position,
    RecordHeader,
    RecordKind,
    Start,
    encode_header,
    encode_start,
    padding,
)
from weir.wire.checksum import crc32c

NONCE = 77
FILE_BYTES = 16 * BLOCK_BYTES


def test_every_combination_that_can_be_observed_has_a_row() -> None:
    impossible = {(place, Ending.REACHED, Proof.BEYOND) for place in CheckpointSide}
    assert set(TABLE) == set(product(CheckpointSide, Ending, Proof)) - impossible


def test_only_proven_loss_keeps_a_bookie_from_starting() -> None:
    fatal = {key for key, case in TABLE.items() if case.is_fatal}
    assert fatal == {
        (CheckpointSide.FROM_CHECKPOINT, ending, Proof.BEYOND) for ending in Ending if ending is not Ending.REACHED
    }


def test_proof_is_bytes_beyond_the_end() -> None:
    torn = decide(CheckpointSide.FROM_CHECKPOINT, Ending.BAD, end=8192, proven=8192)
    lost = decide(CheckpointSide.FROM_CHECKPOINT, Ending.BAD, end=8192, proven=8193)
    assert (torn, lost) == (Case.TORN_TAIL, Case.BAD_MIDDLE)


class JournalFolder:
    """Journal files made by hand."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(str(root))
        self.folder = root / "journal"
        self.folder.mkdir()
        self.disk = real_runtime().disk
        self.replayed: list[tuple[int, int]] = []

    def write(
        self,
        sequence: int,
        records: int,
        *,
        previous: Start = NOTHING_BEFORE,
        sync_lag: int = 0,
        former: bytes = b"",
    ) -> Path:
        """A file with so many one-block records, each naming what was synced `sync_lag` blocks before it."""
        data = bytearray(former.ljust(FILE_BYTES, b"\0"))
        bodies = [(RecordKind.START, encode_start(previous))]
        bodies += [(RecordKind.ENTRIES, entry(1, n)) for n in range(records)]
        for number, (kind, body) in enumerate(bodies):
            at = number * BLOCK_BYTES
            durable = max(0, at - sync_lag * BLOCK_BYTES)
            header = RecordHeader(kind, sequence, NONCE + sequence, at, durable, len(body), crc32c(body))
            record = encode_header(header) + body + padding(len(body))
            data[at : at + len(record)] = record
        path = Path(self.layout.journal_file(sequence))
        path.write_bytes(data)
        return path

    async def replay(self, sequence: int = 1, offset: int = 0) -> JournalScan:
        self.replayed = []
        position = Position(sequence, offset, NONCE + sequence)
        return await JournalReplay(self.disk, self.layout, position, self._apply).run()

    def _apply(self, header: RecordHeader, _body: memoryview) -> None:
        if header.kind is RecordKind.ENTRIES:
            self.replayed.append((header.sequence, header.offset // BLOCK_BYTES))

    def damage(self, sequence: int, block: int, inside: int = 70) -> None:
        path = Path(self.layout.journal_file(sequence))
        data = bytearray(path.read_bytes())
        data[block * BLOCK_BYTES + inside] ^= 1
        path.write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> JournalFolder:
    return JournalFolder(tmp_path)


async def test_complete_every_record_up_to_the_end_that_the_next_file_names(folder: JournalFolder) -> None:
    folder.write(1, 3)
    folder.write(2, 1, previous=Start(1, 4 * BLOCK_BYTES))
    scan = await folder.replay()
    assert scan.cases == {1: Case.COMPLETE, 2: Case.CLEAN_END}
    assert folder.replayed == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert (scan.next_sequence, scan.previous) == (3, Start(2, 2 * BLOCK_BYTES))


async def test_complete_what_was_cut_off_once_stays_cut_off(folder: JournalFolder) -> None:
    folder.write(1, 3)
    folder.write(2, 1, previous=Start(1, 3 * BLOCK_BYTES))  # the last record of file 1 was found torn then
    await folder.replay()
    assert folder.replayed == [(1, 1), (1, 2), (2, 1)]


async def test_clean_end_zeros_follow_the_last_record(folder: JournalFolder) -> None:
    folder.write(1, 2)
    assert (await folder.replay()).cases == {1: Case.CLEAN_END}
    assert folder.replayed == [(1, 1), (1, 2)]


async def test_stale_a_record_of_the_files_former_life_is_the_end(folder: JournalFolder) -> None:
    former = folder.write(1, 5).read_bytes()
    folder.write(7, 2, former=former)
    scan = await folder.replay(sequence=7)
    assert scan.cases[7] is Case.CLEAN_END
    assert folder.replayed == [(7, 1), (7, 2)]


@pytest.mark.parametrize("inside", [3, 20, 70], ids=["header checksum", "header", "body"])
async def test_torn_tail_the_last_record_is_bad_and_nothing_says_it_was_synced(
    folder: JournalFolder, inside: int
) -> None:
    folder.write(1, 3)
    folder.damage(1, 3, inside)
    scan = await folder.replay()
    assert scan.cases == {1: Case.TORN_TAIL}
    assert folder.replayed == [(1, 1), (1, 2)]
    assert scan.previous == Start(1, 3 * BLOCK_BYTES)


async def test_torn_tail_a_later_record_that_was_not_synced_either_goes_with_it(folder: JournalFolder) -> None:
    folder.write(1, 3, sync_lag=2)  # periodic sync: record 3 was written before record 2 was synced
    folder.damage(1, 2)
    assert (await folder.replay()).cases == {1: Case.TORN_TAIL}
    assert folder.replayed == [(1, 1)]


async def test_bad_middle_a_later_record_proves_that_the_bad_one_was_synced(folder: JournalFolder) -> None:
    folder.write(1, 4)
    folder.damage(1, 2)
    with pytest.raises(JournalCorruptError, match=f"{folder.layout.journal_file(1)} at offset {2 * BLOCK_BYTES}"):
        await folder.replay()


async def test_bad_middle_even_a_header_with_a_torn_body_testifies(folder: JournalFolder) -> None:
    folder.write(1, 3)
    folder.damage(1, 2)
    folder.damage(1, 3, inside=70)
    with pytest.raises(JournalCorruptError):
        await folder.replay()


async def test_bad_middle_the_next_file_proves_that_the_bad_record_was_synced(folder: JournalFolder) -> None:
    folder.write(1, 3)
    folder.write(2, 0, previous=Start(1, 4 * BLOCK_BYTES))
    folder.damage(1, 3)
    with pytest.raises(JournalCorruptError, match="bad record in the middle"):
        await folder.replay()


async def test_bad_middle_the_checkpoint_proves_that_there_was_a_file(folder: JournalFolder) -> None:
    Path(folder.layout.journal_file(1)).write_bytes(b"")
    scan = await folder.replay(sequence=1, offset=0)
    assert scan.cases == {1: Case.CLEAN_END}
    Path(folder.layout.journal_file(1)).unlink()
    with pytest.raises(JournalCorruptError):
        await folder.replay(sequence=1, offset=BLOCK_BYTES)


async def test_bad_middle_a_lost_first_record_is_told_by_those_behind_it(folder: JournalFolder) -> None:
    folder.write(1, 2)
    folder.damage(1, 0)
    with pytest.raises(JournalCorruptError, match="at offset 0"):
        await folder.replay()


async def test_old_file_before_the_checkpoint_is_ignored_whatever_it_holds(folder: JournalFolder) -> None:
    folder.write(1, 4)
    folder.damage(1, 2)
    folder.write(2, 1, previous=Start(1, 5 * BLOCK_BYTES))
    scan = await folder.replay(sequence=2)
    assert scan.cases == {1: Case.OLD_FILE, 2: Case.CLEAN_END}
    assert folder.replayed == [(2, 1)]


async def test_old_records_before_the_checkpoint_in_its_own_file_are_not_read(folder: JournalFolder) -> None:
    folder.write(1, 4)
    folder.damage(1, 1)
    await folder.replay(sequence=1, offset=3 * BLOCK_BYTES)
    assert folder.replayed == [(1, 3), (1, 4)]


async def test_missing_file_a_gap_in_the_sequence_is_loss(folder: JournalFolder) -> None:
    folder.write(1, 2)
    folder.write(3, 2, previous=Start(2, 3 * BLOCK_BYTES))
    with pytest.raises(JournalCorruptError, match="missing file"):
        await folder.replay()


async def test_missing_file_that_the_checkpoint_names_is_loss(folder: JournalFolder) -> None:
    with pytest.raises(JournalCorruptError, match="missing file"):
        await folder.replay(sequence=4, offset=BLOCK_BYTES)


async def test_not_written_a_new_folder_has_no_journal_yet(folder: JournalFolder) -> None:
    scan = await folder.replay()
    assert scan.cases == {1: Case.NOT_WRITTEN}
    assert (scan.next_sequence, scan.previous) == (1, Start(0, 0))


async def test_a_file_that_was_prepared_but_never_written_to_is_used_next(folder: JournalFolder) -> None:
    folder.write(1, 2)
    Path(folder.layout.journal_file(2)).write_bytes(bytes(FILE_BYTES))
    scan = await folder.replay()
    assert scan.next_sequence == 2
    assert folder.replayed == [(1, 1), (1, 2)]


async def test_a_record_in_a_payload_is_not_taken_for_one(folder: JournalFolder) -> None:
    former = folder.write(8, 5).read_bytes()
    header = RecordHeader(RecordKind.ENTRIES, 9, 12345, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES, 0, 0)
    forged = bytearray(former)
    forged[3 * BLOCK_BYTES : 3 * BLOCK_BYTES + 64] = encode_header(header)  # right place, wrong nonce
    folder.write(9, 2, former=bytes(forged))
    assert (await folder.replay(sequence=9)).cases[9] is Case.CLEAN_END
    assert folder.replayed == [(9, 1), (9, 2)]
