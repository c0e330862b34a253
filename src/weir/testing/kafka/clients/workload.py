"""Kafka's clients in simulations, who record all they see: producers, readers, and what all have in common.

A client has many lives: it connects, works, and begins anew when anything goes wrong in a way that a real client
would give up at. What it sends in one life carries that life's name.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from weir.gateway.kafka.errors import Code
from weir.model.errors import InvariantError, NetworkError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients.calls import Fetched, Part
from weir.testing.kafka.clients.client import KafkaRefusedError, Link
from weir.testing.kafka.cluster import KafkaCluster
from weir.testing.log_history import LogOpKind
from weir.testing.operations import Pending
from weir.testing.storage.workload import Shared

IN, OUT = "in", "out"
T = TypeVar("T")
#: What a client meets by asking again, as real ones do.
PASSING = (
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.REQUEST_TIMED_OUT,
    Code.NETWORK_EXCEPTION,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR,
    Code.UNKNOWN_SERVER_ERROR,  # of a fetch whose messages cannot be read for long; bugs are found in the log
    Code.NOT_ENOUGH_REPLICAS,
    Code.CONCURRENT_TRANSACTIONS,
    Code.UNSTABLE_OFFSET_COMMIT,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
)
TRIES = 12


class KafkaShared(Shared):
    """What the clients of one run know of each other."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster.history, cluster.kafka_plan.storage)
        plan = cluster.kafka_plan
        self.cluster = cluster
        self.story = cluster.story
        self.kafka_plan = plan
        self.inputs = [Part(IN, number) for number in range(plan.in_parts)]
        self.outputs = [Part(OUT, number) for number in range(plan.out_parts)]
        #: How far the one who stays to the end has come.
        self.followed: dict[Part, int] = {}
        #: The last moment, in virtual time, at which something may come due.
        self.last_due_s = 0.0

    @property
    def parts(self) -> list[Part]:
        return [*self.inputs, *self.outputs]


@dataclass
class Todo:
    """What is left for a client to do, over all of its lives."""

    left: int


@dataclass(frozen=True, slots=True)
class Who:
    """A client as it is started, after a crash once more: its name, its node, its dice."""

    name: str
    runtime: Runtime
    rng: Random
    shared: KafkaShared
    todo: Todo


class Worker:
    """One client, with the link to whichever broker is active."""

    def __init__(self, who: Who) -> None:
        self.name = who.name
        self.runtime = who.runtime
        self.clock = who.runtime.clock
        self.rng = who.rng
        self.shared = who.shared
        self.story = who.shared.story
        self.plan = who.shared.kafka_plan
        self._link: Link | None = None
        self._told: dict[Part, tuple[int, int]] = {}

    async def run(self) -> None:
        while not self.done():
            try:
                await self.life(self.shared.next_handle(self.name))
            except InvariantError:
                raise
            except WeirError as failed:
                self.shared.cluster.world.note("gave up", f"{self.name} {failed}")
            await self.pause(0.2)

    def done(self) -> bool:
        return False

    async def life(self, handle: str) -> None:
        raise NotImplementedError

    async def pause(self, most_s: float) -> None:
        await self.clock.sleep(self.rng.uniform(0, most_s))

    async def link(self) -> Link:
        """The connection, that knows whom to ask; a new one if it broke."""
        if self._link is None or not self._link.alive:
            self._link = await self.shared.cluster.connect(self.runtime, self.name)
        await self._link.prepare()
        return self._link

    async def hang_up(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def insist(self, ask: Callable[[Link], Awaitable[T]], tries: int = TRIES) -> T:
        """Ask, and ask again where a real client would."""
        while True:
            try:
                self.shared.disturb_me()
                return await ask(await self.link())
            except NetworkError:
                tries -= 1
                if tries <= 0:
                    raise
            except KafkaRefusedError as refused:
                tries -= 1
                if refused.code not in PASSING or tries <= 0:
                    raise
                if self.rng.random() < 0.3:  # somebody else may be active by now
                    await self.hang_up()
            await self.clock.sleep(self.rng.uniform(0.02, 0.3))

    async def recorded(self, pending: list[Pending], work: Awaitable[T]) -> T:
        """Write down whether it worked."""
        try:
            answer = await work
        except WeirError as failure:
            for each in pending:
                each.failed(failure)
            raise
        for each in pending:
            each.ok()
        return answer

    async def read(
        self, handle: str, wanted: dict[Part, int], *, committed: bool, group: str = ""
    ) -> dict[Part, Fetched]:
        """Fetch, and write down what came. Of what is not there any more the beginning is told."""
        link, asked = await self.link(), self.story.step
        try:
            most = self.rng.choice((200, 100_000))
            found = await calls.fetch(link, wanted, committed=committed, max_bytes=most)
        except KafkaRefusedError as refused:
            if refused.code is not Code.OFFSET_OUT_OF_RANGE or not self.plan.deletes:
                raise
            return {part: await self.beginning(part, at) for part, at in wanted.items()}
        for part, fetched in found.items():
            self.note_read(handle, part, fetched, committed=committed, group=group, asked=asked)
        return found

    async def beginning(self, part: Part, at: int) -> Fetched:
        """Where to go on in a partition whose beginning may be behind by now."""
        first = await self.insist(lambda link: calls.edge(link, part, calls.EARLIEST))
        return Fetched(-1, -1, (), max(first, at))

    def note_read(
        self, handle: str, part: Part, fetched: Fetched, *, committed: bool, asked: int, group: str = ""
    ) -> None:
        host = "" if self._link is None else self._link.host
        if self._told.get(part) != (fetched.high, fetched.stable):
            self._told[part] = (fetched.high, fetched.stable)
            self.story.note(
                handle,
                LogOpKind.MARKS,
                part=str(part),
                commits=committed,
                high=fetched.high,
                stable=fetched.stable,
            )
        for record in fetched.records:
            self.story.note(
                handle,
                LogOpKind.READ,
                part=str(part),
                offset=record.offset,
                payload=record.payload,
                commits=committed,
                group=group,
                asked=asked,
                host=host,
            )
