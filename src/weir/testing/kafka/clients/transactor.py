"""Transactions as simulated Kafka clients make them: producers that only write, and pipelines that also read.

A pipeline writes, for each message that it reads, one that says which; so what was processed, and how often, can
be read from the topic that it writes.
"""

from collections.abc import Mapping, Sequence

from weir.gateway.kafka.errors import Code
from weir.model.batch import Stamp
from weir.model.errors import WeirError
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients import calls_groups as groups
from weir.testing.kafka.clients.calls import NO_MEMBER, Identity, Item, Membership, Part
from weir.testing.kafka.clients.client import KafkaRefusedError, Link
from weir.testing.kafka.clients.producers import Numbers, Sender
from weir.testing.kafka.clients.workload import TRIES, Who, Worker
from weir.testing.kafka.truth import PIPE
from weir.testing.log_history import LogOpKind

#: A pipeline takes so many messages into one transaction.
_MOST = 4
_FENCED = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH)
_END_WAITS_S = (0.02, 0.2, calls.LONG_S)
_DELAYS_S = (0.0, 0.5, 2.0)


class Transactor(Worker):
    """A producer with a transactional id, which others may have, too."""

    def __init__(self, who: Who, transactional_id: str) -> None:
        super().__init__(who)
        self.transactional_id = transactional_id
        self._numbers: Numbers | None = None
        self._handle = ""
        self._count = 0
        self._token = ""
        #: Whether each transaction has an epoch of its own, and begins by what is sent.
        self._modern = False
        #: Whether one was begun and its end was not answered.
        self.in_transaction = False

    async def begin_life(self, handle: str) -> None:
        """Become the producer of the id: whoever was it before is fenced. One that goes on may say who it was."""
        anew = 0.2 if self._modern else 0.5
        was = None if self._numbers is None or self.rng.random() < anew else self._numbers.who
        after = await self._give_up(was) if self._modern and was is not None else None
        self._numbers, self._handle, self._count = None, handle, 0
        self.in_transaction = False
        self._modern = self.plan.modern > 0 and self.rng.random() < self.plan.modern
        if after is not None:
            self._numbers = Numbers(after)
            return
        name, timeout_ms = self.transactional_id, self.plan.transaction_ms
        who = await self.insist(lambda link: calls.init_producer(link, name, timeout_ms, was))
        self._numbers = Numbers(who)

    async def _give_up(self, who: Identity) -> Identity | None:
        """Abort what was not ended, if anything was, and go on under the next epoch; None if it may not."""
        name = self.transactional_id
        if self.rng.random() < 0.5:  # what is under way may now come late
            await self.hang_up()
        try:
            after = await self.insist(lambda link: calls.end_epoch(link, name, who, commits=False))
        except KafkaRefusedError:
            return None
        if self.in_transaction:
            self.story.note(self._handle, LogOpKind.END, token=self._token, commits=False)
        return after

    async def _end_epoch(self, link: Link, who: Identity, commits: bool) -> Identity:
        """It may not wait for the answer, and ask again."""
        wait_s = self.rng.choice(_END_WAITS_S)
        return await calls.end_epoch(link, self.transactional_id, who, commits=commits, timeout_s=wait_s)

    def _patience(self) -> int:
        """Who can give up and go on asks once now and then."""
        return self.rng.choice((1, TRIES, TRIES)) if self._modern else TRIES

    async def transact(
        self,
        messages: Sequence[tuple[Part, str]],
        *,
        group: str = "",
        member: Membership = NO_MEMBER,
        moved: Mapping[Part, int] | None = None,
    ) -> bool:
        """One transaction, with what it writes and the positions that it moves; answers whether it was committed.
        After a failure this life is over."""
        numbers = self._numbers
        if numbers is None:
            raise WeirError("nobody")
        self._count += 1
        token = self._token = f"{self._handle}.{self._count}"
        who, name = numbers.who, self.transactional_id
        parts = list(dict.fromkeys(part for part, _ in messages))
        self.in_transaction = True
        if not self._modern:
            await self.insist(lambda link: calls.add_partitions(link, name, who, parts))
        batches = [
            numbers.batch(part, [self._item(f"{token}|{text}") for to, text in messages if to == part], token)
            for part in parts
        ]
        sender = Sender(self, self._handle, name, version=12 if self._modern else 9)
        await sender.send(batches, self._patience())
        if self.plan.overwrites and not self._modern and self.rng.random() < self.plan.overwrites:
            await self._overwrite(token, numbers, self.rng.choice(parts))
        if moved:
            await self._move(token, group, member, moved)
        await self.pause(self.rng.choice((0.0, 0.0, 0.0, 0.3, 1.2)))
        commits = self.rng.random() >= self.plan.aborts
        pending = self.story.begin(self._handle, LogOpKind.END, token=token, commits=commits)
        if self._modern:
            ended = self.insist(lambda link: self._end_epoch(link, who, commits), self._patience())
            self._numbers = Numbers(await self.recorded([pending], ended))
        else:
            ending = self.insist(lambda link: calls.end_transaction(link, name, who, commits=commits))
            await self.recorded([pending], ending)
        self.in_transaction = False
        return commits

    async def _overwrite(self, token: str, numbers: Numbers, part: Part) -> None:
        """Send something else under the numbers of a batch of this transaction, or of one before: it must be
        refused, since it would be missing if it were taken for that batch."""
        sequence, count = self.rng.choice(numbers.used(part))
        items = [Item(f"{token}|over{at}") for at in range(count)]
        stamp = Stamp(numbers.who.producer_id, numbers.who.epoch, sequence)
        data = calls.batch_of(items, stamp, transactional=True)
        pending = self.story.begin(
            self._handle, LogOpKind.OVERWRITE, part=str(part), payload=items[0].payload, token=token
        )

        async def send() -> int:
            link = await self.link()
            answer = calls.produce(link, part, data, self.transactional_id)
            return calls.produced(await link.within(calls.LONG_S, answer))

        try:
            await self.recorded([pending], send())
        except KafkaRefusedError as refused:
            if refused.code is not Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise

    def _item(self, payload: str) -> Item:
        """Some are to be seen later."""
        if self.rng.random() >= self.plan.delayed:
            return Item(payload)
        due_s = self.shared.cluster.world.now + self.rng.choice(_DELAYS_S)
        self.shared.last_due_s = max(self.shared.last_due_s, due_s)
        return Item(payload, due_s=due_s)

    async def _move(self, token: str, group: str, member: Membership, moved: Mapping[Part, int]) -> None:
        if self._numbers is None:
            raise WeirError("nobody")
        who, name = self._numbers.who, self.transactional_id
        if not self._modern:
            await self.insist(lambda link: calls.add_offsets(link, name, who, group))
        version = 5 if self._modern else 3

        async def move(link: Link) -> None:
            pending = [
                self.story.begin(
                    self._handle,
                    LogOpKind.COMMIT,
                    part=str(part),
                    offset=offset,
                    token=token,
                    group=group,
                    member=member.member_id,
                    generation=member.generation,
                )
                for part, offset in moved.items()
            ]
            asking = calls.commit_in_transaction(
                link, name, who, group=group, member=member, moved=moved, version=version
            )
            await self.recorded(pending, asking)

        await self.insist(move)


class TransactionalWriter(Transactor):
    """Writes to several partitions at a time."""

    async def life(self, handle: str) -> None:
        await self.begin_life(handle)
        for number in range(self.rng.randint(1, 8)):
            parts = [part for part in self.shared.parts if self.rng.random() < 0.5] or [self.shared.inputs[0]]
            messages = [
                (part, f"{number}.{at}{part}") for part in parts for at in range(self.rng.choice((1, 1, 3)))
            ]
            await self.transact(messages)
            await self.pause(self.rng.choice((0.02, 0.3)))


async def told_positions(worker: Worker, handle: str, group: str, parts: Sequence[Part]) -> dict[Part, int]:
    """Where the group is; 0 where it has never been."""

    async def ask(link: Link) -> dict[Part, int]:
        pending = {
            part: worker.story.begin(handle, LogOpKind.POSITION, part=str(part), group=group) for part in parts
        }
        try:
            found = await groups.positions(link, group, parts)
        except WeirError as failure:
            for each in pending.values():
                each.failed(failure)
            raise
        for part, each in pending.items():
            each.ok(offset=found[part])
        return {part: max(0, found[part]) for part in parts}

    return await worker.insist(ask)


class Pipeline(Transactor):
    """Reads what is committed, writes what came of it, and moves its position, all in one transaction. There may
    be several instances; whoever came last is the one that works."""

    async def life(self, handle: str) -> None:
        await self.begin_life(handle)
        try:
            await self.work(handle, self.shared.inputs, NO_MEMBER, self.rng.randint(3, 20))
        except KafkaRefusedError as refused:
            if refused.code in _FENCED:  # let the other work for a while
                await self.pause(1.0)
            raise

    async def work(self, handle: str, parts: Sequence[Part], member: Membership, turns: int) -> None:
        at = await told_positions(self, handle, PIPE, parts)
        for _ in range(turns):
            moved, messages = await self._take(handle, at)
            await self.between(member)
            if not messages:
                at.update(moved)
                await self.pause(0.1)
                continue
            if await self.transact(messages, group=PIPE, member=member, moved=moved):
                at.update(moved)
            elif self.rng.random() < 0.5:
                at = await told_positions(self, handle, PIPE, parts)

    async def between(self, member: Membership) -> None:
        """Before anything is written."""

    async def _take(self, handle: str, at: Mapping[Part, int]) -> tuple[dict[Part, int], list[tuple[Part, str]]]:
        """Some messages, as what came of them, and the positions behind them."""
        moved: dict[Part, int] = {}
        messages: list[tuple[Part, str]] = []
        for part, fetched in (await self.read(handle, dict(at), committed=True, group=PIPE)).items():
            taken = fetched.records[:_MOST]
            to = self.shared.outputs[part.number % len(self.shared.outputs)]
            messages += [(to, f"{PIPE}|{part}@{record.offset}") for record in taken]
            whole = len(taken) == len(fetched.records)
            moved[part] = fetched.next if whole else taken[-1].offset + 1
        return {part: offset for part, offset in moved.items() if offset != at[part]}, messages
