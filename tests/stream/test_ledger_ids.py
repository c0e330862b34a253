"""Message ids begin with the ledger's id, and clients count on ids that grow along the stream."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from weir.ledger.client import LedgerClient
from weir.model.errors import InvariantError
from weir.stream.log import Stream


def test_ledger_ids_grow_although_brokers_take_them_from_blocks_of_their_own(run: Callable) -> None:
    async def scenario(bench) -> None:
        one, two = await bench.broker(), await bench.broker()
        for holder in (one, two, one):  # the first still has ids below those of the second
            stream = await Stream.open(holder, "s", create_missing=True)
            await stream.append(bench.draft("m"))
        ids = [span.ledger_id for span in stream.chain.spans]
        assert len(ids) == 3
        assert ids == sorted(ids)

    run(scenario)


def test_an_id_below_those_before_it_is_never_written_to(run: Callable) -> None:
    """The simulation's mutation `ids-go-back` switches this check off, to show what clients would see."""

    async def any_id(self: LedgerClient, above: Any) -> Any:
        return await self._ids.take()

    async def scenario(bench) -> None:
        one, two = await bench.broker(), await bench.broker()
        for holder in (one, two):
            stream = await Stream.open(holder, "s", create_missing=True)
            await stream.append(bench.draft("m"))
        stream = await Stream.open(one, "s")
        with pytest.raises(InvariantError, match="ids of ledgers grow along a stream"):
            await stream.append(bench.draft("m"))
        assert len(stream.chain.spans) == 2

    with patch.object(LedgerClient, "_next_id", any_id):
        run(scenario)
