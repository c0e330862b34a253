"""The shards of transactional ids that are this broker's: loaded, looked after, lost."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from weir.broker.api import Owner, TransactionState
from weir.broker.coordinator_shards import CoordinatorShard, CoordinatorShards
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.broker.ports import TransactionGate
from weir.broker.transactions.model import Transaction, TransactionSettings
from weir.broker.transactions.shard import ROUND_BITS, Positions, TakesPart, TransactionShard
from weir.model.batch import Stamp
from weir.model.errors import (
    NotAllowedError,
    NotInTransactionError,
    NotOwnerError,
    PeerBusyError,
    PeerUnavailableError,
    StaleEpochError,
    TopicClosedError,
    TransactionStateError,
    WeirError,
)
from weir.model.owned_names import SINK_PREFIX, full_name
from weir.model.topics import TopicName
from weir.model.transactions import Fate
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.peer.coordinators import AskFate, ConfirmEnd, FateAnswer, Verified, VerifyWrite
from weir.wire.peer.node import Done

log = logging.getLogger(__name__)

R = TypeVar("R")
#: A coordinator that moves, or is out of reach, is asked so often, with pauses; then whoever asked is told.
_ATTEMPTS = 5
_MOVED = (NotOwnerError, TopicClosedError, PeerUnavailableError, PeerBusyError)


class TransactionShards:
    """`start`, then `close`. Stands at the gate of every topic."""

    def __init__(
        self,
        clock: Clock,
        shards: CoordinatorShards,
        gate: TransactionGate,
        settings: TransactionSettings,
        *,
        takes_part: TakesPart,
        positions: Positions,
        peers: PeerCalls | None = None,
    ) -> None:
        self._clock = clock
        self._shards = shards
        self._settings = settings
        self._takes_part = takes_part
        self._peers = peers
        #: The highest epoch of each shard, by its number, that topics here have heard of.
        self._heard: dict[int, int] = {}
        self._positions = positions
        self._loaded: dict[CoordinatorShard, TransactionShard] = {}
        self._tasks = TaskScope("transactions")
        gate.kept_by(self)
        shards.on_load(self._load)

    def start(self) -> None:
        self._tasks.spawn(self._sweep(), "look after")

    async def close(self) -> None:
        await self._tasks.close()
        for shard in list(self._loaded.values()):
            await shard.close()
        self._loaded.clear()

    # --- finding ----------------------------------------------------------------------------------------

    async def of(self, key: str) -> TransactionShard:
        """NotOwnerError if another broker has it."""
        return await self.at(await self._shards.number_of(key))

    async def at(self, number: int) -> TransactionShard:
        """The same, by its number."""
        loaded = self._loaded.get(await self._shards.at(number))
        if loaded is None:
            raise NotOwnerError("the coordinator of transactions is closed")
        return loaded

    async def all(self) -> list[TransactionShard]:
        await self._shards.used()
        return self._alive()

    async def owner(self, key: str) -> Owner:
        return await self._shards.owner(key)

    async def producer_id(self, number: int, taken: int) -> int:
        """See `CoordinatorShards.producer_id`."""
        return await self._shards.producer_id(number, taken)

    async def check_together(self, sink: str, names: Sequence[str]) -> None:
        """NotAllowedError unless all of these ids are in the sink's shard."""
        number = await self._shards.number_of(sink)
        for name in names:
            if await self._shards.number_of(name) != number:
                raise NotAllowedError(
                    f"{full_name(name)[:80]!r} cannot be committed together with sink {full_name(sink)[:80]!r}",
                    hint=f"begin the sink's transactional ids with {SINK_PREFIX}/ and its name and /",
                )

    def _alive(self) -> list[TransactionShard]:
        return [shard for shard in self._loaded.values() if shard.alive]

    def find(self, name: str) -> Transaction | None:
        """What is known of a transactional id at once: nothing if its shard is not loaded."""
        for shard in self._loaded.values():
            if shard.alive and name in shard.by_id:
                return shard.by_id[name]
        return None

    # --- the gate ---------------------------------------------------------------------------------------

    def admit(self, stamp: Stamp, topic: TopicName) -> int | WeirError | None:
        """At once if the coordinator is here: who is it may change at any time, but one that is here ends with the
        same lease as the topic does."""
        number = self._shards.of_producer_now(stamp.producer_id)
        for shard in self._loaded.values():
            if shard.shard.number == number and shard.alive and shard.shard.ready:
                return _admitted(shard, stamp, topic)
        return None

    async def verify(self, stamp: Stamp, topic: TopicName) -> int:
        """NotOwnerError, PeerError if the coordinator cannot be found for a while."""
        request = VerifyWrite(topic, stamp.producer_id, stamp.epoch)

        async def here(shard: TransactionShard) -> int:
            found = _admitted(shard, stamp, topic)
            if isinstance(found, WeirError):
                raise found
            return found

        async def there(broker_id: str, peers: PeerCalls) -> int:
            return (await peers.ask(broker_id, request)).round

        number = await self._shards.of_producer(stamp.producer_id)
        found = await self._ask(number, here, there)
        if found >> ROUND_BITS < self._heard.get(number, 0):
            raise NotOwnerError("a coordinator answered that was replaced", hint="try again")
        self._heard[number] = found >> ROUND_BITS
        return found

    async def confirm_end(self, producer_id: int, topic: TopicName, *, commit: bool) -> None:
        """From its coordinator's durable word: one that was replaced cannot give it."""

        async def here(shard: TransactionShard) -> None:
            if self._shards.several_brokers:
                await shard.shard.confirm()
            found = shard.by_producer.get(producer_id)
            wanted = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
            if found is None or found.state is not wanted or topic not in found.parts:
                raise TransactionStateError(f"the transaction of producer {producer_id} does not end so")

        async def there(broker_id: str, peers: PeerCalls) -> None:
            await peers.ask(broker_id, ConfirmEnd(topic, producer_id, commit))

        await self._ask(await self._shards.of_producer(producer_id), here, there)

    async def fate(self, producer_id: int, topic: TopicName, seen_ms: int) -> Fate:
        """What became of what the producer has open in the topic, to which it wrote last at `seen_ms`."""

        async def here(shard: TransactionShard) -> Fate:
            for transaction in shard.by_id.values():
                if producer_id in (transaction.producer_id, transaction.last_id):
                    return transaction.fate(topic, seen_ms)
            return Fate.UNKNOWN

        async def there(broker_id: str, peers: PeerCalls) -> Fate:
            return (await peers.ask(broker_id, AskFate(topic, producer_id, seen_ms))).fate

        return await self._ask(await self._shards.of_producer(producer_id), here, there)

    async def _ask(
        self,
        number: int,
        here: Callable[[TransactionShard], Awaitable[R]],
        there: Callable[[str, PeerCalls], Awaitable[R]],
    ) -> R:
        """Ask the shard, wherever it is; once more, a few times, if it moves meanwhile."""
        for attempt in range(_ATTEMPTS):
            try:
                owner = await self._shards.owner_at(number)
                if owner.here or self._peers is None:
                    return await here(await self.at(number))
                return await there(owner.broker_id, self._peers)
            except _MOVED as moved:
                if attempt == _ATTEMPTS - 1:
                    raise
                log.info("the coordinator of transactions is looked for again: %s", moved)
            await self._clock.sleep(self._settings.retry_pause_s)
        raise NotOwnerError("the coordinator of transactions is not found", hint="try again")

    def answer(self, handlers: PeerHandlers) -> None:
        """Answer topics of other brokers, for the shards that are here."""
        handlers.on(VerifyWrite, self._verify_for)
        handlers.on(AskFate, self._fate_for)
        handlers.on(ConfirmEnd, self._confirm_for)

    async def _here(self, producer_id: int) -> None:
        """NotOwnerError if another broker has the shard: whoever asked looks there."""
        await self.at(await self._shards.of_producer(producer_id))

    async def _verify_for(self, request: VerifyWrite) -> Verified:
        await self._here(request.producer_id)
        return Verified(await self.verify(Stamp(request.producer_id, request.epoch), request.part))

    async def _fate_for(self, request: AskFate) -> FateAnswer:
        await self._here(request.producer_id)
        return FateAnswer(await self.fate(request.producer_id, request.part, request.seen_ms))

    async def _confirm_for(self, request: ConfirmEnd) -> Done:
        await self._here(request.producer_id)
        await self.confirm_end(request.producer_id, request.part, commit=request.commit)
        return Done()

    # --- loading and losing -----------------------------------------------------------------------------

    def _load(self, shard: CoordinatorShard) -> None:
        """What is pending must be so before anybody asks for it."""
        for other in [other for other in self._loaded if not other.alive]:
            self._lost(other)
        self._loaded[shard] = TransactionShard(
            shard, self._takes_part, self._positions, self._clock, self._settings
        )
        shard.on_death(lambda: self._lost(shard))

    def _lost(self, shard: CoordinatorShard) -> None:
        lost = self._loaded.pop(shard, None)
        if lost is not None:
            self._tasks.spawn(lost.close(), "close")

    async def _sweep(self) -> None:
        """Load what is this broker's, so that what was decided is ended even if nobody asks; then time-outs."""
        while True:
            try:
                await self._shards.used()
                for shard in self._alive():
                    shard.sweep()
            except WeirError as failed:
                log.warning("transactions could not be looked after this time: %s", failed)
            await self._clock.sleep(self._settings.sweep_s)


def _admitted(shard: TransactionShard, stamp: Stamp, topic: TopicName) -> int | WeirError:
    """Which of its transactions the producer may write in, to the topic; or why not."""
    found = shard.by_producer.get(stamp.producer_id)
    if found is None:
        return NotInTransactionError(f"producer {stamp.producer_id} has no transactional id")
    if stamp.epoch != found.epoch:
        return StaleEpochError(f"producer {stamp.producer_id} is at epoch {found.epoch}")
    if found.state is not TransactionState.ONGOING or topic not in found.confirmed:
        return NotInTransactionError(f"{topic} is not part of an open transaction of {found.id!r}")
    return shard.round_of(found)
