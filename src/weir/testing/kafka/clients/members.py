"""Members of consumer groups in simulations: they join, divide, read, commit, fall behind, leave or vanish.

Static members never leave in order: they come back under their names. Cooperative ones keep what they have while
they join again, and give it up only when they are told to.
"""

from collections.abc import Mapping, Sequence

from weir.gateway.kafka.errors import Code
from weir.model.errors import WeirError
from weir.testing.kafka.clients import calls_groups as groups
from weir.testing.kafka.clients.calls import NO_MEMBER, Membership, Part
from weir.testing.kafka.clients.calls_groups import Joining
from weir.testing.kafka.clients.client import KafkaRefusedError, Link
from weir.testing.kafka.clients.transactor import Pipeline, told_positions
from weir.testing.kafka.clients.workload import IN, Who, Worker
from weir.testing.kafka.truth import ANEW, BACK, PIPE, TOLD
from weir.testing.log_history import LogOpKind

READERS = "readers"
REBALANCE_MS = 800


class Seat:
    """A member's place in a group, from one generation to the next."""

    def __init__(self, worker: Worker, group: str, *, cooperative: bool = False) -> None:
        self._worker = worker
        self._group = group
        self._cooperative = cooperative
        self._instance = worker.name if worker.plan.static else None
        self._handle = ""
        self.member = NO_MEMBER
        self.parts: list[Part] = []
        #: Why it joins the next time.
        self._why = BACK

    def begin_life(self, handle: str) -> None:
        self.member, self.parts, self._why, self._handle = NO_MEMBER, [], BACK, handle

    async def take(self) -> None:
        """Join, and get a share; whoever leads divides. Cooperative members do so again if they lost something."""
        if not self._cooperative:
            self.parts = []
        while True:
            had = self.parts
            self.member = await self._worker.insist(self._join)
            self._why = ANEW
            self.parts = await self._sync()
            if not self._cooperative or not set(had) - set(self.parts):
                return

    async def _join(self, link: Link) -> Membership:
        plan = self._worker.plan
        how = Joining(self._group, IN, plan.session_ms, REBALANCE_MS, self._instance, tuple(self.parts))
        pending = self._worker.story.begin(
            self._handle,
            LogOpKind.JOIN,
            group=self._group,
            instance=self._instance or "",
            payload=self._why,
            owned=tuple(str(part) for part in self.parts),
            session_s=plan.session_ms / 1000,
        )
        try:
            member = await groups.join(link, how, self.member.member_id)
        except WeirError as failure:
            pending.failed(failure)
            raise
        pending.ok(member=member.member_id, generation=member.generation)
        return member

    async def _sync(self) -> list[Part]:
        member, inputs = self.member, self._worker.shared.inputs
        divide = shared_out if self._cooperative else dealt_out
        shares = divide(member.members, inputs) if member.members else {}
        parts = await groups.sync(await self._worker.link(), self._group, member, shares)
        self._note(LogOpKind.ASSIGNED, owned=tuple(str(part) for part in parts))
        return parts

    async def heartbeat(self) -> None:
        await groups.heartbeat(await self._worker.link(), self._group, self.member)
        if self._instance:
            self._note(LogOpKind.HEARD)

    async def leave(self) -> None:
        """Static members seldom do."""
        if self._worker.rng.random() < (0.1 if self._instance else 0.5):
            self._note(LogOpKind.LEFT)
            await groups.leave(await self._worker.link(), self._group, self.member)

    def must_join(self, refused: KafkaRefusedError) -> bool:
        """Whether it was told that the work is divided anew."""
        if refused.code is Code.REBALANCE_IN_PROGRESS:
            self._why = TOLD
        return refused.code is Code.REBALANCE_IN_PROGRESS

    def _note(self, kind: LogOpKind, **facts: object) -> None:
        self._worker.story.note(
            self._handle,
            kind,
            group=self._group,
            member=self.member.member_id,
            instance=self._instance or "",
            generation=self.member.generation,
            **facts,
        )


def dealt_out(members: Mapping[str, Sequence[Part]], parts: Sequence[Part]) -> dict[str, list[Part]]:
    """In turn, whoever had what."""
    names = sorted(members)
    shares: dict[str, list[Part]] = {name: [] for name in names}
    for at, part in enumerate(parts):
        shares[names[at % len(names)]].append(part)
    return shares


def shared_out(members: Mapping[str, Sequence[Part]], parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Everyone keeps what it has, up to an equal share; what somebody has to give up is nobody's this time."""
    most = -(-len(parts) // len(members))
    shares = {name: list(owned)[:most] for name, owned in sorted(members.items())}
    claimed = [part for owned in members.values() for part in owned]
    for part in parts:
        if part not in claimed:
            min(shares.values(), key=len).append(part)
    return shares


class Member(Worker):
    """Reads its share and commits how far it has come."""

    def __init__(self, who: Who, *, committed: bool) -> None:
        super().__init__(who)
        self._committed = committed
        self._seat = Seat(self, READERS, cooperative=self.plan.cooperative)
        #: What it was in an earlier generation, or life: a laggard still commits in its name.
        self._former = NO_MEMBER

    async def life(self, handle: str) -> None:
        seat = self._seat
        seat.begin_life(handle)
        for _ in range(self.rng.randint(1, 5)):
            await seat.take()
            try:
                await self._work(handle, seat.member, seat.parts)
            except KafkaRefusedError as refused:
                if not seat.must_join(refused):
                    raise
            self._former = seat.member
        await seat.leave()

    async def _work(self, handle: str, member: Membership, parts: Sequence[Part]) -> None:
        at = await told_positions(self, handle, READERS, parts) if parts else {}
        seen = dict(at)
        for _ in range(self.rng.randint(2, 10)):
            if parts:
                found = await self.read(handle, at, committed=self._committed, group=READERS)
                at.update({part: fetched.next for part, fetched in found.items()})
                if self.rng.random() < 0.5 and at != seen:
                    await self._commit(
                        handle, member, {part: at[part] for part in parts if at[part] != seen[part]}
                    )
                    seen = dict(at)
            if self.rng.random() < 0.7:
                await self._seat.heartbeat()
            if self._former is not NO_MEMBER and parts and self.rng.random() < 0.1:
                await self._lag(handle, parts)
            await self.pause(self.rng.choice((0.02, 0.1, 0.1, 0.8)))

    async def _commit(self, handle: str, member: Membership, moved: dict[Part, int]) -> None:
        pending = [
            self.story.begin(
                handle,
                LogOpKind.COMMIT,
                part=str(part),
                offset=offset,
                group=READERS,
                member=member.member_id,
                instance=member.instance or "",
                generation=member.generation,
            )
            for part, offset in moved.items()
        ]
        self.shared.disturb_me()
        await self.recorded(pending, groups.commit(await self.link(), READERS, member, moved))

    async def _lag(self, handle: str, parts: Sequence[Part]) -> None:
        """A commit that was asked for a generation, or a life, ago."""
        former, self._former = self._former, NO_MEMBER
        try:
            await self._commit(handle, former, {parts[0]: 0})
        except KafkaRefusedError as refused:
            if refused.code not in (Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
                raise


class Processor(Pipeline):
    """A pipeline whose share of the input is decided by a group, with a transactional id of its own."""

    def __init__(self, who: Who, transactional_id: str) -> None:
        super().__init__(who, transactional_id)
        self._seat = Seat(self, PIPE)

    async def life(self, handle: str) -> None:
        await self.begin_life(handle)
        seat = self._seat
        seat.begin_life(handle)
        for _ in range(self.rng.randint(1, 5)):
            await seat.take()
            try:
                if seat.parts:
                    await self.work(handle, seat.parts, seat.member, self.rng.randint(2, 10))
                else:
                    await self.pause(self.plan.session_ms / 2000)
                    await self.between(seat.member)
            except KafkaRefusedError as refused:
                if not seat.must_join(refused) or self.in_transaction:
                    raise
        await seat.leave()

    async def between(self, member: Membership) -> None:
        if self.rng.random() < 0.7:
            await self._seat.heartbeat()
