"""CoordinatorShards of coordinators: state that one broker at a time can make durable."""

import asyncio
from collections.abc import Callable

import pytest

from weir.broker.coordination.shards import COORDINATOR, CoordinatorShards, ShardCount, shard_key
from weir.meta.local import MemoryMeta
from weir.model.cluster import Boundaries
from weir.model.errors import NotAllowedError, StreamFencedError, TopicNotFoundError
from weir.model.registry import SYSTEM_NAMESPACE
from weir.model.topics import NamespaceName, kept_name


def test_what_was_flushed_is_there_for_the_next_holder_and_the_former_one_learns_of_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        first = CoordinatorShards(await bench.broker())
        shard = await first.of("group/a")
        assert shard is await first.of("group/b")
        shard.state.put("a", b"1")
        shard.state.put("b", b"2")
        await shard.state.flush()
        died = asyncio.Event()
        shard.on_death(died.set)
        second = CoordinatorShards(await bench.broker())
        other = await second.of("group/a")
        assert [other.state.get(key) for key in ("a", "b")] == [b"1", b"2"]
        shard.state.put("a", b"3")
        with pytest.raises(StreamFencedError):
            await shard.state.flush()
        await died.wait()
        assert not shard.alive
        assert other.alive
        assert [shard.alive for shard in await second.here()] == [True]

    run(scenario)


def test_a_home_that_died_is_loaded_anew(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        shards = CoordinatorShards(broker)
        shard = await shards.of("x")
        shard.state.put("a", b"1")
        await shard.state.flush()
        await broker.unload(COORDINATOR)
        assert not shard.alive
        again = await shards.of("x")
        assert again is not shard
        assert again.state.get("a") == b"1"

    run(scenario)


def test_users_neither_see_nor_get_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        await CoordinatorShards(broker).of("x")
        assert broker.loaded == []
        with pytest.raises(TopicNotFoundError):
            await broker.topic(COORDINATOR, role="r")
        with pytest.raises(TopicNotFoundError):
            await broker.partitions(COORDINATOR, role="r")
        assert await broker.topics(str(NamespaceName("public", "default")), role="r") == []

    run(scenario)


def test_how_many_shards_there_are_is_said_once(run: Callable) -> None:
    async def scenario(bench) -> None:
        def shards(broker, wanted: int) -> CoordinatorShards:
            return CoordinatorShards(broker, ShardCount(MemoryMeta(bench.core, bench.runtime), wanted))

        broker = await bench.broker()
        assert await shards(broker, 4).used() == []  # who only looks decides nothing
        assert len(await shards(broker, 2).names()) == 2
        second = shards(broker, 16)
        assert [name.partition for name in await second.names()] == [0, 1]
        found = {key: await second.of(key) for key in ("a", "b", "c", "d")}
        assert {shard.number for shard in found.values()} == {0, 1}
        for key, shard in found.items():
            shard.state.put(key, key.encode())
            await shard.state.flush()
        later = shards(await bench.broker(), 1)
        assert [shard.number for shard in await later.used()] == [0, 1]
        for key in found:
            assert (await later.of(key)).state.get(key) == key.encode()

    run(scenario)


def test_what_was_kept_before_there_were_several_shards_is_in_the_one_shard(run: Callable) -> None:
    async def scenario(bench) -> None:
        shard = await CoordinatorShards(await bench.broker()).of("group/a")
        shard.state.put("a", b"1")
        await shard.state.flush()
        count = ShardCount(MemoryMeta(bench.core, bench.runtime), 16)
        shards = CoordinatorShards(await bench.broker(), count)
        assert [one.state.get("a") for one in await shards.used()] == [b"1"]
        assert (await shards.of("group/a")).state.get("a") == b"1"
        assert await count.known() == 1

    run(scenario)


def test_the_shards_of_a_new_cluster_are_in_bundles_of_their_own_and_those_of_an_old_one_stay_where_they_are(
    run: Callable,
) -> None:
    async def scenario(bench) -> None:
        divided: list[Boundaries] = []
        looked: list[NamespaceName] = []

        class Bundles:
            async def divide_at(self, namespace: NamespaceName, boundaries: Boundaries) -> None:
                assert namespace == SYSTEM_NAMESPACE
                divided.append(boundaries)
                raise NotAllowedError("it is divided already")  # which is no reason not to go on

            async def look_again(self, namespace: NamespaceName) -> None:
                looked.append(namespace)

        broker = await bench.broker()
        for _ in range(2):
            count = ShardCount(MemoryMeta(bench.core, bench.runtime), 16, Bundles())
            names = await CoordinatorShards(broker, count).names()
        (boundaries,) = divided
        assert looked == [SYSTEM_NAMESPACE]
        assert len({boundaries.bundle_of(name) for name in names}) == 16

    run(scenario)


def test_a_producer_id_tells_its_shard(run: Callable) -> None:
    async def scenario(bench) -> None:
        shards = CoordinatorShards(await bench.broker(), ShardCount(MemoryMeta(bench.core, bench.runtime), 16))
        assert await shards.of_producer(await shards.producer_id(5, 77)) == 5
        ids = {await shards.producer_id(number, taken) for number in range(16) for taken in (1, 2)}
        assert len(ids) == 32

    run(scenario)


@pytest.mark.parametrize(
    "names",
    [
        ("billing", kept_name("acme", "billing"), "acme/billing", kept_name("other", "acme/billing")),
        ("a/b", kept_name("acme", "a/b"), "acme/a/b"),
        ("hourly", kept_name("me", "hourly"), "weir-sink/hourly/7", kept_name("me", "weir-sink/hourly/7")),
        ("hourly", "me/hourly", "me/weir-sink/hourly/7"),
        ("spark-/tmp/checkpoint", "weir-sink/spark-/tmp/checkpoint/7"),
    ],
)
def test_whatever_may_be_meant_by_a_name_is_in_one_shard(names: tuple[str, ...]) -> None:
    assert len({shard_key(name) for name in names}) == 1, names
