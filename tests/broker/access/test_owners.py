"""Whose tenant a role is of, for the names that lie in no topic (adr/0023)."""

from collections.abc import Awaitable, Callable

import pytest

from weir.broker.metadata.registry import Registry
from weir.broker.security.authorization import TO_HAVE_GROUPS, TO_HAVE_TRANSACTIONS, NameOwners
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import InvalidNameError, NotAuthorisedError
from weir.model.registry import Action
from weir.model.topics import TopicName, check_unmarked, full_name, kept_name, plain_name, tenant_of_name
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

ACME, ZETA = TopicName.parse("acme/shop/orders"), TopicName.parse("zeta/shop/orders")


def run(scenario: Callable[[Registry, Registry], Awaitable[None]]) -> None:
    """With the registries of two brokers of one cluster."""

    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            core = MemoryCore(runtime.clock)
            one, two = [Registry(MemoryMeta(core, runtime), runtime) for _ in range(2)]
            await one.start()
            await two.start()
            await scenario(one, two)

        await world.node("broker").start(on_node)

    simulate(1, main)


def test_what_a_role_was_granted_is_known_by_tenant_while_any_grant_says_so() -> None:
    async def scenario(registry: Registry, _: Registry) -> None:
        grants = registry.grants
        await grants.grant(ACME, "ann", [Action.PRODUCE, Action.CONSUME])
        await grants.grant(ACME.namespace, "ann", [Action.CONSUME])
        await grants.grant("zeta", "ann", [Action.PRODUCE])
        assert grants.of_role("ann") == {"acme": {Action.PRODUCE, Action.CONSUME}, "zeta": {Action.PRODUCE}}
        await grants.revoke(ACME, "ann")
        assert grants.of_role("ann") == {"acme": {Action.CONSUME}, "zeta": {Action.PRODUCE}}
        await grants.forget("acme")
        await grants.revoke("zeta", "ann")
        assert grants.of_role("ann") == {}
        assert grants.of_role("nobody") == {}

    run(scenario)


def test_a_role_is_of_one_tenant_whichever_broker_is_asked_and_stays_so() -> None:
    async def scenario(one: Registry, two: Registry) -> None:
        await one.grants.grant(ZETA, "ann", [Action.CONSUME])
        owners = NameOwners(one)
        assert await owners.tenant("ann", TO_HAVE_GROUPS, "g") == "zeta"
        await one.grants.grant(ACME, "ann", [Action.CONSUME])
        await one.grants.grant(TopicName.parse("orders"), "ann", [Action.CONSUME])
        assert await owners.tenant("ann", TO_HAVE_GROUPS, "g") == "zeta"
        while not {"zeta", "acme", "public"} <= two.grants.of_role("ann").keys():
            await two.access_change(two.access_revision)
        assert await NameOwners(two).tenant("ann", TO_HAVE_GROUPS, "g") == "zeta"
        await one.grants.revoke(ZETA, "ann")
        assert await owners.tenant("ann", TO_HAVE_GROUPS, "g") == ""  # that of `public`

    run(scenario)


def test_who_may_nothing_has_no_names() -> None:
    async def scenario(registry: Registry, _: Registry) -> None:
        owners = NameOwners(registry)
        await registry.grants.grant(ACME, "writer", [Action.PRODUCE])
        for role, actions in (("nobody", TO_HAVE_TRANSACTIONS), ("writer", TO_HAVE_GROUPS)):
            with pytest.raises(NotAuthorisedError):
                await owners.tenant(role, actions, "g")
        owners.check("writer", TO_HAVE_TRANSACTIONS)
        assert registry.role_tenants.find("nobody") is None
        await registry.tenants.create("acme", admin_roles=("boss",))
        assert await owners.tenant("boss", TO_HAVE_GROUPS, "g") == "acme"

    run(scenario)


def test_no_name_from_outside_is_taken_for_another_owners() -> None:
    kept = kept_name("acme", "a/b")
    assert (tenant_of_name(kept), plain_name(kept), full_name(kept)) == ("acme", "a/b", "acme/a/b")
    assert (tenant_of_name("acme/b"), plain_name("acme/b"), kept_name("", "acme/b")) == ("", "acme/b", "acme/b")
    with pytest.raises(InvalidNameError):
        check_unmarked(kept)
