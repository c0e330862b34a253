"""Ledgers of a lost bookie get their copies back, whoever does it, and nothing else changes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.ledger.marks import Marks
from weir.ledger.repair import Repair, check_ledger
from weir.ledger.replication import Auditor, LeasedLocks, ReplicationWorker
from weir.ledger.settings import LedgerSettings, RepairSettings
from weir.meta import keys
from weir.model.errors import WriterFencedError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerState, Quorum

Simulated = Callable[..., Any]
REPAIR = RepairSettings(bookie_grace_s=60, open_grace_s=30, audit_every_s=10, work_every_s=5)
SETTINGS = LedgerSettings(repair=REPAIR)


async def lose(cluster: Any, *names: str) -> None:
    for name in names:
        cluster.down(name)
        await cluster.unregister(name)


def has_every_copy(cluster: Any, ledger: Any) -> bool:
    return all(
        set(ledger.write_set(EntryId(e))) <= set(cluster.holders(ledger.ledger_id, e))
        for e in range(ledger.last_entry + 1)
    )


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 3, 2)], ids=str)
def test_a_lost_bookies_part_is_copied_and_the_metadata_names_the_new_one(
    simulated: Simulated, quorum: Quorum
) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(quorum)
        await writer.append_many([b"%d" % i for i in range(50)])
        await cluster.turn()
        before = await writer.close()
        lost = before.fragments[0].bookies[1]
        await lose(cluster, lost)
        context = cluster.client.context
        report = await Repair(context).repair(writer.ledger_id, [lost], fence_open=False)
        after = await cluster.client.metadata(writer.ledger_id)
        assert report.complete
        assert report.replaced == [(0, lost, after.fragments[0].bookies[1])]
        assert lost not in after.bookies()
        assert (after.last_entry, after.length, after.state) == (49, before.length, LedgerState.CLOSED)
        assert has_every_copy(cluster, after)
        reader = await cluster.client.open(writer.ledger_id)
        assert [bytes(e.payload) for e in await reader.read(EntryId(0), EntryId(49))] == [
            b"%d" % i for i in range(50)
        ]

    simulated(scenario, bookies=6, settings=SETTINGS)


def test_every_fragment_and_every_lost_bookie_is_repaired(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append_many([b"a"] * 10)
        first = writer.metadata.fragments[0].bookies
        await lose(cluster, first[0])
        await writer.append_many([b"b"] * 10)
        await lose(cluster, first[1])
        await writer.append_many([b"c"] * 10)
        await cluster.turn(1)
        ledger = await writer.close()
        assert len(ledger.fragments) == 3
        report = await Repair(cluster.client.context).repair(writer.ledger_id, first[:2], fence_open=False)
        after = await cluster.client.metadata(writer.ledger_id)
        assert report.complete, report
        assert not set(first[:2]) & set(after.bookies())
        assert has_every_copy(cluster, after)

    simulated(scenario, bookies=7, settings=SETTINGS)


def test_a_present_bookie_that_missed_entries_gets_them(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append_many([b"x"] * 10)
        await cluster.turn()
        ledger = await writer.close()
        held = cluster.bookie("b1").ledgers[writer.ledger_id].entries
        for entry_id in (0, 4, 9):
            del held[EntryId(entry_id)]
        cluster.bookie("b1").damage(writer.ledger_id, 5)
        report = await Repair(cluster.client.context).repair(writer.ledger_id, [BookieId("b1")], fence_open=False)
        assert report.filled == [(0, "b1", 4)]
        assert await cluster.client.metadata(writer.ledger_id) == ledger
        assert (await check_ledger(cluster.client.context, ledger, confirmed=ledger.last_entry)).good

    simulated(scenario)


def test_a_writer_that_ran_degraded_leaves_a_mark_and_the_worker_fills_the_gap(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        cluster.down("b2")
        await writer.append_many([b"x"] * 10)
        ledger = await writer.close()
        assert not has_every_copy(cluster, ledger)
        cluster.up("b2")
        worker = ReplicationWorker(cluster.client.context, "w")
        assert await worker.work_once() == 1
        assert has_every_copy(cluster, ledger)
        assert await Marks(cluster.runtime, cluster.meta).list() == []

    simulated(scenario)


def test_entries_that_nobody_holds_keep_the_mark_and_are_named(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        await writer.append_many([b"x"] * 3)
        ledger = await writer.close()
        lost, other = ledger.fragments[0].bookies
        cluster.bookie(other).damage(writer.ledger_id, 1)
        await lose(cluster, lost)
        report = await Repair(cluster.client.context).repair(writer.ledger_id, [lost], fence_open=False)
        assert not report.complete
        assert "entry 1" in report.failures[0]
        assert await cluster.client.metadata(writer.ledger_id) == ledger

    simulated(scenario)


def test_without_a_bookie_to_take_the_place_nothing_changes(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"x")
        ledger = await writer.close()
        await lose(cluster, "b0")
        report = await Repair(cluster.client.context).repair(writer.ledger_id, [BookieId("b0")], fence_open=False)
        assert "no bookie can take the place of b0" in report.failures[0]
        assert await cluster.client.metadata(writer.ledger_id) == ledger

    simulated(scenario)


def test_a_target_that_fails_is_replaced_by_another(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        await writer.append_many([b"x"] * 5)
        lost = (await writer.close()).fragments[0].bookies[0]
        await lose(cluster, lost)
        spares = [b for b in ("b0", "b1", "b2", "b3") if b not in writer.metadata.bookies()]
        cluster.refuse_adds(spares[0])
        report = await Repair(cluster.client.context).repair(writer.ledger_id, [lost], fence_open=False)
        assert report.replaced == [(0, lost, spares[1])]

    simulated(scenario, bookies=4)


# --- ledgers that are still open ------------------------------------------------------------------------------


def test_closed_fragments_of_an_open_ledger_are_repaired_beside_its_writer(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        await writer.append_many([b"x"] * 5)
        lost = writer.metadata.fragments[0].bookies[0]
        await lose(cluster, lost)
        await writer.append_many([b"y"] * 5)
        report = await Repair(cluster.client.context).repair(writer.ledger_id, [lost], fence_open=False)
        assert report.complete
        await lose(cluster, writer.metadata.fragments[-1].bookies[1])
        await writer.append_many([b"z"] * 5)
        ledger = await writer.close()
        assert lost not in ledger.bookies()
        assert [f.first_entry for f in ledger.fragments] == [0, 5, 10]

    simulated(scenario, bookies=6)


def test_an_open_ledger_on_a_lost_bookie_is_left_to_its_writer_for_a_while_then_fenced(
    simulated: Simulated,
) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        await writer.append(b"x")
        lost = writer.metadata.fragments[0].bookies[0]
        await lose(cluster, lost)
        await Marks(cluster.runtime, cluster.meta).add(writer.ledger_id, (lost,))
        worker = ReplicationWorker(cluster.client.context, "w")
        assert await worker.work_once() == 0
        assert (await cluster.client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        await cluster.turn(REPAIR.open_grace_s + 1)
        assert await worker.work_once() == 1
        after = await cluster.client.metadata(writer.ledger_id)
        assert after.state is LedgerState.CLOSED
        assert has_every_copy(cluster, after)
        with pytest.raises(WriterFencedError):
            await writer.append(b"y")

    simulated(scenario, bookies=4, settings=SETTINGS)


# --- auditor and worker ---------------------------------------------------------------------------------------


def test_the_auditor_marks_ledgers_of_a_bookie_only_after_the_grace_period(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writers = [await cluster.client.create(Quorum(2, 2, 2)) for _ in range(6)]
        for writer in writers:
            await writer.close()
        auditor = Auditor(cluster.client.context, "a")
        assert await auditor.audit() == {}
        await lose(cluster, "b0")
        await cluster.turn(REPAIR.bookie_grace_s - 1)
        assert await auditor.audit() == {}
        await cluster.turn(2)
        expected = {w.ledger_id: ("b0",) for w in writers if "b0" in w.metadata.bookies()}
        assert expected
        assert await auditor.audit() == expected
        assert await auditor.lost() == ["b0"]
        marks = await Marks(cluster.runtime, cluster.meta).list()
        assert {m.ledger_id: m.suspects for m in marks} == expected

    simulated(scenario, settings=SETTINGS)


def test_a_bookie_that_comes_back_within_the_grace_period_is_not_lost(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        auditor = Auditor(cluster.client.context, "a")
        for _ in range(3):
            await cluster.unregister("b0")
            await cluster.turn(REPAIR.bookie_grace_s / 2)
            await cluster.register("b0")
        assert await auditor.lost() == []

    simulated(scenario, settings=SETTINGS)


def test_auditors_and_workers_on_several_nodes_repair_everything_once(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writers = [await cluster.client.create(Quorum(3, 2, 2)) for _ in range(8)]
        for writer in writers:
            await writer.append_many([b"x"] * 20)
            await writer.close()
        context = cluster.client.context
        loop = asyncio.get_running_loop()
        running = [
            loop.create_task(part.run())
            for i in range(2)
            for part in (Auditor(context, f"n{i}"), ReplicationWorker(context, f"n{i}"))
        ]
        await lose(cluster, "b0")
        await cluster.turn(REPAIR.bookie_grace_s + 5 * REPAIR.audit_every_s)
        for ledger in await cluster.client.list():
            assert "b0" not in ledger.bookies()
            assert has_every_copy(cluster, ledger)
        assert await Marks(cluster.runtime, cluster.meta).list() == []
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert (await cluster.meta.list("/weir/repair-locks/")).items == []
        assert await cluster.meta.get(keys.AUDITOR) is None

    simulated(scenario, bookies=5, settings=SETTINGS)


def test_the_mark_of_a_deleted_ledger_is_taken_off(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        marks = Marks(cluster.runtime, cluster.meta)
        await marks.add(LedgerId(404), (BookieId("b0"),))
        await ReplicationWorker(cluster.client.context, "w").work_once()
        assert await marks.list() == []

    simulated(scenario)


def test_a_mark_that_was_added_to_meanwhile_stays(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        marks = Marks(cluster.runtime, cluster.meta)
        await marks.add(LedgerId(1), (BookieId("b0"),))
        (mark,) = await marks.list()
        await marks.add(LedgerId(1), (BookieId("b1"),))
        await marks.clear(mark)
        assert [m.suspects for m in await marks.list()] == [("b0", "b1")]

    simulated(scenario)


def test_a_lock_is_held_by_one_and_free_when_its_holder_is_gone(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        one = LeasedLocks(cluster.meta, "one", ttl_s=5)
        two = LeasedLocks(cluster.meta, "two", ttl_s=5)
        assert await one.take("/k")
        assert not await two.take("/k")
        await two.release("/k")
        assert not await two.take("/k")
        await one.release("/k")
        assert await two.take("/k")
        await two.close()
        assert await one.take("/k")

    simulated(scenario)


def test_copying_is_throttled(simulated: Simulated) -> None:
    slow = LedgerSettings(repair=RepairSettings(bytes_per_s=10_000, chunk_bytes=1_000))

    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        await writer.append_many([bytes(960)] * 100)
        lost = (await writer.close()).fragments[0].bookies[0]
        await lose(cluster, lost)
        begun = cluster.runtime.clock.monotonic()
        await Repair(cluster.client.context).repair(writer.ledger_id, [lost], fence_open=False)
        assert cluster.runtime.clock.monotonic() - begun == pytest.approx(10, rel=0.1)

    simulated(scenario, settings=slow)


# --- checking -------------------------------------------------------------------------------------------------


def test_a_check_names_what_each_replica_lacks(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 2, 2))
        await writer.append_many([b"x"] * 12)
        await cluster.turn()
        ledger = await writer.close()
        context = cluster.client.context
        assert (await check_ledger(context, ledger, confirmed=ledger.last_entry)).good
        first, second, third = ledger.fragments[0].bookies
        del cluster.bookie(first).ledgers[writer.ledger_id].entries[EntryId(3)]
        cluster.bookie(second).damage(writer.ledger_id, 3)
        cluster.bookie(second).damage(writer.ledger_id, 6)
        cluster.down(third)
        seen = []
        report = await check_ledger(
            context, ledger, confirmed=ledger.last_entry, progress=lambda entries, _: seen.append(entries)
        )
        by_bookie = {r.bookie_id: r for r in report.replicas}
        assert by_bookie[first].missing == [3]
        assert by_bookie[second].damaged == [3, 6]
        assert by_bookie[third].unreachable == f"{third} is down"
        assert by_bookie[first].whole == 7
        assert report.lost() == [3]
        assert not report.good
        assert seen

    simulated(scenario)
