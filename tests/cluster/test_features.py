"""A cluster of two releases: bytes that others read are written as all of them know them."""

from weir.model.cluster import DEFLATED_STATE, FEATURES
from weir.model.ids import EntryId
from weir.model.topics import TopicName
from weir.testing.many_brokers import ManyBrokers
from weir.wire.stream import DEFLATED, PLAIN


def test_state_is_written_as_the_oldest_broker_reads_it_until_that_is_gone() -> None:
    many = ManyBrokers("new").start()
    try:
        assert _written(many, brokers=1) == DEFLATED
        many.begin("old", features=tuple(name for name in FEATURES if name != DEFLATED_STATE))
        assert _written(many, brokers=2) == PLAIN
        many.end("old")
        assert _written(many, brokers=1) == DEFLATED
    finally:
        many.stop()


def _written(many: ManyBrokers, brokers: int) -> int:
    """The version of what the broker `new` writes while it knows of so many."""
    new = many["new"]

    async def write() -> int:
        while len(new.broker.brokers()) != brokers:
            await new.composed.runtime.clock.sleep(0.01)
        topic = await new.broker.load(TopicName.parse("t"))
        for value in (b"a", b"b"):  # the second says that the first is there
            topic.state.put("k", value * 4_000)
            await topic.state.flush()
        ledgers = new.composed.context.streams.ledgers
        reader = await ledgers.open(topic.stream.chain.state_ledger, recover=False)
        last = EntryId(await reader.last_confirmed())
        (entry,) = await reader.read(last, last)
        await reader.close()
        return entry.payload[0]

    found: int = many.call(write)
    return found
