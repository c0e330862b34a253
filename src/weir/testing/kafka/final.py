"""After healing: everything stored is read, raw and as committed, and positions are asked for, in bounded time."""

from collections.abc import Awaitable, Callable, Sequence

from weir.client.pulsar.client import PulsarClient
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients import calls_groups as groups
from weir.testing.kafka.clients.calls import Part
from weir.testing.kafka.clients.calls_groups import Joining
from weir.testing.kafka.clients.client import Link, StandstillError
from weir.testing.kafka.clients.members import REBALANCE_MS
from weir.testing.kafka.clients.pulsar import CLIENT, SUBSCRIPTION, Subscriber
from weir.testing.kafka.clients.table import TABLE, scan
from weir.testing.kafka.clients.workload import IN, KafkaShared
from weir.testing.log_history import LogOpKind
from weir.testing.operations import FINAL

#: Leases and sessions run out, open transactions are given up; then nothing changes any more.
_SETTLE_S = 6.0
_PATIENCE_S = 40.0
_PAUSE_S = 0.5
_RELEASE_S = 1.5


class KafkaFinal:
    """Runs on a node of its own, over the same protocol as everyone else."""

    def __init__(self, runtime: Runtime, shared: KafkaShared, names: Sequence[str]) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._shared = shared
        self._story = shared.story
        self._groups = names

    async def run(self) -> None:
        plan = self._shared.kafka_plan
        due_in_s = self._shared.last_due_s + plan.skew_s - self._shared.cluster.world.now
        await self._clock.sleep(max(due_in_s, 0.0) + _SETTLE_S)
        if plan.delayed:  # nobody may have asked for the topic since its broker died
            for part in self._shared.parts:
                await self._insist(f"{part}", lambda link, part=part: self._touch(link, part))  # type: ignore[misc]
            await self._clock.sleep(_RELEASE_S)
        for part in self._shared.parts:
            await self._insist(f"{part}", lambda link, part=part: self._read(link, part))  # type: ignore[misc]
        if plan.table:
            await self._insist(f"{TABLE}", lambda link: scan(self._story, link, self._shared.next_handle(FINAL)))
        if plan.follows:
            await self._insist("the follower", self._followed)
        for group in self._groups:
            await self._insist(group, lambda link, group=group: self._ask(link, group))  # type: ignore[misc]
            await self._insist(group, lambda link, group=group: self._join(link, group))  # type: ignore[misc]
        if plan.pulsar:
            await self._drain(self._shared.inputs[0])

    async def _insist(self, what: str, work: Callable[[Link], Awaitable[None]]) -> None:
        """Try until it works; with everything healed it must, soon."""
        until = self._clock.monotonic() + _PATIENCE_S
        while True:
            try:
                link = await self._shared.cluster.connect(self._runtime, FINAL)
                try:
                    await work(link)
                finally:
                    await link.close()
                return
            except InvariantError:
                raise
            except WeirError as failure:
                if self._clock.monotonic() > until:
                    self._story.begin(FINAL, LogOpKind.MISSING, part=what).failed(failure)
                    return
            await self._clock.sleep(_PAUSE_S)

    async def _touch(self, link: Link, part: Part) -> None:
        await calls.edge(link, part, calls.LATEST)

    async def _read(self, link: Link, part: Part) -> None:
        """All of a partition, once everything in it is decided."""
        first = await calls.edge(link, part, calls.EARLIEST)
        content = await self._scan(link, part, first, committed=False)
        visible = await self._scan(link, part, first, committed=True)
        for record in content:
            token = record.payload.partition("|")[0] if record.transactional and record.commits is None else ""
            self._story.note(
                FINAL,
                LogOpKind.CONTENT if record.commits is None else LogOpKind.MARKER,
                part=str(part),
                offset=record.offset,
                payload=record.payload,
                token=token,
                commits=bool(record.commits),
                producer=record.producer.producer_id,
                epoch=record.epoch,
            )
        for record in visible:
            self._story.note(
                FINAL, LogOpKind.VISIBLE, part=str(part), offset=record.offset, payload=record.payload
            )
        self._story.note(FINAL, LogOpKind.READ_ALL, part=str(part), start=first or None)

    async def _scan(self, link: Link, part: Part, at: int, *, committed: bool) -> list[calls.Found]:
        found: list[calls.Found] = []
        while True:
            told = (await calls.fetch(link, {part: at}, committed=committed, raw=not committed))[part]
            if told.stable < told.high:
                raise StandstillError(f"{part} ends at {told.high} and is stable to {told.stable}")
            found += told.records
            if told.next >= told.high:
                return found
            if told.next == at:
                raise StandstillError(f"{part} ends at {told.high} and has nothing at {at}")
            at = told.next

    async def _followed(self, link: Link) -> None:
        """Who stays to the end has been told everything."""
        for part, at in self._shared.followed.items():
            told = (await calls.fetch(link, {part: at}, committed=True))[part]
            if at < told.high:
                raise StandstillError(f"it is at {part}@{at} of {told.high}")

    async def _ask(self, link: Link, group: str) -> None:
        for part in self._shared.inputs:
            pending = self._story.begin(FINAL, LogOpKind.POSITION, part=str(part), group=group)
            try:
                told = await groups.positions(link, group, [part])
            except WeirError as failure:
                pending.failed(failure)
                raise
            pending.ok(offset=told[part])

    async def _join(self, link: Link, group: str) -> None:
        """A new member gets everything, now that the others are gone."""
        member = await groups.join(link, Joining(group, IN, 2_000, REBALANCE_MS), "")
        everything = {member.member_id: self._shared.inputs}
        share = await groups.sync(link, group, member, everything if member.members else {})
        if share != self._shared.inputs:
            raise StandstillError(f"the only member of {group} is given {share}")
        await groups.leave(link, group, member)

    async def _drain(self, part: Part) -> None:
        subscriber = Subscriber(FINAL, part, self._shared)
        until = self._clock.monotonic() + _PATIENCE_S
        while True:
            try:
                async with PulsarClient(self._runtime, subscriber.url(), CLIENT) as client:
                    await subscriber.drain(client)
                self._story.note(FINAL, LogOpKind.DRAINED, part=str(part))
                return
            except InvariantError:
                raise
            except WeirError as failure:
                if self._clock.monotonic() > until:
                    self._story.begin(FINAL, LogOpKind.MISSING, part=f"{part} of {SUBSCRIPTION}").failed(failure)
                    return
            await self._clock.sleep(_PAUSE_S)
