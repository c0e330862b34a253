"""A reader gets every confirmed entry whole from some replica, follows the tail, and sees the end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.ledger.settings import LedgerSettings, ReaderSettings
from weir.model.errors import EntryUnreadableError, LedgerError, LedgerNotFoundError
from weir.model.ids import EntryId
from weir.model.ledger import Quorum

Simulated = Callable[..., Any]
PayloadsOf = Callable[[Any], list[bytes]]
SMALL_CHUNKS = LedgerSettings(reader=ReaderSettings(chunk_bytes=300, read_ahead_bytes=600))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


async def closed_ledger(cluster: Any, quorum: Quorum, count: int) -> Any:
    writer = await cluster.client.create(quorum)
    await writer.append_many(numbered(count))
    await cluster.turn()
    await writer.close()
    return writer


@pytest.mark.parametrize("quorum", [Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(5, 2, 1)], ids=str)
def test_every_entry_is_read_in_order(simulated: Simulated, payloads_of: PayloadsOf, quorum: Quorum) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await closed_ledger(cluster, quorum, 100)
        reader = await cluster.client.open(writer.ledger_id)
        assert payloads_of(await reader.read(EntryId(0), EntryId(99))) == numbered(100)
        assert payloads_of(await reader.read(EntryId(17), EntryId(17))) == [b"17"]
        streamed = [entry async for batch in reader.stream(EntryId(5)) for entry in batch]
        assert payloads_of(streamed) == numbered(100)[5:]

    simulated(scenario, bookies=5, settings=SMALL_CHUNKS)


def test_a_stream_reads_no_further_ahead_than_its_bytes(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await closed_ledger(cluster, Quorum(1, 1, 1), 1000)
        bookie = cluster.bookie(writer.metadata.fragments[-1].bookies[0])
        reads = 0
        original = bookie.read

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await original(*args, **options)

        bookie.read = counted
        reader = await cluster.client.open(writer.ledger_id)
        stream = reader.stream()
        await anext(stream)
        await cluster.turn(1)
        assert 2 <= reads <= 5
        await stream.aclose()

    simulated(scenario, settings=SMALL_CHUNKS)


@pytest.mark.parametrize("fault", ["down", "damaged", "missing", "stuck"])
def test_a_replica_that_cannot_serve_is_passed_over(
    simulated: Simulated, payloads_of: PayloadsOf, fault: str
) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await closed_ledger(cluster, Quorum(3, 3, 3), 10)
        for name in ("b0", "b1"):
            bookie = cluster.bookie(name)
            if fault == "down":
                cluster.down(name)
            elif fault == "damaged":
                for entry_id in range(3, 7):
                    bookie.damage(writer.ledger_id, entry_id)
            elif fault == "missing":
                for entry_id in (0, 4, 9):
                    del bookie.ledgers[writer.ledger_id].entries[EntryId(entry_id)]
            else:
                bookie.read = _stuck
        reader = await cluster.client.open(writer.ledger_id)
        assert payloads_of(await reader.read(EntryId(0), EntryId(9))) == numbered(10)

    simulated(scenario)


async def _stuck(*_args: Any, **_options: Any) -> Any:
    await asyncio.get_running_loop().create_future()


def test_a_slow_replica_gets_a_second_one_asked_after_a_delay(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await closed_ledger(cluster, Quorum(2, 2, 2), 1)
        first, second = writer.metadata.write_set(EntryId(0))
        cluster.bookie(first).read = _stuck
        reader = await cluster.client.open(writer.ledger_id)
        begun = cluster.runtime.clock.monotonic()
        await reader.read(EntryId(0), EntryId(0))
        waited = cluster.runtime.clock.monotonic() - begun
        assert waited == pytest.approx(cluster.settings.reader.speculative_after_s)
        assert second

    simulated(scenario)


def test_a_replica_that_failed_is_asked_last_from_then_on(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await closed_ledger(cluster, Quorum(2, 2, 2), 1)
        first = writer.metadata.write_set(EntryId(0))[0]
        cluster.down(first)
        reader = await cluster.client.open(writer.ledger_id)
        await reader.read(EntryId(0), EntryId(0))
        cluster.bookie(first).read = _stuck
        begun = cluster.runtime.clock.monotonic()
        await reader.read(EntryId(0), EntryId(0))
        assert cluster.runtime.clock.monotonic() == begun

    simulated(scenario)


def test_when_every_replica_fails_the_error_says_what_each_said(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await closed_ledger(cluster, Quorum(3, 3, 3), 2)
        cluster.down("b0")
        cluster.bookie("b1").damage(writer.ledger_id, 1)
        del cluster.bookie("b2").ledgers[writer.ledger_id].entries[EntryId(1)]
        reader = await cluster.client.open(writer.ledger_id)
        with pytest.raises(EntryUnreadableError) as raised:
            await reader.read(EntryId(1), EntryId(1))
        for said in ("b0: b0 is down", "b1: checksum", "b2: entry 1"):
            assert said in str(raised.value)

    simulated(scenario)


def test_an_entry_with_anothers_id_is_not_believed(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await closed_ledger(cluster, Quorum(2, 2, 2), 3)
        first = cluster.bookie(writer.metadata.write_set(EntryId(1))[0]).ledgers[writer.ledger_id]
        first.entries[EntryId(1)] = first.entries[EntryId(2)]
        reader = await cluster.client.open(writer.ledger_id)
        assert bytes((await reader.read(EntryId(1), EntryId(1)))[0].payload) == b"1"

    simulated(scenario)


def test_replicas_that_were_replaced_meanwhile_are_found_in_the_metadata(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        await reader.close()  # it no longer hears of changes
        old = writer.metadata.fragments[-1].bookies
        cluster.down(*old)
        await writer.append(b"x")
        assert not set(writer.metadata.write_set(EntryId(0))) & set(old)
        await cluster.turn(1)
        await cluster.client.open(writer.ledger_id, recover=False)
        reader._confirm(EntryId(0))
        assert len(await reader.read(EntryId(0), EntryId(0))) == 1

    simulated(scenario, bookies=4)


# --- behind a writer ------------------------------------------------------------------------------------------


def test_an_open_ledger_is_readable_up_to_the_last_confirmed_entry_only(
    simulated: Simulated, payloads_of: PayloadsOf
) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        assert await reader.last_confirmed() == -1
        await writer.append_many(numbered(5))
        await writer.append(b"5")
        assert await reader.last_confirmed() == 4
        assert payloads_of(await reader.read(EntryId(0), EntryId(4))) == numbered(5)
        with pytest.raises(EntryUnreadableError, match="beyond the last confirmed"):
            await reader.read(EntryId(0), EntryId(5))
        await reader.close()

    simulated(scenario)


def test_a_tail_reader_hears_of_each_entry_even_of_an_idle_ledger(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 2, 2))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        for i in range(4):
            waiting = asyncio.get_running_loop().create_task(reader.wait_for(EntryId(i - 1), timeout_s=60))
            await cluster.turn()
            begun = cluster.runtime.clock.monotonic()
            await writer.append(b"x")
            assert await waiting == i
            assert cluster.runtime.clock.monotonic() - begun < 0.1
        assert await reader.wait_for(EntryId(3), timeout_s=5) == 3
        await reader.close()

    simulated(scenario)


def test_a_waiting_reader_sees_the_close_by_the_writer(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        waiting = asyncio.get_running_loop().create_task(reader.wait_for(EntryId(0), timeout_s=3600))
        await writer.append(b"0")
        await writer.close()
        assert await waiting == 0
        assert reader.closed
        await reader.close()

    simulated(scenario)


def test_a_waiting_reader_sees_the_end_that_a_recovery_found(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 3))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        for name in ("b0", "b1", "b2"):
            cluster.bookie(name).hold()
        writer.append(b"0")
        await cluster.turn()
        waiting = asyncio.get_running_loop().create_task(reader.wait_for(EntryId(-1), timeout_s=3600))
        await cluster.turn(1)
        assert not waiting.done(), "stored, but not acknowledged"
        for name in ("b0", "b1", "b2"):
            cluster.bookie(name)._held = None
        await cluster.client.recover(writer.ledger_id)
        assert await waiting == 0
        await reader.close()

    simulated(scenario)


def test_a_tail_reader_follows_the_writer_to_other_bookies(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(2, 2, 2))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        cluster.down(*writer.metadata.fragments[-1].bookies)
        waiting = asyncio.get_running_loop().create_task(reader.wait_for(EntryId(-1), timeout_s=60))
        await writer.append(b"x")
        assert await waiting == 0
        await reader.close()

    simulated(scenario, bookies=4)


def test_a_deleted_ledger_ends_the_wait(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(1, 1, 1))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        waiting = asyncio.get_running_loop().create_task(reader.wait_for(EntryId(-1), timeout_s=60))
        await cluster.turn()
        await cluster.client.delete(writer.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await waiting
        await reader.close()

    simulated(scenario)


def test_when_no_bookie_answers_the_tail_is_unknown(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        reader = await cluster.client.open(writer.ledger_id, recover=False)
        cluster.down("b0", "b1", "b2")
        with pytest.raises(LedgerError, match="no bookie"):
            await reader.last_confirmed()
        await reader.close()

    simulated(scenario)
