"""Ledgers are created with unique ids, listed, and deleted; the bookies at hand are known."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.meta import keys
from weir.model.errors import LedgerNotFoundError, NotEnoughBookiesError
from weir.model.ids import BookieId, EntryId
from weir.model.ledger import LedgerState, Quorum
from weir.wire.metadata import BookieInfo, encode_bookie_info

Simulated = Callable[..., Any]


def test_ids_are_unique_among_clients_and_survive_unknown_outcomes(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        clients = [cluster.client, cluster.another_client(), cluster.another_client()]
        for client in clients:
            await client.start()
        cluster.meta.lose_answers = 2
        writers = await asyncio.gather(*(client.create(Quorum(1, 1, 1)) for client in clients for _ in range(20)))
        ids = [writer.ledger_id for writer in writers]
        assert len(set(ids)) == 60
        assert [ledger.ledger_id for ledger in await cluster.client.list()] == sorted(ids)

    simulated(scenario)


def test_two_clients_with_the_same_unknown_outcome_never_share_a_block(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        one, two = cluster.client, cluster.another_client()
        await two.start()
        cluster.meta.lose_puts = 1  # the first client's attempt is lost; the second moves the counter as far
        writers = await asyncio.gather(*(client.create(Quorum(1, 1, 1)) for client in (one, two)))
        assert writers[0].ledger_id != writers[1].ledger_id

    simulated(scenario)


def test_a_new_ledger_is_open_and_its_record_readable(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 2, 2))
        ledger = await cluster.client.metadata(writer.ledger_id)
        assert ledger == writer.metadata
        assert (ledger.state, ledger.fragments[0].first_entry) == (LedgerState.OPEN, 0)

    simulated(scenario)


def test_an_ensemble_larger_than_the_cluster_is_refused(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        with pytest.raises(NotEnoughBookiesError):
            await cluster.client.create(Quorum(4, 2, 2))
        await cluster.register("b3")
        await cluster.client.create(Quorum(4, 2, 2))
        await cluster.unregister("b3")
        with pytest.raises(NotEnoughBookiesError):
            await cluster.client.create(Quorum(4, 2, 2))

    simulated(scenario)


def test_ensembles_span_racks(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        for _ in range(10):
            writer = await cluster.client.create(Quorum(2, 2, 2))
            assert "b3" in writer.metadata.fragments[0].bookies

    simulated(scenario, bookies=4, racks="AAAB")


def test_a_read_only_bookie_is_reachable_but_takes_no_new_ledger(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        info = BookieInfo(BookieId("ro"), "ro", 9)
        await cluster.meta.put(keys.bookie_read_only(BookieId("ro")), encode_bookie_info(info))
        await cluster.turn()
        directory = cluster.client.context.directory
        assert directory.resolve(BookieId("ro")) == info
        assert BookieId("ro") not in directory.writable()
        assert directory.resolve(BookieId("nobody")) is None

    simulated(scenario)


def test_the_directory_says_for_how_long_a_bookie_has_been_gone(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        directory = cluster.client.context.directory
        assert directory.gone_for_s(BookieId("b0")) == 0
        await cluster.unregister("b0")
        await cluster.turn(5)
        assert directory.gone_for_s(BookieId("b0")) == pytest.approx(5, abs=0.1)
        await cluster.register("b0")
        assert directory.gone_for_s(BookieId("b0")) == 0

    simulated(scenario)


def test_a_deleted_ledger_is_gone_from_metadata_and_bookies_even_if_one_is_down(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 3))
        await writer.append(b"x")
        await writer.close()
        cluster.down("b1")
        await cluster.client.delete(writer.ledger_id)
        await cluster.client.delete(writer.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await cluster.client.open(writer.ledger_id)
        assert cluster.holders(writer.ledger_id, 0) == ["b1"]

    simulated(scenario)


def test_opening_with_recovery_makes_the_whole_ledger_readable(simulated: Simulated) -> None:
    async def scenario(cluster: Any) -> None:
        writer = await cluster.client.create(Quorum(3, 3, 2))
        await writer.append_many([b"a", b"b"])
        reader = await cluster.client.open(writer.ledger_id)
        assert reader.closed
        assert len(await reader.read(EntryId(0), EntryId(1))) == 2

    simulated(scenario)
