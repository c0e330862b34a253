"""Entries that are damaged: healed from another copy, or left out with a record once every copy is damaged."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from weir.ledger.losses import LostRun, decode_runs, merged
from weir.ledger.marks import Marks
from weir.ledger.repair import check_ledger
from weir.ledger.replication import ReplicationWorker
from weir.meta import keys
from weir.model.errors import EntryLostError, EntryUnreadableError, WireError
from weir.model.ids import BookieId, EntryId
from weir.model.ledger import Fragment, LedgerMetadata, Quorum

Simulated = Callable[..., Any]


async def _written(cluster: Any, quorum: Quorum, count: int = 10) -> Any:
    writer = await cluster.client.create(quorum)
    await writer.append_many([b"%d" % i for i in range(count)])
    await cluster.turn()
    await writer.close()
    return writer


async def _around(reader: Any) -> list[int]:
    return [entry.entry_id async for chunk in reader.stream_around() for entry in chunk]


def test_damaged_everywhere_is_lost_and_not_missing_or_out_of_reach(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await _written(cluster, Quorum(2, 2, 2))
        reader = await cluster.client.open(writer.ledger_id)
        first, second = reader.metadata.fragments[0].bookies
        cluster.bookie(first).damage(writer.ledger_id, 4)
        cluster.down(second)
        with pytest.raises(EntryUnreadableError) as unreadable:
            await reader.read(EntryId(4), EntryId(4))
        assert not isinstance(unreadable.value, EntryLostError), "the other may have it whole"
        cluster.up(second)
        del cluster.bookie(second).ledgers[writer.ledger_id].entries[EntryId(4)]
        with pytest.raises(EntryLostError) as lost:
            await reader.read(EntryId(0), EntryId(9))
        assert (lost.value.ledger_id, lost.value.entry_id) == (writer.ledger_id, 4)

    simulated(scenario)


def test_a_reader_goes_on_behind_lost_entries_once_that_is_written_down(
    simulated: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await _written(cluster, Quorum(1, 1, 1))
        bookie = cluster.bookie(str(writer.metadata.fragments[0].bookies[0]))
        for entry in (0, 4, 5, 9):
            bookie.damage(writer.ledger_id, entry)
        reader = await cluster.client.open(writer.ledger_id)
        with caplog.at_level(logging.WARNING):
            assert await _around(reader) == [1, 2, 3, 6, 7, 8]
            assert await _around(reader) == [1, 2, 3, 6, 7, 8]
        said = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
        assert len(said) == 4, "each place is said once"
        record = await cluster.meta.get(keys.lost_entries(writer.ledger_id))
        assert [(run.first, run.last) for run in decode_runs(record.value)] == [(0, 0), (4, 4), (5, 5), (9, 9)]
        other = cluster.another_client()
        await other.start()
        assert other.context.losses.entries == 4
        await other.delete(writer.ledger_id)
        assert await cluster.meta.get(keys.lost_entries(writer.ledger_id)) is None
        await other.close()

    simulated(scenario)


def test_what_is_whole_at_the_second_look_is_not_left_out(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await _written(cluster, Quorum(1, 1, 1))
        bookie = cluster.bookie(str(writer.metadata.fragments[0].bookies[0]))
        bookie.damage(writer.ledger_id, 3)
        cluster.runtime.clock.call_later(0.1, lambda: bookie.damage(writer.ledger_id, 3))
        reader = await cluster.client.open(writer.ledger_id)
        assert await _around(reader) == list(range(10))
        assert cluster.client.context.losses.all() == {}

    simulated(scenario)


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_with_replicas_a_damaged_copy_heals_by_itself(simulated: Simulated, is_open: bool) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append_many([b"x"] * 10)
        await cluster.turn(0.1)
        ledger: LedgerMetadata = writer.metadata if is_open else await writer.close()
        damaged = ledger.fragments[0].bookies[0]
        for entry in range(9):
            cluster.bookie(str(damaged)).damage(writer.ledger_id, entry)
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        for entry in range(9):
            await reader.read(EntryId(entry), EntryId(entry))
        await cluster.turn()
        assert [mark.suspects for mark in await Marks(cluster.runtime, cluster.meta).list()] == [(damaged,)]
        assert await ReplicationWorker(cluster.client.context, "w").work_once() == 1
        assert (await check_ledger(cluster.client.context, ledger, confirmed=EntryId(8))).good
        assert await Marks(cluster.runtime, cluster.meta).list() == []
        await reader.close()
        if is_open:
            await writer.append(b"the writer was not fenced")

    simulated(scenario)


def test_repair_mends_what_can_be_mended_and_names_the_rest(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await _written(cluster, Quorum(2, 2, 2))
        first, second = (str(b) for b in writer.metadata.fragments[0].bookies)
        for entry in (2, 5):
            cluster.bookie(first).damage(writer.ledger_id, entry)
        cluster.bookie(second).damage(writer.ledger_id, 2)
        await Marks(cluster.runtime, cluster.meta).add(writer.ledger_id, (BookieId(first),))
        assert await ReplicationWorker(cluster.client.context, "w").work_once() == 1
        ledger = await cluster.client.metadata(writer.ledger_id)
        report = await check_ledger(cluster.client.context, ledger, confirmed=EntryId(9))
        assert report.copies() == {2: 0}

    simulated(scenario)


def test_recovery_keeps_the_place_of_a_tail_entry_that_is_damaged(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        await writer.append_many([b"x"] * 10)
        name = writer.metadata.fragments[0].bookies[0]
        held = cluster.bookie(str(name)).ledgers[writer.ledger_id]
        held.last_confirmed = EntryId(6)
        for entry in (6, 8, 9):
            cluster.bookie(str(name)).damage(writer.ledger_id, entry)
        ledger = await cluster.another_client().recover(writer.ledger_id)
        assert ledger.last_entry == 9
        assert ledger.fragments == (Fragment(EntryId(0), (name,)),)
        assert ledger.length == 8, "as far as the last whole entry says"
        await writer.abandon()

    simulated(scenario)


def test_records_are_merged_and_a_malformed_one_is_an_error() -> None:
    one = LostRun(4, 4, -1, -1, 1, "x")
    assert merged((one,), LostRun(4, 4, -1, -1, 2, "y")) == (one,)
    assert merged((one,), LostRun(4, 4, 10, 12, 2, "y")) == (LostRun(4, 4, 10, 12, 1, "y"),), "now with offsets"
    wide = LostRun(3, 6, 10, 20, 1, "y")
    assert merged((one, LostRun(9, 9, -1, -1, 1, "x")), wide) == (wide, LostRun(9, 9, -1, -1, 1, "x"))
    with pytest.raises(WireError):
        decode_runs(b'{"runs": [[1]]}')
