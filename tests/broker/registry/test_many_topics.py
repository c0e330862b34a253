"""More topics than a broker keeps in memory, in simulated time: with room for 16 records and pages of 10."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from weir.broker.metadata.registry import Registry
from weir.broker.metadata.topic_lists import topics_hash
from weir.broker.metadata.topic_records import TopicLimits
from weir.meta import keys
from weir.meta.interfaces import Creation, Listing
from weir.meta.key_space import KeySpace
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.registry import TopicRecord
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate
from weir.wire.registry import encode_topic

SMALL = TopicLimits(cached=16, page=10)
MANY = 100


class CountedMeta(MemoryMeta):
    """Remembers which requests were made."""

    def __init__(self, core: MemoryCore, runtime: Runtime) -> None:
        super().__init__(core, runtime)
        self.pages: list[tuple[str, int]] = []
        self.batches: list[int] = []

    async def page(self, prefix: str, *, after: str = "", limit: int) -> Listing:
        self.pages.append((prefix, limit))
        return await super().page(prefix, after=after, limit=limit)

    async def create_many(self, creations: Sequence[Creation]) -> Sequence[int]:
        self.batches.append(len(creations))
        return await super().create_many(creations)


@dataclass
class Cluster:
    runtime: Runtime
    core: MemoryCore
    metas: list[CountedMeta] = field(default_factory=list)

    async def registry(self) -> Registry:
        self.metas.append(CountedMeta(self.core, self.runtime))
        registry = Registry(self.metas[-1], self.runtime, limits=SMALL)
        await registry.start()
        return registry

    async def settle(self) -> None:
        """Until every watch has caught up."""
        await self.runtime.clock.sleep(1)


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            state = KeySpace(history=16)
            await scenario(Cluster(runtime, MemoryCore(runtime.clock, state)))

        await world.node("broker").start(on_node)

    simulate(1, main)


def topic(number: int) -> TopicName:
    return TopicName(DEFAULT_NAMESPACE, f"t{number:03d}")


async def create_all(registry: Registry, count: int = MANY) -> list[TopicRecord]:
    return list(await asyncio.gather(*(registry.topics.create(topic(n)) for n in range(count))))


async def names(registry: Registry) -> list[TopicName]:
    return [name async for some in registry.topic_names(DEFAULT_NAMESPACE) for name in some]


def test_topics_that_are_made_at_once_share_a_request() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        await create_all(registry)
        assert cluster.metas[0].batches == [MANY]

    run(scenario)


def test_few_records_are_in_memory_and_every_topic_is_found_listed_and_counted() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        made = await create_all(one)
        for record in made:
            assert await other.topics.get(record.name) == record
            assert await other.topics.by_id(record.topic_id) == record
        assert one.topics.in_memory <= SMALL.cached
        assert other.topics.in_memory <= SMALL.cached
        assert await names(other) == [record.name for record in made]
        assert await other.topics.count() == MANY
        assert {
            limit for prefix, limit in cluster.metas[1].pages if prefix == keys.topics_of(DEFAULT_NAMESPACE)
        } == {SMALL.page}

    run(scenario)


def test_what_holds_for_a_topic_that_is_not_in_memory_is_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        await create_all(one)
        await one.change_policies(topic(0), lambda policies: replace(policies, message_ttl_s=7))
        assert other.topics.find(topic(0)) is None
        assert (await other.look_policies(topic(0))).message_ttl_s == 7

    run(scenario)


def test_a_held_topic_stays_in_memory_and_hears_of_every_change_though_the_store_forgets_its_history() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        await one.topics.create(topic(500), partitions=2)
        await one.topics.create(topic(501))
        for held in (topic(500), topic(501)):
            other.hold_topic(held)
            await other.topics.get(held)
        revision = other.topics.revision
        await one.topics.grow(topic(500), 5)
        await one.delete_topic(topic(501))
        await create_all(one)  # more than the store remembers, and than the other broker keeps
        for n in range(MANY):
            await other.topics.get(topic(n))
        await cluster.settle()
        found = other.topics.find(topic(500))
        assert found is not None
        assert found.partitions == 5
        assert other.topics.find(topic(501)) is None
        assert other.topics.revision > revision

    run(scenario)


def test_a_watched_list_is_right_though_the_store_forgets_its_history() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        await one.topics.create(topic(7))
        watch = await other.watch_topics(DEFAULT_NAMESPACE, pattern=".*/t.*")
        await one.delete_topic(topic(7))
        await asyncio.gather(*(one.topics.create(topic(n)) for n in range(20, 20 + MANY)))
        seen = {topic(7): None}
        while len(seen) != MANY or topic(7) in seen:
            change = await watch.next()
            for gone in change.removed:
                del seen[gone]
            seen.update(dict.fromkeys(change.added))
        assert watch.hash == topics_hash([str(name) for name in seen])
        watch.close()

    run(scenario)


def test_topics_that_are_being_deleted_are_found_without_a_look_at_the_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        assert await other.doomed_topics() == []  # nothing of before is there to be indexed
        await create_all(one)
        await one.doom_topic(topic(3))
        cluster.metas[1].pages.clear()
        assert await other.doomed_topics() == [topic(3)]
        assert all(prefix == keys.DOOMED_TOPICS for prefix, _ in cluster.metas[1].pages)
        await other.delete_topic(topic(3))
        assert await one.doomed_topics() == []

    run(scenario)


def test_a_topic_made_anew_under_its_name_has_another_id() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        before = await one.topics.create(topic(1))
        assert await other.topics.by_id(before.topic_id) == before
        await one.delete_topic(topic(1))
        await cluster.settle()
        after = await one.topics.create(topic(1))
        assert after.topic_id != before.topic_id
        assert await other.topics.by_id(before.topic_id) is None
        assert await other.topics.by_id(after.topic_id) == after

    run(scenario)


def test_topics_of_releases_before_the_index_are_found_by_their_ids_and_by_being_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        old = [TopicRecord(topic(n), created_ms=1000 + n, deleting=n == 5) for n in range(30)]
        for record in old:
            await cluster.metas[0].put(keys.topic(record.name), encode_topic(record))
        assert await registry.topics.by_id(old[11].topic_id) == old[11]
        assert await registry.doomed_topics() == [topic(5)]
        cluster.metas[0].pages.clear()
        fresh = await cluster.registry()
        assert await fresh.topics.by_id(old[29].topic_id) == old[29]
        assert await fresh.topics.by_id(bytes(16)) is None
        assert not any(prefix == keys.TOPICS and limit > 1 for prefix, limit in cluster.metas[1].pages)

    run(scenario)
