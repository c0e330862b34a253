"""The homes of transactional ids that are this broker's: loaded, looked after, lost."""

import asyncio
import logging

from weir.broker.ports import TransactionGate
from weir.broker.shards import Home, Homes
from weir.broker.transactions.model import Transaction, TransactionSettings, TransactionState
from weir.broker.transactions.shard import Positions, Topics, TransactionHome
from weir.model.batch import Stamp
from weir.model.errors import NotInTransactionError, NotOwnerError, StaleEpochError, WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)


class TransactionHomes:
    """`start`, then `close`. Stands at the gate of every topic."""

    def __init__(
        self,
        clock: Clock,
        homes: Homes,
        gate: TransactionGate,
        settings: TransactionSettings,
        *,
        topics: Topics,
        positions: Positions,
    ) -> None:
        self._clock = clock
        self._homes = homes
        self._settings = settings
        self._topics = topics
        self._positions = positions
        self._loaded: dict[Home, TransactionHome] = {}
        self._tasks = TaskScope("transactions")
        self._loading: asyncio.Task[None] | None = None
        gate.refusal = self.refusal
        homes.on_load(self._load)

    def start(self) -> None:
        self._tasks.spawn(self._look_after(), "look after")

    async def close(self) -> None:
        await self._tasks.close()
        for home in list(self._loaded.values()):
            await home.close()
        self._loaded.clear()

    # --- finding ----------------------------------------------------------------------------------------

    async def of(self, key: str) -> TransactionHome:
        """NotOwnerError if another broker has it."""
        loaded = self._loaded.get(await self._homes.of(key))
        if loaded is None:
            raise NotOwnerError("the coordinator of transactions is closed")
        return loaded

    async def all(self) -> list[TransactionHome]:
        await self._homes.here()
        return self._alive()

    async def owner_here(self, key: str) -> bool:
        return (await self._homes.owner(key)).here

    def _alive(self) -> list[TransactionHome]:
        return [home for home in self._loaded.values() if home.alive]

    def find(self, name: str) -> Transaction | None:
        """What is known of a transactional id at once: nothing if its home is not loaded."""
        for home in self._loaded.values():
            if home.alive and name in home.by_id:
                return home.by_id[name]
        return None

    def refusal(self, stamp: Stamp, topic: TopicName) -> WeirError | None:
        """Why a producer may not begin to write to the topic in a transaction, if so. Who is the coordinator may
        change at any time; only one that is here, and that can also end what is begun, can say yes."""
        homes = self._alive()
        if not homes:
            self._load_soon()
            return NotOwnerError("the coordinator of transactions is not loaded here", hint="try again")
        found = [home.by_producer[stamp.producer_id] for home in homes if stamp.producer_id in home.by_producer]
        if not found:
            return NotInTransactionError(f"producer {stamp.producer_id} has no transactional id")
        if stamp.epoch != found[0].epoch:
            return StaleEpochError(f"producer {stamp.producer_id} is at epoch {found[0].epoch}")
        if found[0].state is not TransactionState.ONGOING or topic not in found[0].confirmed:
            return NotInTransactionError(f"{topic} is not part of an open transaction of {found[0].id!r}")
        return None

    # --- loading and losing -----------------------------------------------------------------------------

    def _load_soon(self) -> None:
        if self._loading is None or self._loading.done():
            self._loading = self._tasks.spawn(self._load_quietly(), "load")

    async def _load_quietly(self) -> None:
        try:
            await self._homes.here()
        except WeirError as failed:
            log.info("the coordinator of transactions could not be loaded: %s", failed)

    def _load(self, home: Home) -> None:
        """What is pending must be so before anybody asks for it."""
        for other in [other for other in self._loaded if not other.alive]:
            self._lost(other)
        self._loaded[home] = TransactionHome(home, self._topics, self._positions, self._clock, self._settings)
        home.on_death(lambda: self._lost(home))

    def _lost(self, home: Home) -> None:
        lost = self._loaded.pop(home, None)
        if lost is not None:
            lost.lose()
            self._tasks.spawn(lost.close(), "close")

    async def _look_after(self) -> None:
        """Load what is this broker's, so that what was decided is ended even if nobody asks; then time-outs."""
        while True:
            try:
                await self._homes.used()
                for home in self._alive():
                    home.look_through()
            except WeirError as failed:
                log.warning("transactions could not be looked after this time: %s", failed)
            await self._clock.sleep(self._settings.sweep_s)
