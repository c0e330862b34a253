"""Coordinators of brokers that speak to each other: what clients ask of one that is not the coordinator."""

import pytest

from weir.broker.coordination.shards import CLUSTER_SHARDS, COORDINATOR
from weir.model.errors import SinkOfOtherQueryError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionState
from weir.testing.many_brokers import ManyBrokers


def test_partitions_groups_and_sinks_are_asked_for_at_any_broker(brokers: ManyBrokers) -> None:
    """Over the brokers' own protocol: a partition joins by being produced to, a driver asks whom it knows."""

    async def scenario() -> None:
        access = {name: one.composed.transaction_access.of("") for name, one in brokers.running.items()}
        groups = {name: one.composed.groups for name, one in brokers.running.items()}
        some, name = next(iter(access.values())), "weir-sink/s/1"
        owner = (await some.owner(name)).broker_id
        bundles = next(iter(brokers.running.values())).broker.bundles
        assert (
            len({bundles.bundle_of(COORDINATOR.at(number)) for number in range(CLUSTER_SHARDS)}) == CLUSTER_SHARDS
        )
        assert {(await one.owner(name)).broker_id for one in access.values()} == {owner}
        assert len({(await some.owner(f"id-{number}")).broker_id for number in range(40)}) > 1
        who = await access[owner].init(name)
        part = TopicName.parse("persistent://public/default/joined")
        for other in [other for other in access if other != owner]:
            assert part not in access[other].joined(name, who.producer_id, who.epoch)
            await access[other].add_partitions(name, who, [part])
            assert part in access[other].joined(name, who.producer_id, who.epoch)
            assert part not in access[other].joined(name, who.producer_id, who.epoch + 1)
        at_group = (await next(iter(groups.values())).owner("readers")).broker_id
        await access[at_group].commit_offsets(name, who, "readers", {part: CommittedOffset(3)}, joins=True)
        for one in access.values():
            assert await one.sink_epoch("s") == -1
        other = next(other for other in access if other != owner)
        assert await access[other].commit_together("s", 4, [(name, who)], query="q1")
        with pytest.raises(SinkOfOtherQueryError, match="query q1"):
            await access[other].commit_together("s", 0, [], query="q2")
        assert not await access[owner].commit_together("s", 4, [(name, who)])
        assert [await one.sink_epoch("s") for one in access.values()] == [4] * len(access)
        assert await access[other].commit_together("s", 0, [], query="q2", instead_of="q1")
        assert [await one.sink_epoch("s") for one in access.values()] == [0] * len(access)
        assert (await access[owner].describe(name)).state is TransactionState.COMPLETE_COMMIT
        await access[other].forget_sink("s")
        assert await access[owner].sink_epoch("s") == -1

    brokers.call(scenario)


def test_a_sinks_transactional_ids_are_asked_for_where_the_sink_is(brokers: ManyBrokers) -> None:
    async def scenario() -> None:
        access = {name: one.composed.transaction_access.of("") for name, one in brokers.running.items()}
        some = next(iter(access.values()))
        for number in range(8):
            name = f"weir-sink/s{number}/writer"
            owner = (await some.owner(name)).broker_id
            assert (await access[owner].init(name)).epoch == 0

    brokers.call(scenario)
