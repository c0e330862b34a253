"""Tenants, namespaces, topics and policies, by several brokers on one metadata store, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from weir.broker.metadata.registry import Registry
from weir.broker.metadata.topic_records import TopicLimits
from weir.meta.interfaces import MetaStore
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import (
    ClusterNotFoundError,
    InvalidNameError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    NotAllowedError,
    NotEmptyError,
    TenantExistsError,
    TenantNotFoundError,
    TooManyError,
    TopicExistsError,
    TopicNotFoundError,
)
from weir.model.policies import DEFAULT_POLICIES, AutoTopicCreation, Policies, Retention, SchemaCompatibility
from weir.model.registry import Action, Grants
from weir.model.topics import DEFAULT_NAMESPACE, NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate


@dataclass
class Cluster:
    """Registries of several brokers over one store."""

    runtime: Runtime
    core: MemoryCore

    async def registry(
        self,
        *,
        faults: MetaFaults | None = None,
        defaults: Policies = DEFAULT_POLICIES,
        limits: TopicLimits | None = None,
    ) -> Registry:
        meta: MetaStore = MemoryMeta(self.core, self.runtime)
        if faults is not None:
            meta = FaultyMeta(meta, self.runtime, faults)
        registry = Registry(meta, self.runtime, defaults, limits=limits)
        await registry.start()
        return registry

    async def settle(self) -> None:
        """Until every watch has caught up."""
        await self.runtime.clock.sleep(1)


def run(scenario: Callable[[Cluster], Awaitable[None]], seed: int = 1) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(Cluster(runtime, MemoryCore(runtime.clock)))

        await world.node("broker").start(on_node)

    simulate(seed, main)


def topic(text: str) -> TopicName:
    return TopicName.parse(text)


ACME = NamespaceName("acme", "shop")


async def with_acme(registry: Registry) -> None:
    await registry.tenants.create("acme")
    await registry.namespaces.create(ACME)


# --- the beginning --------------------------------------------------------------------------------------------


def test_the_default_namespace_and_the_cluster_are_there_from_the_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        assert registry.tenants.names() == ["public"]
        assert registry.namespaces.names("public") == [DEFAULT_NAMESPACE]
        assert [c.name for c in registry.clusters()] == ["standalone"]
        with pytest.raises(ClusterNotFoundError):
            registry.cluster("elsewhere")

    run(scenario)


def test_many_brokers_may_make_the_very_first_start_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        registries = await asyncio.gather(*(cluster.registry() for _ in range(5)))
        await cluster.settle()
        assert [registry.namespaces.names("public") for registry in registries] == [[DEFAULT_NAMESPACE]] * 5

    run(scenario)


def test_a_deleted_default_tenant_does_not_come_back_at_the_next_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.registry()
        await first.delete_namespace(DEFAULT_NAMESPACE)
        await first.delete_tenant("public")
        await first.close()
        assert (await cluster.registry()).tenants.names() == []

    run(scenario)


# --- tenants and namespaces -----------------------------------------------------------------------------------


def test_tenants_are_created_changed_and_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        await registry.tenants.create("acme", admin_roles=("ann", "bob", "ann"))
        assert registry.tenants.get("acme").admin_roles == ("ann", "bob")
        with pytest.raises(TenantExistsError):
            await registry.tenants.create("acme")
        await registry.tenants.change("acme", admin_roles=("eve",))
        changed = registry.tenants.get("acme")
        assert (changed.admin_roles, changed.allowed_clusters) == (("eve",), ("standalone",))
        await registry.delete_tenant("acme")
        for missing in (registry.delete_tenant("acme"), registry.tenants.change("acme")):
            with pytest.raises(TenantNotFoundError):
                await missing
        with pytest.raises(TenantNotFoundError):
            registry.tenants.get("acme")

    run(scenario)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [("pulsar", NotAllowedError), ("weir", NotAllowedError), ("..", InvalidNameError), ("a/b", InvalidNameError)],
)
def test_a_tenant_cannot_have_a_reserved_or_malformed_name(name: str, refusal: type[Exception]) -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        with pytest.raises(refusal):
            await registry.tenants.create(name)

    run(scenario)


def test_namespaces_need_their_tenant_and_are_deleted_only_when_empty() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        with pytest.raises(TenantNotFoundError):
            await registry.namespaces.create(ACME)
        await with_acme(registry)
        with pytest.raises(NamespaceExistsError):
            await registry.namespaces.create(ACME)
        await registry.topics.create(topic("acme/shop/orders"))
        with pytest.raises(NotEmptyError):
            await registry.delete_namespace(ACME)
        with pytest.raises(NotEmptyError):
            await registry.delete_tenant("acme")
        # A refused deletion leaves everything in use.
        await registry.topics.create(topic("acme/shop/more"))
        await registry.namespaces.create(NamespaceName("acme", "more"))
        for name in ("orders", "more"):
            await registry.delete_topic(topic(f"acme/shop/{name}"))
        await registry.delete_namespace(ACME)
        with pytest.raises(NamespaceNotFoundError):
            registry.namespaces.get(ACME)

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_namespace_is_never_deleted_under_a_topic_that_is_being_made(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        slow = MetaFaults(delay_s=0.01)
        one, other = await cluster.registry(faults=slow), await cluster.registry(faults=slow)
        await with_acme(one)
        await cluster.settle()
        outcomes = await asyncio.gather(
            one.delete_namespace(ACME), other.topics.create(topic("acme/shop/orders")), return_exceptions=True
        )
        await cluster.settle()
        fresh = await cluster.registry()
        exists, made = fresh.namespaces.find(ACME), await fresh.topics.look(topic("acme/shop/orders"))
        assert made is None or exists is not None, outcomes
        assert exists is None or not exists.deleting, outcomes
        assert isinstance(outcomes[0], NotEmptyError | None), outcomes
        assert outcomes[1] is None or not isinstance(outcomes[1], NotEmptyError)

    run(scenario, seed)


# --- topics ---------------------------------------------------------------------------------------------------


def test_topics_are_created_once_and_found_by_any_broker() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        made = await one.topics.create(topic("orders"), partitions=3, properties={"team": "a"})
        assert made.parts() == [topic("orders").at(n) for n in range(3)]
        await cluster.settle()
        assert await other.topics.get(topic("orders")) == made
        assert await other.topics.get(topic("orders-partition-2")) == made
        assert await other.topics.look(topic("orders-partition-3")) is None
        with pytest.raises(TopicExistsError):
            await other.topics.create(topic("orders"))
        with pytest.raises(NamespaceNotFoundError):
            await other.topics.create(topic("acme/shop/orders"))
        with pytest.raises(NotAllowedError):
            await other.topics.create(topic("x-partition-1"))

    run(scenario)


def test_a_topic_is_made_by_being_asked_for_as_the_namespaces_policy_says() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        assert (await registry.ensure_topic(topic("plain"))).partitions == 0
        await registry.change_policies(
            DEFAULT_NAMESPACE, lambda p: replace(p, auto_topic_creation=AutoTopicCreation(True, 4))
        )
        assert (await registry.ensure_topic(topic("wide"))).partitions == 4
        assert (await registry.ensure_topic(topic("wide-partition-3"))).name == topic("wide")
        for missing in ("wide-partition-4", "unknown-partition-0"):
            with pytest.raises(TopicNotFoundError):
                await registry.ensure_topic(topic(missing))
        with pytest.raises(TopicNotFoundError):
            await registry.ensure_topic(topic("other"), create=False)
        await registry.change_policies(
            DEFAULT_NAMESPACE, lambda p: replace(p, auto_topic_creation=AutoTopicCreation(allowed=False))
        )
        with pytest.raises(TopicNotFoundError):
            await registry.ensure_topic(topic("other"))
        assert (await registry.ensure_topic(topic("plain"))).partitions == 0

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_any_number_may_ask_for_a_new_topic_at_once(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        registries = [await cluster.registry(faults=MetaFaults(delay_s=0.01)) for _ in range(6)]
        found = await asyncio.gather(
            *(registry.ensure_topic(topic("new")) for registry in registries for _ in range(3))
        )
        assert found == found[:1] * 18

    run(scenario, seed)


def test_a_topic_made_elsewhere_is_found_before_the_watch_tells_of_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, late = await cluster.registry(), await cluster.registry(faults=MetaFaults(watch_delay_s=1000))
        await with_acme(one)
        made = await one.topics.create(topic("acme/shop/orders"), partitions=2)
        assert late.topics.find(made.name) is None
        assert await late.ensure_topic(topic("acme/shop/orders-partition-1"), create=False) == made
        await one.topics.grow(made.name, 5)
        assert (await late.ensure_topic(made.name.at(4), create=False)).partitions == 5

    run(scenario)


def test_partitions_only_grow() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry(limits=TopicLimits(max_partitions=8))
        await registry.topics.create(topic("wide"), partitions=2)
        assert (await registry.topics.grow(topic("wide"), 6)).partitions == 6
        with pytest.raises(NotAllowedError):
            await registry.topics.grow(topic("wide"), 5)
        with pytest.raises(TooManyError):
            await registry.topics.grow(topic("wide"), 9)
        await registry.topics.create(topic("plain"))
        with pytest.raises(NotAllowedError):
            await registry.topics.grow(topic("plain"), 2)
        with pytest.raises(TopicNotFoundError):
            await registry.topics.grow(topic("none"), 2)

    run(scenario)


def test_a_namespace_holds_no_more_topics_than_it_may() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry(limits=TopicLimits(max_topics_per_namespace=2))
        await registry.ensure_topic(topic("a"))
        await registry.ensure_topic(topic("b"))
        with pytest.raises(TooManyError):
            await registry.ensure_topic(topic("c"))
        await registry.ensure_topic(topic("b"))

    run(scenario)


def test_a_deleted_topic_is_gone_at_once_and_stays_gone_while_the_watch_lags() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry(faults=MetaFaults(watch_delay_s=0.2))
        for _ in range(3):
            await registry.topics.create(topic("t"))
            await registry.delete_topic(topic("t"))
        for _ in range(30):
            assert registry.topics.find(topic("t")) is None
            await cluster.runtime.clock.sleep(0.05)
        with pytest.raises(TopicNotFoundError):
            await registry.delete_topic(topic("t"))

    run(scenario)


def test_what_was_just_written_is_not_undone_while_the_watch_lags() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry(faults=MetaFaults(watch_delay_s=0.2))
        await registry.topics.create(topic("t"))
        for ttl in range(1, 6):
            await registry.change_policies(topic("t"), lambda p, ttl=ttl: replace(p, message_ttl_s=ttl))
        for _ in range(30):
            assert registry.policies(topic("t")).message_ttl_s == 5
            await cluster.runtime.clock.sleep(0.05)

    run(scenario)


def test_what_is_deleted_loses_its_grants() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        await with_acme(registry)
        orders, others = topic("acme/shop/orders"), topic("acme/shop/other")
        await registry.topics.create(orders)
        for scope in (orders, others, ACME, "acme"):
            await registry.grants.grant(scope, "ann", [Action.PRODUCE])
        await registry.delete_topic(orders)
        assert registry.grants.on(orders) == Grants()
        assert list(registry.grants.on_topics_of(ACME)) == [str(others)]
        await registry.delete_namespace(ACME)
        assert registry.grants.on(others) == registry.grants.on(ACME) == Grants()
        assert registry.grants.on("acme").allows("ann", Action.PRODUCE)
        await registry.delete_tenant("acme")
        assert registry.grants.on("acme") == Grants()

    run(scenario)


# --- policies -------------------------------------------------------------------------------------------------


def test_a_topics_policy_wins_over_its_namespaces_which_wins_over_the_default() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry(defaults=Policies(message_ttl_s=7))
        await registry.topics.create(topic("t"), partitions=2)
        assert registry.policies(topic("t")).message_ttl_s == 7
        assert registry.policies(topic("t")).max_producers == DEFAULT_POLICIES.max_producers
        await registry.change_policies(DEFAULT_NAMESPACE, lambda p: replace(p, message_ttl_s=8, max_producers=3))
        assert registry.policies(topic("t-partition-1")).message_ttl_s == 8
        await registry.change_policies(topic("t"), lambda p: replace(p, message_ttl_s=9))
        assert registry.policies(topic("t-partition-1")).message_ttl_s == 9
        assert registry.policies(topic("t")).max_producers == 3
        assert registry.policies(topic("not-made-yet")).message_ttl_s == 8
        assert registry.policies(DEFAULT_NAMESPACE).message_ttl_s == 8
        await registry.change_policies(topic("t"), lambda p: replace(p, message_ttl_s=None))
        assert registry.policies(topic("t")).message_ttl_s == 8

    run(scenario)


def test_an_undefined_compatibility_says_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        await registry.change_policies(
            DEFAULT_NAMESPACE, lambda p: replace(p, schema_compatibility=SchemaCompatibility.UNDEFINED)
        )
        assert registry.policies(topic("t")).schema_compatibility is SchemaCompatibility.FULL

    run(scenario)


def test_a_topic_hears_of_its_policies_and_of_no_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.registry(), await cluster.registry()
        await one.topics.create(topic("t"))
        await one.topics.create(topic("u"))
        await cluster.settle()
        seen = other.policies(topic("t"))
        waiting = asyncio.ensure_future(other.policies_change(topic("t"), seen))
        await one.change_policies(topic("u"), lambda p: replace(p, message_ttl_s=5))
        await one.change_policies(DEFAULT_NAMESPACE, lambda p: replace(p, message_ttl_s=0))  # as it was
        await cluster.settle()
        assert not waiting.done()
        await one.change_policies(DEFAULT_NAMESPACE, lambda p: replace(p, retention=Retention(5, 6)))
        changed = await waiting
        assert changed == replace(seen, retention=Retention(5, 6))
        waiting = asyncio.ensure_future(other.policies_change(topic("t"), changed))
        await one.change_policies(topic("t"), lambda p: replace(p, max_consumers=1))
        assert (await waiting).max_consumers == 1
        # What changed before somebody began to wait is not missed.
        assert (await other.policies_change(topic("t"), seen)).max_consumers == 1

    run(scenario)


def test_concurrent_changes_of_one_namespace_are_all_kept() -> None:
    async def scenario(cluster: Cluster) -> None:
        slow = MetaFaults(delay_s=0.005)
        registries = [await cluster.registry(faults=slow) for _ in range(4)]
        await asyncio.gather(
            *(
                registry.change_properties(DEFAULT_NAMESPACE, lambda p, n=n: {**p, f"k{n}": "v"})
                for n, registry in enumerate(registries)
            )
        )
        fresh = await cluster.registry()
        assert dict(fresh.namespaces.get(DEFAULT_NAMESPACE).properties) == {f"k{n}": "v" for n in range(4)}

    run(scenario)


# --- freshness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_every_broker_knows_the_same_in_the_end_whatever_the_watches_suffer(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        late = [await cluster.registry(faults=MetaFaults(watch_delay_s=0.3)) for _ in range(2)]
        rng = cluster.runtime.rng
        for step in range(60):
            registry, name = rng.choice(late), topic(f"t{rng.randrange(4)}")
            try:
                match rng.randrange(3):
                    case 0:
                        await registry.topics.create(name, partitions=rng.randrange(3))
                    case 1:
                        await registry.delete_topic(name)
                    case _:
                        await registry.change_policies(name, lambda p, s=step: replace(p, message_ttl_s=s))
            except (TopicExistsError, TopicNotFoundError):
                pass
        await cluster.runtime.clock.sleep(60)
        fresh = await cluster.registry()
        for name in [topic(f"t{n}") for n in range(4)]:
            truth = await fresh.topics.look(name)
            assert [registry.topics.find(name) or await registry.topics.look(name) for registry in late] == [
                truth,
                truth,
            ]

    run(scenario, seed)


def test_an_unreadable_record_keeps_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        registry = await cluster.registry()
        await registry.topics.create(topic("t"), partitions=2)
        meta = MemoryMeta(cluster.core, cluster.runtime)
        await meta.put("/weir/topics/public/default/persistent/t", b"garbage")
        await cluster.settle()
        assert (await registry.topics.get(topic("t"))).partitions == 2

    run(scenario)
    assert "cannot be read" in caplog.text
