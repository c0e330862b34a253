"""Kafka's readers in simulations, who belong to no group, and whoever deletes what they would read."""

from weir.gateway.kafka.errors import Code
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients.calls import Part
from weir.testing.kafka.clients.client import KafkaRefusedError, Link
from weir.testing.kafka.clients.workload import Worker
from weir.testing.log_history import LogOpKind

_MOST_DELETES = 3


class Reader(Worker):
    """Reads a partition from somewhere on, for a while."""

    async def life(self, handle: str) -> None:
        committed = self.rng.random() < 0.6
        part = self.rng.choice(self.shared.parts)
        at = 0 if self.rng.random() < 0.5 else self.rng.randrange(20)
        for _ in range(self.rng.randint(3, 20)):
            try:
                found = await self.read(handle, {part: at}, committed=committed)
            except KafkaRefusedError as refused:
                if refused.code is Code.OFFSET_OUT_OF_RANGE:
                    at = 0
                    handle = self.shared.next_handle(self.name)
                    continue
                raise
            at = found[part].next
            await self.pause(0.3)
        if self.rng.random() < 0.3:
            await self.hang_up()


class Deleter(Worker):
    """Deletes the beginning of a partition now and then."""

    async def life(self, handle: str) -> None:
        for _ in range(_MOST_DELETES):
            await self.pause(self.plan.storage.duration_s)
            part = self.rng.choice(self.shared.inputs)
            end = await self.insist(lambda link, part=part: calls.edge(link, part, calls.LATEST))  # type: ignore[misc]
            offset = int(end * self.rng.choice((0.3, 0.7, 1.0)))
            await self.insist(lambda link, part=part, offset=offset: self._delete(link, handle, part, offset))  # type: ignore[misc]

    async def _delete(self, link: Link, handle: str, part: Part, offset: int) -> None:
        pending = self.story.begin(handle, LogOpKind.DELETE, part=str(part), offset=offset, host=link.host)
        await self.recorded([pending], calls.delete_records(link, part, offset))
