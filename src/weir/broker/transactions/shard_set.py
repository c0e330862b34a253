"""The shards of transactional ids that are this broker's: loaded, looked after, lost."""

import asyncio
import logging
from collections.abc import Sequence

from weir.broker.api import Owner, TransactionState
from weir.broker.coordinator_shards import CoordinatorShard, CoordinatorShards
from weir.broker.ports import Fate, TransactionGate
from weir.broker.transactions.model import Transaction, TransactionSettings
from weir.broker.transactions.shard import Positions, Topics, TransactionShard
from weir.model.batch import Stamp
from weir.model.errors import NotAllowedError, NotInTransactionError, NotOwnerError, StaleEpochError, WeirError
from weir.model.owned_names import SINK_PREFIX, full_name
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)


class TransactionShards:
    """`start`, then `close`. Stands at the gate of every topic."""

    def __init__(
        self,
        clock: Clock,
        shards: CoordinatorShards,
        gate: TransactionGate,
        settings: TransactionSettings,
        *,
        topics: Topics,
        positions: Positions,
    ) -> None:
        self._clock = clock
        self._shards = shards
        self._settings = settings
        self._topics = topics
        self._positions = positions
        self._loaded: dict[CoordinatorShard, TransactionShard] = {}
        self._tasks = TaskScope("transactions")
        self._loading: asyncio.Task[None] | None = None
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
        loaded = self._loaded.get(await self._shards.of(key))
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

    def refusal(self, stamp: Stamp, topic: TopicName) -> WeirError | None:
        """Why a producer may not begin to write to the topic in a transaction, if so. Who is the coordinator may
        change at any time; only one that is here, and that can also end what is begun, can say yes."""
        shard = self._of_producer(stamp.producer_id)
        if shard is None:
            return NotOwnerError("the coordinator of transactions is not loaded here", hint="try again")
        found = shard.by_producer.get(stamp.producer_id)
        if found is None:
            return NotInTransactionError(f"producer {stamp.producer_id} has no transactional id")
        if stamp.epoch != found.epoch:
            return StaleEpochError(f"producer {stamp.producer_id} is at epoch {found.epoch}")
        if found.state is not TransactionState.ONGOING or topic not in found.confirmed:
            return NotInTransactionError(f"{topic} is not part of an open transaction of {found.id!r}")
        return None

    def fate(self, producer_id: int, topic: TopicName, seen_ms: int) -> Fate:
        """What became of what the producer has open in the topic, to which it wrote last at `seen_ms`."""
        shard = self._of_producer(producer_id)
        if shard is None:
            return Fate.OPEN
        for transaction in shard.by_id.values():
            if producer_id in (transaction.producer_id, transaction.last_id):
                return transaction.fate(topic, seen_ms)
        return Fate.UNKNOWN

    # --- loading and losing -----------------------------------------------------------------------------

    def _of_producer(self, producer_id: int) -> TransactionShard | None:
        """The shard of a producer's transactional id; None if it is not here, or not yet: then it is loaded."""
        number = self._shards.of_producer_now(producer_id)
        found = next((shard for shard in self._alive() if shard.shard.number == number), None)
        if found is None and (self._loading is None or self._loading.done()):
            self._loading = self._tasks.spawn(self._load_quietly(producer_id), "load")
        return found

    async def _load_quietly(self, producer_id: int) -> None:
        try:
            await self._shards.at(await self._shards.of_producer(producer_id))
        except WeirError as failed:
            log.info("the coordinator of transactions could not be loaded: %s", failed)

    def _load(self, shard: CoordinatorShard) -> None:
        """What is pending must be so before anybody asks for it."""
        for other in [other for other in self._loaded if not other.alive]:
            self._lost(other)
        self._loaded[shard] = TransactionShard(shard, self._topics, self._positions, self._clock, self._settings)
        shard.on_death(lambda: self._lost(shard))

    def _lost(self, shard: CoordinatorShard) -> None:
        lost = self._loaded.pop(shard, None)
        if lost is not None:
            lost.lose()
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
