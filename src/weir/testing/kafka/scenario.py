"""Kafka's clients on a broker over bookies: producers, readers, members of groups, transactions."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from random import Random
from typing import Any, ClassVar
from unittest.mock import patch

from weir.gateway.kafka.errors import Code
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.kafka.checkers.every import CHECKERS
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients.client import KafkaRefusedError
from weir.testing.kafka.clients.follower import FOLLOWER, Follower
from weir.testing.kafka.clients.members import READERS, Member, Processor
from weir.testing.kafka.clients.producers import IdempotentProducer, PlainProducer
from weir.testing.kafka.clients.pulsar import PulsarReader
from weir.testing.kafka.clients.readers import Deleter, Reader
from weir.testing.kafka.clients.table import CONFIGS, TABLE, TableReader, TableWriter
from weir.testing.kafka.clients.transactor import Pipeline, TransactionalWriter
from weir.testing.kafka.clients.workload import (
    IN,
    OUT,
    KafkaShared,
    Todo,
    Who,
    Worker,
)
from weir.testing.kafka.cluster import KafkaCluster
from weir.testing.kafka.final import KafkaFinal
from weir.testing.kafka.history import KafkaOp
from weir.testing.kafka.mutations.data import KAFKA_MUTATIONS
from weir.testing.kafka.nemesis import KafkaNemesis
from weir.testing.kafka.plan import KafkaPlan, make_kafka_plan
from weir.testing.kafka.truth import PIPE
from weir.testing.scenario import Scenario, SeedRun
from weir.testing.storage.nemesis import Nemesis
from weir.testing.world.world import World

#: A name, how many partitions, and configs.
_Topic = tuple[str, int, Mapping[str, str]]


class KafkaRun(SeedRun[KafkaPlan, KafkaCluster]):
    """One seed's."""

    follower: ClassVar[type[Worker]] = Follower

    def __init__(self, world: World, plan: KafkaPlan) -> None:
        cluster = self.make_cluster(world, plan)
        self.shared = KafkaShared(cluster)
        nemesis = self.make_nemesis(cluster, world.rng("nemesis"))
        super().__init__(world, plan, plan.storage, cluster, nemesis)

    def make_cluster(self, world: World, plan: KafkaPlan) -> KafkaCluster:
        return KafkaCluster(world, plan)

    def make_nemesis(self, cluster: KafkaCluster, rng: Random) -> Nemesis:
        return KafkaNemesis(cluster, self.shared, rng)

    @property
    def ops(self) -> Sequence[KafkaOp]:
        return self.cluster.story.ops()

    async def set_up(self) -> None:
        self.cluster.add_brokers()
        topics: list[_Topic] = [
            (IN, self.plan.in_parts, {}),
            (OUT, self.plan.out_parts, {}),
        ]
        if self.plan.table:
            topics.append((TABLE.topic, 1, CONFIGS))
        await self.operate(*(partial(self._made, *topic) for topic in topics))

    async def _made(self, topic: str, partitions: int, configs: Mapping[str, str], runtime: Runtime) -> bool:
        try:
            link = await self.cluster.connect(runtime, "operator")
            try:
                await calls.create_topic(link, topic, partitions, configs)
            finally:
                await link.close()
        except InvariantError:
            raise
        except KafkaRefusedError as refused:
            return refused.code is Code.TOPIC_ALREADY_EXISTS
        except WeirError:
            return False
        return True

    def add_clients(self) -> None:
        plan = self.plan
        committed = self.world.rng("isolation").random() < 0.5
        self._add("p", plan.plain, PlainProducer)
        self._add("i", plan.idempotent, IdempotentProducer)
        self._add("w", plan.writers, lambda who: TransactionalWriter(who, "w" if plan.instances > 1 else who.name))
        self._add("t", plan.instances * plan.pipelines, lambda who: Pipeline(who, PIPE))
        self._add("c", plan.processors, lambda who: Processor(who, who.name))
        self._add("m", plan.members, lambda who: Member(who, committed=committed))
        self._add("r", plan.readers, Reader)
        self._add("d", int(plan.deletes), Deleter)
        self._add("k", int(plan.table), TableWriter)
        self._add("s", int(plan.table), TableReader)
        self._add("u", int(plan.pulsar), PulsarReader)
        self._add("f", int(plan.follows), type(self).follower)
        self.cluster.staying = [FOLLOWER]

    def _add(self, letter: str, count: int, make: Callable[[Who], Worker]) -> None:
        for number in range(count):
            self._add_one(f"{letter}{number}", make)

    def _add_one(self, name: str, make: Callable[[Who], Worker]) -> None:
        todo = Todo(self.plan.messages)

        async def work(runtime: Runtime, rng: Random) -> None:
            await make(Who(name, runtime, rng, self.shared, todo)).run()

        self.client(name, work)

    async def final(self, runtime: Runtime) -> None:
        pipes = bool(self.plan.pipelines or self.plan.processors)
        groups = [name for name, used in ((PIPE, pipes), (READERS, bool(self.plan.members))) if used]
        await KafkaFinal(runtime, self.shared, groups).run()


def few_epochs(plan: KafkaPlan) -> AbstractContextManager[Any]:
    """Transactional ids get a new producer id after so many epochs."""
    return patch("weir.broker.transactions.transaction_coordinator.MAX_EPOCH", plan.last_epoch)


KAFKA = Scenario("kafka", "kafka", make_kafka_plan, KafkaRun, CHECKERS, KAFKA_MUTATIONS, around=few_epochs)
