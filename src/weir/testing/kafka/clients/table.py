"""A compacted topic in simulations: who writes values of keys to it, and who reads all of it again and again."""

from collections.abc import Sequence

from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients.calls import Item, Part
from weir.testing.kafka.clients.client import Link, StandstillError
from weir.testing.kafka.clients.producers import IdempotentProducer
from weir.testing.kafka.clients.workload import Worker
from weir.testing.kafka.history import KafkaHistory
from weir.testing.log_history import LogOpKind

TABLE = Part("table", 0)
#: Compacted every second or two.
CONFIGS = {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"}
_KEYS = 4


class TableWriter(IdempotentProducer):
    """Each value is a message of its own."""

    kind = LogOpKind.PUT

    def where(self) -> Sequence[Part]:
        return (TABLE,)

    def item(self, payload: str) -> Item:
        return Item(payload, key=f"k{self.rng.randrange(_KEYS)}")


class TableReader(Worker):
    """Reads everything that compaction has left."""

    async def life(self, handle: str) -> None:
        await self.pause(2.0)
        await scan(self.story, await self.link(), handle)


async def scan(story: KafkaHistory, link: Link, handle: str) -> None:
    """Read the whole topic, and write down what is in it."""
    asked = story.step
    at = await calls.edge(link, TABLE, calls.EARLIEST)
    while True:
        told = (await calls.fetch(link, {TABLE: at}, committed=True))[TABLE]
        for row in told.records:
            story.note(handle, LogOpKind.ROW, part=str(TABLE), offset=row.offset, payload=row.payload, key=row.key)
        if told.next >= told.high:
            break
        if told.next == at:
            raise StandstillError(f"{TABLE} ends at {told.high} and has nothing at {at}")
        at = told.next
    story.note(handle, LogOpKind.SCANNED, part=str(TABLE), asked=asked, host=link.host)
