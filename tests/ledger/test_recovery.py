"""Recovery keeps whatever may have been acknowledged, never guesses, and ends the same for everyone."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from weir.ledger.client import LedgerClient
from weir.ledger.settings import LedgerSettings, RecoverySettings
from weir.model.errors import (
    BookieUnavailableError,
    EntryLostError,
    LedgerNotFoundError,
    NoSuchEntryError,
    RecoveryFailedError,
    WriterFencedError,
)
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum

Simulated = Callable[..., Any]
MakeEntry = Callable[..., bytes]

IMPATIENT = LedgerSettings(recovery=RecoverySettings(timeout_s=3.0, request_timeout_s=0.5))
LEDGER = LedgerId(77)


async def write_down(cluster: Any, quorum: Quorum, *fragments: Fragment) -> LedgerMetadata:
    """An open ledger whose writer is gone."""
    first = Fragment(EntryId(0), tuple(BookieId(f"b{i}") for i in range(quorum.ensemble)))
    ledger = LedgerMetadata(LEDGER, quorum, fragments or (first,))
    await cluster.client.context.records.create(ledger)
    return ledger


def subsets(items: Any) -> list[tuple[Any, ...]]:
    items = list(items)
    return [c for n in range(len(items) + 1) for c in itertools.combinations(items, n)]


@pytest.mark.slow
@pytest.mark.parametrize("spares", [0, 2])
@pytest.mark.parametrize(
    "quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(3, 3, 1), Quorum(3, 2, 1), Quorum(3, 3, 3)], ids=str
)
def test_the_tail_entry_is_kept_whenever_it_may_have_been_acknowledged(
    simulated: Simulated, entry: MakeEntry, quorum: Quorum, spares: int
) -> None:
    """Every subset of the write set holding the tail entry, with every subset of the ensemble down."""
    ensemble = [f"b{i}" for i in range(3)]
    write_set = [ensemble[(1 + i) % 3] for i in range(quorum.write)]
    outcomes: dict[str, int] = {}
    for holders, down in itertools.product(subsets(write_set), subsets(ensemble)):

        async def scenario(cluster: Any, holders: Any = holders, down: Any = down) -> str:
            ledger = await write_down(cluster, quorum)
            for name in ledger.write_set(EntryId(0)):
                await cluster.bookie(name).add(LEDGER, [(EntryId(0), entry(LEDGER, 0))])
            for name in holders:
                await cluster.bookie(name).add(LEDGER, [(EntryId(1), entry(LEDGER, 1, 0))])
            cluster.down(*down)
            try:
                closed = await cluster.client.recover(LEDGER)
                first_try = "closed"
            except RecoveryFailedError:
                undecided = (await cluster.client.metadata(LEDGER)).state
                assert undecided is LedgerState.IN_RECOVERY
                assert down, "with every bookie there it can always be decided"
                first_try = "undecided"
                cluster.up(*down)
                closed = await cluster.client.recover(LEDGER)
            if len(holders) >= quorum.ack:
                assert closed.last_entry == 1, "it may have been acknowledged"
            assert closed.last_entry in (0, 1)
            assert closed.length == (4 if closed.last_entry == 1 else 2)
            if closed.last_entry == 1:
                copies = set(cluster.holders(LEDGER, 1)) & set(closed.write_set(EntryId(1)))
                assert len(copies) >= (quorum.write if spares or not down else quorum.ack)
            return f"{first_try} at {closed.last_entry}"

        outcome = simulated(scenario, bookies=3 + spares, settings=IMPATIENT)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["closed at 1"] > 0
    assert outcomes["closed at 0"] > 0
    assert outcomes["undecided at 1"] > 0


def test_an_empty_ledger_is_closed_empty(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        await write_down(cluster, Quorum(3, 3, 2))
        closed = await cluster.client.recover(LEDGER)
        assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, -1, 0)

    simulated(scenario)


def test_a_long_tail_is_written_back_in_chunks_to_whole_write_sets(simulated: Simulated, entry: MakeEntry) -> None:
    settings = LedgerSettings(recovery=RecoverySettings(chunk_entries=7))

    async def scenario(cluster: Any) -> None:
        ledger = await write_down(cluster, Quorum(4, 3, 2))
        for i in range(40):
            # Each entry is on just one bookie of its write set, in turn.
            name = ledger.write_set(EntryId(i))[i // 4 % 3]
            await cluster.bookie(name).add(LEDGER, [(EntryId(i), entry(LEDGER, i))])
        closed = await cluster.client.recover(LEDGER)
        assert closed.last_entry == 39
        for i in range(40):
            assert set(closed.write_set(EntryId(i))) <= set(cluster.holders(LEDGER, i))

    simulated(scenario, bookies=4, settings=settings)


def test_a_denial_before_the_fence_does_not_count(simulated: Simulated, entry: MakeEntry) -> None:
    """BookKeeper's issue 2614: an unfenced bookie denies the entry, then takes it from the writer."""

    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"0")
        b0, b1, b2 = (cluster.bookie(b) for b in writer.metadata.fragments[-1].bookies)
        late = entry(writer.ledger_id, 1, 0)
        await b0.add(writer.ledger_id, [(EntryId(1), late)])
        fence, read = b2.fence, b0.read
        b2.fence = _unreachable
        b0.read = _unreachable
        recovery = asyncio.get_running_loop().create_task(cluster.client.recover(writer.ledger_id))
        await cluster.turn(0.05)
        assert b0.ledgers[writer.ledger_id].fenced
        assert b1.ledgers[writer.ledger_id].fenced
        with pytest.raises(NoSuchEntryError):
            await b2.read(writer.ledger_id, EntryId(1), EntryId(1), max_bytes=1)
        # b1 denies for good, b0 holds it but cannot be read, b2 is not fenced and takes it now: acknowledged.
        await b2.add(writer.ledger_id, [(EntryId(1), late)])
        b2.fence = fence
        closed = await recovery
        assert closed.last_entry == 1
        b0.read = read

    simulated(scenario)


async def _unreachable(*_args: Any, **_options: Any) -> Any:
    raise BookieUnavailableError("not reachable")


def test_a_bookie_that_joined_during_recovery_is_never_asked_what_it_cannot_know(
    simulated: Simulated, entry: MakeEntry
) -> None:
    """The ensemble changes while the tail is written back; later entries are still looked for where the writer put
    them."""
    settings = LedgerSettings(recovery=RecoverySettings(chunk_entries=1))

    async def scenario(cluster: Any) -> None:
        await write_down(cluster, Quorum(3, 3, 2))
        for i in range(3):
            for name in ("b0", "b1"):
                await cluster.bookie(name).add(LEDGER, [(EntryId(i), entry(LEDGER, i))])
        # b1 takes no writes, so it is replaced at once by a bookie that holds nothing.
        cluster.refuse_adds("b1")
        closed = await cluster.client.recover(LEDGER)
        assert closed.last_entry == 2
        assert closed.fragments[-1].bookies == ("b0", "b3", "b2")
        for i in range(3):
            assert set(closed.write_set(EntryId(i))) <= set(cluster.holders(LEDGER, i))

    simulated(scenario, bookies=4, settings=settings)


def test_a_fragment_whose_bookies_know_nothing_yet_starts_after_acknowledged_entries(
    simulated: Simulated, entry: MakeEntry
) -> None:
    async def scenario(cluster: Any) -> None:
        old = Fragment(EntryId(0), (BookieId("b0"), BookieId("b1")))
        new = Fragment(EntryId(5), (BookieId("b2"), BookieId("b1")))
        await write_down(cluster, Quorum(2, 2, 2), old, new)
        for i in range(5):
            await cluster.bookie("b0").add(LEDGER, [(EntryId(i), entry(LEDGER, i))])
        closed = await cluster.client.recover(LEDGER)
        assert (closed.last_entry, closed.length) == (4, 10)
        assert closed.fragments == (old,)

    simulated(scenario)


def test_a_corrupt_tail_entry_is_no_denial(simulated: Simulated, entry: MakeEntry) -> None:
    async def scenario(cluster: Any) -> None:
        await write_down(cluster, Quorum(2, 2, 1))
        await cluster.bookie("b0").add(LEDGER, [(EntryId(0), entry(LEDGER, 0))])
        cluster.bookie("b0").damage(LEDGER, 0)
        assert (await cluster.client.recover(LEDGER)).last_entry == 0, "it keeps its place"
        reader = await cluster.client.open(LEDGER)
        with pytest.raises(EntryLostError):
            await reader.read(EntryId(0), EntryId(0))
        cluster.bookie("b0").damage(LEDGER, 0)  # the flipped bit flips back
        assert len(await reader.read(EntryId(0), EntryId(0))) == 1

    simulated(scenario, settings=IMPATIENT)


def test_recovery_of_a_closed_ledger_returns_it_as_it_is(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append(b"0")
        closed = await writer.close()
        cluster.down("b0", "b1", "b2")
        assert await cluster.client.recover(writer.ledger_id) == closed

    simulated(scenario)


def test_recovery_of_a_ledger_that_is_not_there_says_so(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        with pytest.raises(LedgerNotFoundError):
            await cluster.client.recover(LEDGER)

    simulated(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_concurrent_recoveries_and_the_writer_agree_on_one_end(simulated: Simulated, seed: int) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        others: list[LedgerClient] = [cluster.another_client() for _ in range(3)]
        for other in others:
            await other.start()
        loop = asyncio.get_running_loop()
        appended = []
        recoveries = []
        for i in range(30):
            appended.append(writer.append(b"%d" % i))
            await cluster.turn(cluster.runtime.rng.uniform(0, 0.001))
            if i == 10:
                recoveries = [loop.create_task(other.recover(writer.ledger_id)) for other in others]
                cluster.down(f"b{seed % 3}")
        closed = await asyncio.gather(*recoveries)
        results = await asyncio.gather(*appended, return_exceptions=True)
        acknowledged = [r for r in results if not isinstance(r, BaseException)]
        assert acknowledged == list(range(len(acknowledged)))
        assert all(isinstance(r, WriterFencedError) for r in results[len(acknowledged) :])
        assert len({(c.last_entry, c.length, c.fragments) for c in closed}) == 1
        assert closed[0].last_entry >= len(acknowledged) - 1
        reader = await others[0].open(writer.ledger_id)
        entries = await reader.read(EntryId(0), closed[0].last_entry)
        assert [bytes(e.payload) for e in entries] == [b"%d" % i for i in range(closed[0].last_entry + 1)]
        for other in others:
            await other.close()

    simulated(scenario, seed=seed, bookies=4)


def test_a_deposed_recoverer_changes_nothing_after_the_close(simulated: Simulated, entry: MakeEntry) -> None:
    async def scenario(cluster: Any) -> None:
        await write_down(cluster, Quorum(3, 3, 2))
        await cluster.bookie("b0").add(LEDGER, [(EntryId(0), entry(LEDGER, 0))])
        for name in ("b1", "b2"):
            cluster.bookie(name).hold()  # the first recoverer's write-back hangs there
        slow = asyncio.get_running_loop().create_task(cluster.client.recover(LEDGER))
        await cluster.turn()
        cluster.down("b0")
        for name in ("b1", "b2"):
            cluster.bookie(name).ledgers[LEDGER].entries.clear()  # as if its adds were still on their way
        other = cluster.another_client()
        await other.start()
        closed = await other.recover(LEDGER)
        assert closed.last_entry == -1
        for name in ("b1", "b2"):
            cluster.bookie(name).release()
        assert await slow == closed
        assert await cluster.client.metadata(LEDGER) == closed
        await other.close()

    simulated(scenario)
