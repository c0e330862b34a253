"""Members of consumer groups in simulations: they join, divide, read, commit, fall behind, leave or vanish."""

from collections.abc import Sequence

from weir.gateway.kafka.errors import Code
from weir.testing import kafka_calls as calls
from weir.testing.kafka_calls import NO_MEMBER, Membership, Part
from weir.testing.kafka_client import KafkaLink, KafkaRefusedError
from weir.testing.kafka_history import KafkaKind
from weir.testing.kafka_transactor import Pipeline, told_positions
from weir.testing.kafka_truth import PIPE
from weir.testing.kafka_workload import IN, Who, Worker

READERS = "readers"
REBALANCE_MS = 800


async def take_share(worker: Worker, handle: str, group: str, member_id: str) -> tuple[Membership, list[Part]]:
    """Join, and get a share; whoever leads divides."""
    plan = worker.plan

    async def join(link: KafkaLink) -> Membership:
        return await calls.join(
            link, group, [IN], member_id, session_ms=plan.session_ms, rebalance_ms=REBALANCE_MS
        )

    member = await worker.insist(join)
    shares = _divided(sorted(member.members), worker.shared.inputs) if member.members else {}
    parts = await calls.sync(await worker.link(), group, member, shares)
    for part in parts:
        worker.story.note(
            handle,
            KafkaKind.ASSIGNED,
            part=str(part),
            group=group,
            member=member.member_id,
            generation=member.generation,
        )
    return member, parts


def _divided(members: Sequence[str], parts: Sequence[Part]) -> dict[str, list[Part]]:
    shares: dict[str, list[Part]] = {member: [] for member in members}
    for at, part in enumerate(parts):
        shares[members[at % len(members)]].append(part)
    return shares


def is_divided_anew(refused: KafkaRefusedError) -> bool:
    return refused.code is Code.REBALANCE_IN_PROGRESS


class Member(Worker):
    """Reads its share and commits how far it has come."""

    def __init__(self, who: Who, *, committed: bool) -> None:
        super().__init__(who)
        self._committed = committed
        #: What it was in an earlier generation: a laggard still commits in its name.
        self._former = NO_MEMBER

    async def life(self, handle: str) -> None:
        member = NO_MEMBER
        for _ in range(self.rng.randint(1, 5)):
            member, parts = await take_share(self, handle, READERS, member.member_id)
            try:
                await self._work(handle, member, parts)
            except KafkaRefusedError as refused:
                if not is_divided_anew(refused):
                    raise
            self._former = member
        if self.rng.random() < 0.5:
            await calls.leave(await self.link(), READERS, member)

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
                await calls.heartbeat(await self.link(), READERS, member)
            if self._former is not NO_MEMBER and parts and self.rng.random() < 0.1:
                await self._lag(handle, parts)
            await self.pause(self.rng.choice((0.02, 0.1, 0.1, 0.8)))

    async def _commit(self, handle: str, member: Membership, moved: dict[Part, int]) -> None:
        pending = [
            self.story.begin(
                handle,
                KafkaKind.COMMIT,
                part=str(part),
                offset=offset,
                group=READERS,
                member=member.member_id,
                generation=member.generation,
            )
            for part, offset in moved.items()
        ]
        self.shared.disturb_me()
        await self.recorded(pending, calls.commit(await self.link(), READERS, member, moved))

    async def _lag(self, handle: str, parts: Sequence[Part]) -> None:
        """A commit that was asked for a generation ago."""
        try:
            await self._commit(handle, self._former, {parts[0]: 0})
        except KafkaRefusedError as refused:
            if refused.code not in (Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID):
                raise
        self._former = NO_MEMBER


class Processor(Pipeline):
    """A pipeline whose share of the input is decided by a group, with a transactional id of its own."""

    async def life(self, handle: str) -> None:
        await self.begin_life(handle)
        member = NO_MEMBER
        for _ in range(self.rng.randint(1, 5)):
            member, parts = await take_share(self, handle, PIPE, member.member_id)
            try:
                if parts:
                    await self.work(handle, parts, member, self.rng.randint(2, 10))
                else:
                    await self.pause(self.plan.session_ms / 2000)
                    await self.between(member)
            except KafkaRefusedError as refused:
                if not is_divided_anew(refused) or self.in_transaction:
                    raise
        if self.rng.random() < 0.5:
            await calls.leave(await self.link(), PIPE, member)

    async def between(self, member: Membership) -> None:
        if self.rng.random() < 0.7:
            await calls.heartbeat(await self.link(), PIPE, member)
