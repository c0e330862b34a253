"""Message ids begin with the ledger's id, and clients count on ids that grow along the stream."""

from collections.abc import Callable

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
