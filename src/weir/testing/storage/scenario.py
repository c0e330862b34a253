"""The storage alone: writers, readers and recoverers of ledgers, and bookies that fail in every way."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random

from weir.ledger.client import LedgerClient
from weir.runtime.interfaces import Runtime
from weir.testing.operations import FINAL
from weir.testing.scenario import Scenario, SeedRun
from weir.testing.storage.checkers import CHECKERS
from weir.testing.storage.cluster import Cluster
from weir.testing.storage.final import FinalCheck
from weir.testing.storage.history import Op
from weir.testing.storage.mutations import MUTATIONS
from weir.testing.storage.nemesis import Nemesis
from weir.testing.storage.plan import Plan, make_plan
from weir.testing.storage.workload import Reader, Recoverer, Shared, Writer
from weir.testing.world.world import World

_Work = Callable[[LedgerClient, Runtime, Random], Awaitable[None]]


class _Run(SeedRun[Plan, Cluster]):
    def __init__(self, world: World, plan: Plan) -> None:
        cluster = Cluster(world, plan)
        self.shared = Shared(cluster.history, plan)
        nemesis = Nemesis(cluster, plan, self.shared, world.rng("nemesis"))
        super().__init__(world, plan, plan, cluster, nemesis)

    @property
    def ops(self) -> Sequence[Op]:
        return self.cluster.history.ops()

    def add_clients(self) -> None:
        for i in range(self.plan.writers):
            self._add(f"w{i}", self._writer(f"w{i}"))
        for i in range(self.plan.readers):
            self._add(f"r{i}", self._reader(f"r{i}"))
        for i in range(self.plan.recoverers):
            self._add(f"c{i}", self._recoverer(f"c{i}"))
        if self.plan.repair:
            self.cluster.add_repair()

    def _add(self, name: str, work: _Work) -> None:
        async def connected(runtime: Runtime, rng: Random) -> None:
            await work(await self.cluster.ledger_client(runtime, name), runtime, rng)

        self.client(name, connected)

    def _writer(self, name: str) -> _Work:
        left = [self.plan.appends // self.plan.writers]

        async def write(client: LedgerClient, runtime: Runtime, rng: Random) -> None:
            await Writer(name, client, runtime.clock, rng, self.shared).run(left)

        return write

    def _reader(self, name: str) -> _Work:
        async def read(client: LedgerClient, runtime: Runtime, rng: Random) -> None:
            await Reader(name, client, runtime.clock, rng, self.shared).run()

        return read

    def _recoverer(self, name: str) -> _Work:
        async def recover(client: LedgerClient, runtime: Runtime, rng: Random) -> None:
            await Recoverer(name, client, runtime.clock, rng, self.shared).run()

        return recover

    async def final(self, runtime: Runtime) -> None:
        client = await self.cluster.ledger_client(runtime, FINAL)
        check = FinalCheck(self.cluster, client, self.shared.ledgers)
        try:
            await check.run()
        finally:
            self.violations += check.violations


CLUSTER = Scenario("cluster", "plan", make_plan, _Run, CHECKERS, MUTATIONS, max_steps=20_000_000)
