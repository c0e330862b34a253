"""A writer acknowledges in order, on an ack quorum that the metadata names, and survives the loss of bookies."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.ledger.settings import LedgerSettings, WriterSettings
from weir.model.errors import (
    BookieBusyError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerNotFoundError,
    NotEnoughBookiesError,
    WindowFullError,
    WriterFencedError,
)
from weir.model.ids import BookieId, EntryId
from weir.model.ledger import LedgerState, Quorum
from weir.wire.entry import MAX_PAYLOAD_BYTES, last_confirmed_of

Simulated = Callable[..., Any]


def ensemble_of(writer: Any) -> list[str]:
    return [str(b) for b in writer.metadata.fragments[-1].bookies]


def test_entries_get_consecutive_ids_and_are_acknowledged(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        ids = await asyncio.gather(*(writer.append(b"x") for _ in range(5)))
        assert ids == [0, 1, 2, 3, 4]
        assert await writer.append_many([b"y", b"z"]) == 5
        assert (writer.last_confirmed, writer.length) == (6, 7)

    simulated(scenario)


def test_pieces_are_stored_as_one_payload_and_large_ones_are_given_back_as_they_are_kept(
    simulated: Simulated,
) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        small, large, view = b"small", b"l" * 5_000, memoryview(b"view")
        appended, kept = writer.append_pieces([(b"1", small), (b"22", large), (b"", view)])
        assert (await appended, writer.length) == (0, 1 + 5 + 2 + 5_000 + 4)
        assert kept == [small, large, view]
        assert kept[0] is small
        assert [len(part.obj) > len(part) for part in kept[1:]] == [True, True]  # slices of the entries
        await writer.close()
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        entries = await reader.read(EntryId(0), EntryId(2))
        assert [bytes(entry.payload) for entry in entries] == [b"1" + small, b"22" + large, b"view"]
        refused, given_back = writer.append_pieces([(b"1", small)])
        with pytest.raises(LedgerClosedError):
            await refused
        assert given_back == [small]
        with pytest.raises(LedgerError):
            await writer.append_pieces([])[0]
        await reader.close()

    simulated(scenario)


def test_what_one_turn_appends_is_one_add_per_bookie(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 3))
        for name in ensemble_of(writer):
            cluster.bookie(name).hold()
        appended = [writer.append(b"x") for _ in range(100)]
        await cluster.turn()
        assert [cluster.bookie(b).most_unacknowledged for b in ensemble_of(writer)] == [1, 1, 1]
        for name in ensemble_of(writer):
            cluster.bookie(name).release()
        assert await asyncio.gather(*appended) == list(range(100))

    simulated(scenario)


def test_entries_are_striped_over_the_ensemble_as_the_metadata_says(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(5, 3, 2))
        await writer.append_many([b"x"] * 20)
        await cluster.turn()
        for entry_id in range(20):
            expected = sorted(writer.metadata.write_set(EntryId(entry_id)))
            assert sorted(cluster.holders(writer.ledger_id, entry_id)) == expected

    simulated(scenario, bookies=5)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(3, 3, 3), Quorum(3, 2, 1)], ids=str)
def test_an_entry_is_acknowledged_only_when_an_ack_quorum_answered(simulated: Simulated, quorum: Quorum) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(quorum)
        for name in ensemble_of(writer):
            cluster.bookie(name).hold()
        appended = writer.append(b"x")
        await cluster.turn()
        for answered, name in enumerate(writer.metadata.write_set(EntryId(0))):
            assert appended.done() is (answered >= quorum.ack)
            cluster.bookie(name).release()
            await cluster.turn()
        assert appended.done()

    simulated(scenario)


def test_a_later_entry_waits_for_an_earlier_one(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 1, 1))
        first, second = (cluster.bookie(writer.metadata.write_set(EntryId(i))[0]) for i in range(2))
        first.hold()
        one = writer.append(b"1")
        await cluster.turn()
        two = writer.append(b"2")
        await cluster.turn()
        assert EntryId(1) in second.ledgers[writer.ledger_id].entries
        assert not one.done()
        assert not two.done()
        order: list[int] = []
        one.add_done_callback(lambda f: order.append(f.result()))
        two.add_done_callback(lambda f: order.append(f.result()))
        first.release()
        await cluster.turn()
        assert order == [0, 1]

    simulated(scenario)


def test_a_slow_bookie_beyond_the_ack_quorum_holds_nobody_up(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        cluster.bookie(ensemble_of(writer)[0]).hold()
        assert await writer.append(b"x") == 0
        assert not writer.degraded

    simulated(scenario)


def test_entries_carry_the_last_confirmed_and_an_idle_ledger_says_it(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 3))
        await writer.append(b"1")
        await writer.append(b"2")
        for name in ensemble_of(writer):
            held = cluster.bookie(name).ledgers[writer.ledger_id]
            assert last_confirmed_of(held.entries[EntryId(1)]) == 0
            assert held.last_confirmed == 0
        await cluster.turn(cluster.settings.writer.confirm_idle_s * 2)
        assert [cluster.bookie(b).ledgers[writer.ledger_id].last_confirmed for b in ensemble_of(writer)] == [1] * 3

    simulated(scenario)


# --- ensemble change ------------------------------------------------------------------------------------------


def test_a_failed_bookie_is_replaced_and_gets_what_was_unacknowledged(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 3))
        await writer.append_many([b"x"] * 3)
        before = ensemble_of(writer)
        cluster.down(before[1])
        assert await asyncio.gather(*(writer.append(b"y") for _ in range(3))) == [3, 4, 5]
        after = ensemble_of(writer)
        assert (after[0], after[2]) == (before[0], before[2])
        assert after[1] not in before
        assert [f.first_entry for f in writer.metadata.fragments] == [0, 3]
        assert (await cluster.client.metadata(writer.ledger_id)) == writer.metadata
        for entry_id in range(3, 6):
            assert set(after) <= set(cluster.holders(writer.ledger_id, entry_id))

    simulated(scenario, bookies=4)


def test_nothing_is_acknowledged_before_the_ensemble_change_is_written_down(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"0")
        cluster.meta.open.clear()
        bookies = ensemble_of(writer)
        cluster.bookie(bookies[0]).hold()
        cluster.down(bookies[1])
        appended = writer.append(b"1")
        await cluster.turn()
        cluster.bookie(bookies[0]).release()
        await cluster.turn()
        # Two of three hold it: an ack quorum of the old ensemble, while the new one is being written down.
        assert len(cluster.holders(writer.ledger_id, 1)) == 2
        assert not appended.done()
        assert writer.last_confirmed == 0
        cluster.meta.open.set()
        assert await appended == 1
        assert writer.metadata.fragments[-1].first_entry == 1

    simulated(scenario, bookies=4)


def test_the_answer_of_a_replaced_bookie_does_not_count(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        first, second = ensemble_of(writer)
        # The first answers, the second is stuck; then the first fails on the next batch and is replaced.
        cluster.bookie(second).hold()
        one = writer.append(b"1")
        await cluster.turn()
        cluster.down(first)
        two = writer.append(b"2")
        for name in ("b0", "b1", "b2"):
            if name not in (first, second):
                cluster.bookie(name).hold()
                spare = name
        await cluster.turn()
        assert ensemble_of(writer) == [spare, second]
        cluster.bookie(second).release()
        await cluster.turn()
        assert not one.done(), "held by the second, and by the first, which no longer counts"
        cluster.bookie(spare).release()
        assert await asyncio.gather(one, two) == [0, 1]
        assert spare in cluster.holders(writer.ledger_id, 0)

    simulated(scenario)


def test_a_bookie_that_does_not_answer_in_time_is_replaced(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 3))
        stuck = ensemble_of(writer)[0]
        cluster.bookie(stuck).hold()
        assert await writer.append(b"x") == 0
        assert stuck not in ensemble_of(writer)

    simulated(scenario, bookies=4)


def test_bookies_that_fail_one_after_the_other_are_all_replaced(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"0")
        before = ensemble_of(writer)
        cluster.meta.open.clear()
        cluster.down(before[0])
        one = writer.append(b"1")
        await cluster.turn()
        cluster.down(before[1])
        two = writer.append(b"2")
        await cluster.turn()
        cluster.meta.open.set()
        assert await asyncio.gather(one, two) == [1, 2]
        await cluster.turn()
        after = ensemble_of(writer)
        assert before[0] not in after
        assert before[1] not in after
        # Entry 1 was on the second bookie before that failed, so it may stay where the first change put it.
        assert [f.first_entry for f in writer.metadata.fragments] == [0, 1, 2]

    simulated(scenario, bookies=5)


@pytest.mark.parametrize("fault", ["lose_answers", "lose_puts"])
def test_an_ensemble_change_with_unknown_outcome_is_found_out(simulated: Simulated, fault: str) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 3))
        await writer.append(b"0")
        setattr(cluster.meta, fault, 3)
        cluster.down(ensemble_of(writer)[2])
        assert await writer.append(b"1") == 1
        assert await cluster.client.metadata(writer.ledger_id) == writer.metadata

    simulated(scenario, bookies=4)


def test_without_a_replacement_a_writer_goes_on_while_ack_quorums_remain(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        lost = ensemble_of(writer)[0]
        cluster.down(lost)
        assert await writer.append(b"0") == 0
        assert writer.degraded
        assert await writer.append(b"1") == 1
        cluster.up(lost)
        await cluster.turn(cluster.settings.quarantine_s + cluster.settings.writer.degraded_retry_s)
        assert not writer.degraded
        await writer.append(b"2")
        await cluster.turn()
        assert lost in cluster.holders(writer.ledger_id, 2)
        assert len(writer.metadata.fragments) == 1

    simulated(scenario)


def test_a_degraded_writer_takes_a_new_bookie_when_one_comes(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        lost = ensemble_of(writer)[0]
        cluster.down(lost)
        await writer.append(b"0")
        await cluster.register("b9")
        await cluster.turn(cluster.settings.writer.degraded_retry_s + 0.1)
        assert "b9" in ensemble_of(writer)
        assert writer.metadata.fragments[-1].first_entry == 1

    simulated(scenario)


def test_when_ack_quorums_are_out_of_reach_everything_pending_fails(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"0")
        cluster.down(*ensemble_of(writer)[:2])
        pending = [writer.append(b"1"), writer.append_many([b"2", b"3"])]
        failures = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(f) for f in failures] == [NotEnoughBookiesError] * 2
        with pytest.raises(NotEnoughBookiesError):
            await writer.append(b"4")
        with pytest.raises(NotEnoughBookiesError):
            await writer.wait_capacity()
        closed = await writer.close()
        assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 0, 1)

    simulated(scenario)


def test_a_busy_bookie_is_asked_again_and_not_replaced(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        before = ensemble_of(writer)
        cluster.bookie(before[0]).failure = BookieBusyError("full")
        appended = writer.append(b"x")
        await cluster.turn(0.1)
        assert not appended.done()
        cluster.up(before[0])
        assert await appended == 0
        assert ensemble_of(writer) == before

    simulated(scenario)


def test_a_bookie_that_stays_busy_has_failed(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        before = ensemble_of(writer)
        cluster.bookie(before[0]).failure = BookieBusyError("full")
        assert await writer.append(b"x") == 0
        assert before[0] not in ensemble_of(writer)

    simulated(scenario)


# --- fencing and the end --------------------------------------------------------------------------------------


def test_a_fenced_writer_acknowledges_nothing_more(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"0")
        await cluster.client.recover(writer.ledger_id)
        pending = [writer.append(b"1"), writer.append(b"2")]
        failures = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(f) for f in failures] == [WriterFencedError] * 2
        with pytest.raises(WriterFencedError):
            await writer.close()
        assert (await cluster.client.metadata(writer.ledger_id)).last_entry == 0

    simulated(scenario)


def test_an_ensemble_change_during_a_recovery_fences_the_writer(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"0")
        # No bookie can be fenced yet, but the metadata says that a recovery runs.
        names = ensemble_of(writer)
        fences = {name: cluster.bookie(name).fence for name in names}
        for name in names:
            cluster.bookie(name).fence = _never
        recovery = asyncio.get_running_loop().create_task(cluster.client.recover(writer.ledger_id))
        await cluster.turn()
        cluster.down(names[0])
        with pytest.raises(WriterFencedError):
            await writer.append_many([b"1"])
        cluster.up(names[0])
        for name in names:
            cluster.bookie(name).fence = fences[name]
        assert (await recovery).last_entry in (0, 1)

    simulated(scenario, bookies=4)


async def _never(_ledger_id: Any) -> EntryId:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def test_close_acknowledges_what_is_pending_and_writes_down_the_end(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 2, 2))
        pending = [writer.append(b"ab") for _ in range(7)]
        closed = await writer.close()
        assert [f.result() for f in pending] == list(range(7))
        assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 6, 14)
        assert await cluster.client.metadata(writer.ledger_id) == closed
        assert await writer.close() == closed
        with pytest.raises(LedgerClosedError):
            await writer.append(b"x")

    simulated(scenario)


@pytest.mark.parametrize("fault", ["lose_answers", "lose_puts"])
def test_a_close_with_unknown_outcome_is_found_out(simulated: Simulated, fault: str) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        await writer.append(b"x")
        setattr(cluster.meta, fault, 2)
        assert (await writer.close()).last_entry == 0

    simulated(scenario)


def test_a_writer_of_a_deleted_ledger_cannot_close_it(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        await cluster.client.delete(writer.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await writer.close()

    simulated(scenario)


def test_an_abandoned_writer_fails_what_is_pending_and_leaves_the_ledger_open(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        pending = writer.append(b"x")
        await writer.abandon()
        with pytest.raises(LedgerClosedError):
            await pending
        assert (await cluster.client.metadata(writer.ledger_id)).state is LedgerState.OPEN

    simulated(scenario)


# --- the window -----------------------------------------------------------------------------------------------

SMALL = LedgerSettings(writer=WriterSettings(window_entries=10, window_bytes=1000, batch_bytes=300))


@pytest.mark.parametrize("payload", [b"x", b"x" * 200], ids=["entries", "bytes"])
def test_ready_waits_while_the_window_is_full_and_append_refuses_beyond_twice_of_it(
    simulated: Simulated, payload: bytes
) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        bookie = cluster.bookie(ensemble_of(writer)[0])
        bookie.hold()
        accepted = []
        ready = None
        for _ in range(100):
            future = writer.append(payload)
            await cluster.turn()
            if future.done():
                with pytest.raises(WindowFullError):
                    future.result()
                break
            accepted.append(future)
            if ready is None and writer._over(1):
                ready = asyncio.get_running_loop().create_task(writer.wait_capacity())
        assert 4 < len(accepted) <= 21
        assert ready is not None
        assert not ready.done()
        bookie.release()
        await ready
        assert await asyncio.gather(*accepted) == list(range(len(accepted)))
        assert await writer.append(payload) == len(accepted)

    simulated(scenario, settings=SMALL)


def test_acknowledged_pieces_are_out_of_the_window_and_an_entry_follows_them(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        for number in range(20):  # three batches each
            appended, _ = writer.append_pieces([(b"head", b"x" * 200)] * 3)
            assert await appended == 3 * number
            assert writer._unacknowledged_bytes == 0
        assert await writer.append(b"x") == 60

    simulated(scenario, settings=SMALL)


def test_what_a_slow_bookie_has_not_answered_counts_against_the_window(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 1))
        slow = cluster.bookie(ensemble_of(writer)[0])
        slow.hold()
        with pytest.raises(WindowFullError):
            for _ in range(100):
                await writer.append(b"x" * 200)
        slow.release()
        await writer.wait_capacity()
        await writer.append(b"x")

    simulated(scenario, settings=SMALL)


def test_a_large_turn_is_cut_into_several_adds(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        bookie = cluster.bookie(ensemble_of(writer)[0])
        bookie.hold()
        whole = writer.append_many([b"x" * 100] * 6)
        await cluster.turn()
        assert bookie.most_unacknowledged == 3
        bookie.release()
        assert await whole == 0

    simulated(scenario, settings=SMALL)


def test_a_payload_beyond_the_limit_is_refused_and_harms_nobody(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        with pytest.raises(EntryTooLargeError):
            await writer.append(bytes(MAX_PAYLOAD_BYTES + 1))
        assert await writer.append(b"x") == 0

    simulated(scenario)


def test_a_bookie_that_failed_is_avoided_by_new_ledgers_for_a_while(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        lost = ensemble_of(writer)[0]
        cluster.down(lost)
        await writer.append(b"x")
        for _ in range(10):
            assert BookieId(lost) not in ensemble_of(await cluster.client.create(Quorum(3, 2, 2)))

    simulated(scenario, bookies=4)
