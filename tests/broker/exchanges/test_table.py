"""Exchanges of a namespace by several brokers on one metadata store, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from weir.broker.exchanges.exchange_table import Cluster, ExchangeLimits, ExchangeService, ExchangeTable
from weir.broker.exchanges.routing_index import compile_index
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import SecuritySettings
from weir.broker.security.authorization import Authoriser, ExchangeAccess
from weir.meta import keys
from weir.meta.embedded import open_embedded
from weir.meta.interfaces import MetaStore
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import (
    ExchangeArgumentError,
    ExchangeInUseError,
    ExchangeNotFoundError,
    ExchangeRefusedError,
    InequivalentExchangeError,
    MetaError,
    NamespaceNotFoundError,
    NotAuthorisedError,
    TooManyError,
    WeirError,
)
from weir.model.exchanges import PREDECLARED, Binding, Destination, Exchange, ExchangeType
from weir.model.registry import Action
from weir.model.topics import DEFAULT_NAMESPACE, NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate

ANN = "ann"
LOGS = Exchange("logs", ExchangeType.TOPIC)
TEMPORARY = Exchange("logs", ExchangeType.TOPIC, auto_delete=True)
TO_Q = Binding("logs", Destination("q"), "#")


@dataclass
class Brokers:
    """Exchanges of several brokers over one store."""

    runtime: Runtime
    core: MemoryCore
    security: SecuritySettings = field(default_factory=SecuritySettings)
    limits: ExchangeLimits = field(default_factory=ExchangeLimits)
    services: list[ExchangeService] = field(default_factory=list)

    async def service(self, meta: MetaStore | None = None, cluster: Cluster | None = None) -> ExchangeService:
        meta = meta or MemoryMeta(self.core, self.runtime)
        registry = Registry(meta, self.runtime)
        await registry.start()
        access = ExchangeAccess(Authoriser(registry, self.security))
        service = ExchangeService(meta, self.runtime, registry, access, limits=self.limits, cluster=cluster)
        self.services.append(service)
        return service

    async def table(self, meta: MetaStore | None = None) -> ExchangeTable:
        return await (await self.service(meta)).open(DEFAULT_NAMESPACE)

    async def settle(self) -> None:
        """Until every watch has caught up."""
        await self.runtime.clock.sleep(1)

    async def stored(self) -> list[str]:
        listing = await MemoryMeta(self.core, self.runtime).list(keys.EXCHANGES)
        return [item.key for item in listing.items]


def run(scenario: Callable[[Brokers], Awaitable[None]], seed: int = 1, **how: Any) -> None:
    async def story(world: World) -> None:
        runtime = world.node("brokers").runtime
        brokers = Brokers(runtime, MemoryCore(runtime.clock), **how)
        await scenario(brokers)
        for service in brokers.services:
            await service.close()

    simulate(seed, story)


def queues(table: ExchangeTable, key: str = "k", exchange: str = "logs") -> tuple[str, ...]:
    return table.route(exchange, (key,), {}).queues


# --- one broker -------------------------------------------------------------------------------------------------


def test_what_is_declared_and_bound_routes_and_what_is_unbound_does_not() -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        assert await table.declare(ANN, LOGS) == LOGS
        await table.bind(ANN, TO_Q, durable=True)
        await table.bind(ANN, TO_Q, durable=True)
        assert queues(table) == ("q",)
        assert table.bindings(source="logs") == table.bindings(queue="q") == [TO_Q]
        await table.unbind(ANN, TO_Q)
        await table.unbind(ANN, TO_Q)
        assert queues(table) == ()
        await table.delete(ANN, "logs")
        await table.delete(ANN, "logs")
        assert table.find("logs") is None
        assert await brokers.stored() == []

    run(scenario)


def test_a_declaration_is_refused_where_rabbitmq_refuses_it() -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        await table.declare(ANN, LOGS)
        with pytest.raises(InequivalentExchangeError):
            await table.declare(ANN, Exchange("logs", ExchangeType.FANOUT))
        with pytest.raises(InequivalentExchangeError):
            await table.declare(ANN, Exchange("logs", ExchangeType.TOPIC, durable=False))
        for reserved in ("", "amq.mine"):
            with pytest.raises(ExchangeRefusedError):
                await table.declare(ANN, Exchange(reserved))
        await table.declare(ANN, Exchange("amq.topic", ExchangeType.TOPIC))
        with pytest.raises(ExchangeRefusedError):
            await table.delete(ANN, "amq.topic")
        with pytest.raises(ExchangeNotFoundError):
            table.get("nowhere")

    run(scenario)


def test_a_binding_is_refused_where_rabbitmq_refuses_it() -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        for binding, error in [
            (Binding("", Destination("q")), ExchangeRefusedError),
            (Binding("amq.topic", Destination("", exchange=True)), ExchangeRefusedError),
            (Binding("nowhere", Destination("q")), ExchangeNotFoundError),
            (Binding("amq.topic", Destination("nowhere", exchange=True)), ExchangeNotFoundError),
            (Binding("amq.headers", Destination("q"), "", {"x-match": "some"}), ExchangeArgumentError),
        ]:
            with pytest.raises(error):
                await table.bind(ANN, binding, durable=True)
        await table.unbind(ANN, Binding("nowhere", Destination("q")))

    run(scenario)


def test_nobody_publishes_to_what_is_internal_or_not_there() -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        await table.declare(ANN, Exchange("inside", internal=True))
        table.check_publish(ANN, "")
        with pytest.raises(ExchangeRefusedError):
            table.check_publish(ANN, "inside")
        with pytest.raises(ExchangeNotFoundError):
            table.check_publish(ANN, "nowhere")

    run(scenario)


@pytest.mark.parametrize("durable", [True, False])
def test_if_unused_spares_what_is_a_source_but_not_what_is_a_destination(durable: bool) -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        for name in ("logs", "next"):
            await table.declare(ANN, Exchange(name, ExchangeType.FANOUT, durable=durable))
        await table.bind(ANN, Binding("logs", Destination("next", exchange=True)), durable=True)
        with pytest.raises(ExchangeInUseError):
            await table.delete(ANN, "logs", if_unused=True)
        await table.delete(ANN, "next", if_unused=True)
        assert table.bindings() == []
        await table.delete(ANN, "logs", if_unused=True)
        assert await brokers.stored() == []

    run(scenario)


@pytest.mark.parametrize("durable", [True, False])
def test_the_last_binding_takes_the_exchange_with_it_and_those_that_led_only_there(durable: bool) -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        for name in ("a", "b", "c"):
            await table.declare(ANN, Exchange(name, ExchangeType.FANOUT, durable=durable, auto_delete=True))
        await table.bind(ANN, Binding("a", Destination("b", exchange=True)), durable=True)
        await table.bind(ANN, Binding("b", Destination("c", exchange=True)), durable=True)
        await table.bind(ANN, Binding("c", Destination("q")), durable=True)
        await table.bind(ANN, Binding("c", Destination("other")), durable=True)
        await table.unbind(ANN, Binding("c", Destination("other")))
        await table.unbind(ANN, Binding("c", Destination("never bound")))
        assert queues(table, exchange="a") == ("q",)
        await table.forget_queue("q")
        assert [table.find(name) for name in "abc"] == [None] * 3
        assert table.bindings() == []
        assert await brokers.stored() == []

    run(scenario)


def test_a_transient_binding_holds_a_durable_exchange_that_goes_with_its_last() -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        await table.declare(ANN, TEMPORARY)
        await table.bind(ANN, TO_Q, durable=True)
        await table.bind(ANN, Binding("logs", Destination("mine"), "#"), durable=False)
        await table.unbind(ANN, TO_Q)
        assert queues(table) == ("mine",)
        with pytest.raises(ExchangeInUseError):
            await table.delete(ANN, "logs", if_unused=True)
        await table.forget_queue("mine")
        assert table.find("logs") is None
        assert await brokers.stored() == []

    run(scenario)


def test_transient_things_are_not_in_the_metadata() -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        await table.declare(ANN, Exchange("mine", durable=False))
        await table.bind(ANN, Binding("mine", Destination("q"), "k"), durable=True)
        await table.bind(ANN, Binding("amq.direct", Destination("mine", exchange=True), "k"), durable=True)
        await table.bind(ANN, Binding("amq.direct", Destination("exclusive"), "k"), durable=False)
        assert queues(table, exchange="amq.direct") == ("exclusive", "q")
        assert await brokers.stored() == []

    run(scenario)


def test_there_are_limits() -> None:
    async def scenario(brokers: Brokers) -> None:
        table = await brokers.table()
        await table.declare(ANN, LOGS)
        with pytest.raises(TooManyError):
            await table.declare(ANN, Exchange("more"))
        await table.declare(ANN, LOGS)
        await table.bind(ANN, TO_Q, durable=True)
        with pytest.raises(TooManyError):
            await table.bind(ANN, Binding("logs", Destination("r")), durable=False)

    run(scenario, limits=ExchangeLimits(exchanges=len(PREDECLARED) + 1, bindings=1))


# --- several brokers --------------------------------------------------------------------------------------------


def test_brokers_see_what_the_others_change() -> None:
    async def scenario(brokers: Brokers) -> None:
        one, two = await brokers.table(), await brokers.table()
        await one.declare(ANN, LOGS)
        await one.bind(ANN, TO_Q, durable=True)
        await brokers.settle()
        assert queues(two) == ("q",)
        with pytest.raises(InequivalentExchangeError):
            await two.declare(ANN, Exchange("logs", ExchangeType.FANOUT))
        await two.unbind(ANN, TO_Q)
        await two.bind(ANN, Binding("logs", Destination("r"), "*"), durable=True)
        await brokers.settle()
        assert queues(one) == ("r",)
        await two.delete(ANN, "logs")
        await brokers.settle()
        assert one.find("logs") is None
        three = await brokers.table()
        assert three.find("logs") is None

    run(scenario)


def test_an_exchange_that_comes_again_has_none_of_the_old_bindings() -> None:
    async def scenario(brokers: Brokers) -> None:
        one = await brokers.table()
        await one.declare(ANN, LOGS)
        await one.bind(ANN, TO_Q, durable=True)
        # As if whoever deleted the exchange had died before it took out the bindings.
        meta = MemoryMeta(brokers.core, brokers.runtime)
        await meta.delete(keys.exchange(DEFAULT_NAMESPACE, "logs"))
        await brokers.settle()
        await one.declare(ANN, LOGS)
        assert queues(one) == ()
        two = await brokers.table()
        assert queues(two) == ()
        await brokers.settle()
        assert len(await brokers.stored()) == 1, "the next to open the namespace takes out what was left"
        await two.bind(ANN, TO_Q, durable=True)
        await brokers.settle()
        assert queues(one) == queues(two) == ("q",)

    run(scenario)


def test_an_unbinding_that_was_cut_short_is_finished_by_whoever_opens_the_namespace() -> None:
    async def scenario(brokers: Brokers) -> None:
        one = await brokers.table()
        await one.declare(ANN, TEMPORARY)
        await one.bind(ANN, TO_Q, durable=True)
        await one._stored.mark("logs")
        await one._stored.unbind(TO_Q)
        two = await brokers.table()
        await brokers.settle()
        assert two.find("logs") is None
        assert await brokers.stored() == []

    run(scenario)


def test_a_durable_exchange_takes_the_place_of_a_transient_one_elsewhere() -> None:
    async def scenario(brokers: Brokers) -> None:
        one, two = await brokers.table(), await brokers.table()
        await one.declare(ANN, Exchange("logs", ExchangeType.TOPIC, durable=False))
        await one.bind(ANN, TO_Q, durable=True)
        await two.declare(ANN, LOGS)
        await brokers.settle()
        assert one.get("logs").durable
        assert queues(one) == ()

    run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_brokers_do_at_once_they_end_up_with_the_same_routes(seed: int) -> None:
    """Conflicts, lost requests and lost replies included."""

    async def scenario(brokers: Brokers) -> None:
        dice = Random(seed)
        metas = [FaultyMeta(MemoryMeta(brokers.core, brokers.runtime), brokers.runtime) for _ in range(3)]
        tables = [await brokers.table(meta) for meta in metas]
        for meta in metas:
            meta.faults = MetaFaults(delay_s=0.01, lose_request=0.03, lose_reply=0.03, watch_delay_s=0.02)

        async def act(table: ExchangeTable) -> None:
            name, other = dice.choice("abc"), dice.choice("abc")
            to = Destination(dice.choice(["q", "r"])) if dice.random() < 0.6 else Destination(other, exchange=True)
            for _ in range(12):
                with suppress(WeirError):
                    match dice.randrange(6):
                        case 0 | 1:
                            wanted = Exchange(name, ExchangeType.FANOUT, auto_delete=name != "a")
                            await table.declare(ANN, wanted)
                        case 2 | 3:
                            await table.bind(ANN, Binding(name, to), durable=True)
                        case 4:
                            await table.unbind(ANN, Binding(name, to))
                        case 5:
                            await table.delete(ANN, name, if_unused=dice.random() < 0.7)

        await asyncio.gather(*(act(table) for table in tables for _ in range(2)))
        for meta in metas:
            meta.faults = MetaFaults()
        await brokers.settle()
        fresh = await brokers.table()
        await brokers.settle()
        for table in [*tables, fresh]:
            assert table.exchanges() == fresh.exchanges()
            bound = {binding.identity for binding in table.bindings()}
            assert bound == {binding.identity for binding in fresh.bindings()}
            again = compile_index(table.exchanges(), table.bindings())
            for exchange in table.exchanges()[1:]:
                assert table.route(exchange.name, ("k",), {}) == again.route(exchange.name, ("k",))
        left = [key for key in await brokers.stored() if "/from/" in key]
        assert len(left) == len(fresh.bindings()), "nothing is left without an effect"

    run(scenario, seed)


def test_a_bind_and_the_unbind_of_the_last_race_and_a_confirmed_bind_holds() -> None:
    async def scenario(brokers: Brokers) -> None:
        one, two = await brokers.table(), await brokers.table()
        for n in range(20):
            await one.declare(ANN, TEMPORARY)
            await one.bind(ANN, TO_Q, durable=True)
            await brokers.settle()
            late = Binding("logs", Destination("late"), f"#.{n}")

            async def bind(late: Binding = late, n: int = n) -> bool:
                for _ in range(n):
                    await asyncio.sleep(0)
                try:
                    await two.bind(ANN, late, durable=True)
                except ExchangeNotFoundError:
                    return False
                return True

            bound, _ = await asyncio.gather(bind(), one.unbind(ANN, TO_Q))
            await brokers.settle()
            assert (one.find("logs") is not None) == bound
            assert (late in one.bindings()) == (late in two.bindings()) == bound
            await one.delete(ANN, "logs")
            await brokers.settle()

    run(scenario)


# --- what lasts -------------------------------------------------------------------------------------------------


def test_durable_ones_outlive_a_crash_and_transient_ones_do_not() -> None:
    async def opened(runtime: Runtime) -> ExchangeTable:
        brokers = Brokers(runtime, MemoryCore(runtime.clock))
        return await brokers.table(await open_embedded(runtime, "/meta"))

    async def before(runtime: Runtime) -> None:
        table = await opened(runtime)
        await table.declare(ANN, LOGS)
        await table.bind(ANN, TO_Q, durable=True)
        await table.bind(ANN, Binding("logs", Destination("exclusive"), "#"), durable=False)
        await table.declare(ANN, Exchange("mine", durable=False))
        assert queues(table) == ("exclusive", "q")

    async def after(runtime: Runtime) -> None:
        table = await opened(runtime)
        assert table.get("logs") == LOGS
        assert queues(table) == ("q",)
        assert table.find("mine") is None

    async def story(world: World) -> None:
        node = world.node("weir")
        await node.run(before)
        node.crash()
        await node.run(after)

    simulate(1, story)


def test_a_namespace_that_nobody_opens_costs_nothing_and_one_that_is_gone_takes_its_exchanges_with_it() -> None:
    async def scenario(brokers: Brokers) -> None:
        service = await brokers.service()
        assert len(service) == 0
        name = NamespaceName("public", "shop")
        with pytest.raises(NamespaceNotFoundError):
            await service.open(name)
        await service._registry.namespaces.create(name)
        table = await service.open(name)
        assert await service.open(name) is table
        await table.declare(ANN, LOGS)
        await table.bind(ANN, TO_Q, durable=True)
        await service._registry.delete_namespace(name)
        assert await brokers.stored() == []
        with pytest.raises(NamespaceNotFoundError):
            await service.open(name)
        assert len(service) == 0

    run(scenario)


def test_a_store_that_is_away_fails_the_opening_which_can_be_tried_again() -> None:
    async def scenario(brokers: Brokers) -> None:
        meta = FaultyMeta(MemoryMeta(brokers.core, brokers.runtime), brokers.runtime)
        service = await brokers.service(meta)
        other = await brokers.table()
        await other.declare(ANN, LOGS)
        meta.faults = MetaFaults(lose_request=1.0)
        with pytest.raises(MetaError):
            await service.open(DEFAULT_NAMESPACE)
        meta.faults = MetaFaults()
        assert (await service.open(DEFAULT_NAMESPACE)).find("logs") == LOGS

    run(scenario)


# --- access -----------------------------------------------------------------------------------------------------


def test_grants_to_produce_and_consume_are_write_and_read_and_both_are_configure() -> None:
    async def scenario(brokers: Brokers) -> None:
        service = await brokers.service()
        grants = service._registry.grants
        await grants.grant(DEFAULT_NAMESPACE, "both", [Action.PRODUCE, Action.CONSUME])
        await grants.grant(DEFAULT_NAMESPACE, "writer", [Action.PRODUCE])
        await grants.grant(TopicName.parse("logs"), "reader", [Action.CONSUME])
        table = await service.open(DEFAULT_NAMESPACE)
        for role in ("writer", "reader", "nobody"):
            with pytest.raises(NotAuthorisedError):
                await table.declare(role, LOGS)
        await table.declare("both", LOGS)
        await table.declare("both", Exchange("a/b", arguments={"alternate-exchange": "x"}))
        with pytest.raises(NotAuthorisedError):
            table.check_publish("reader", "a/b")
        table.check_publish("writer", "logs")
        table.check_publish("nobody", "")
        with pytest.raises(NotAuthorisedError):
            table.check_publish("reader", "logs")
        with pytest.raises(NotAuthorisedError):
            await table.bind("writer", TO_Q, durable=True)
        with pytest.raises(NotAuthorisedError):
            await table.bind("reader", TO_Q, durable=True)
        await grants.grant(TopicName.parse("q"), "reader", [Action.PRODUCE])
        await table.bind("reader", TO_Q, durable=True)
        with pytest.raises(NotAuthorisedError):
            await table.delete("reader", "logs")
        await table.delete("both", "logs")

    run(scenario, security=SecuritySettings(authorisation=True))


def test_transient_things_are_seen_by_all_brokers_and_go_with_the_one_that_they_were_declared_at() -> None:
    async def scenario(brokers: Brokers) -> None:
        live = ["first", "second"]
        one = await (await brokers.service(cluster=Cluster("first", lambda: live))).open(DEFAULT_NAMESPACE)
        two = await (await brokers.service(cluster=Cluster("second", lambda: live))).open(DEFAULT_NAMESPACE)
        control = Exchange("control", ExchangeType.FANOUT, durable=False)
        await one.declare(ANN, control)
        assert await two.declare(ANN, control) == control
        await two.bind(ANN, Binding("control", Destination("of-two")), durable=False)
        await one.declare(ANN, LOGS)
        await two.bind(ANN, Binding("logs", Destination("of-two"), "#"), durable=False)
        await one.bind(ANN, Binding("logs", Destination("lasting"), "#"), durable=True)
        await brokers.settle()
        assert one.route("control", ("",), {}).queues == ("of-two",)
        assert one.route("logs", ("a",), {}).queues == ("lasting", "of-two")
        live.remove("second")
        await brokers.runtime.clock.sleep(70)
        assert one.route("control", ("",), {}).unroutable
        assert one.route("logs", ("a",), {}).queues == ("lasting",)
        live[:] = ["second"]
        await brokers.runtime.clock.sleep(70)
        assert two.find("control") is None
        assert two.find("logs") == LOGS

    run(scenario)


def test_a_broker_whose_registration_was_late_keeps_what_goes_with_it() -> None:
    async def scenario(brokers: Brokers) -> None:
        live = ["first", "second"]
        one = await (await brokers.service(cluster=Cluster("first", lambda: live))).open(DEFAULT_NAMESPACE)
        two = await (await brokers.service(cluster=Cluster("second", lambda: live))).open(DEFAULT_NAMESPACE)
        await two.bind(ANN, Binding("amq.fanout", Destination("of-two")), durable=False)
        for _ in range(4):  # not there at one look, there at the next
            live[:] = ["first"]
            await brokers.runtime.clock.sleep(30)
            live[:] = ["first", "second"]
            await brokers.runtime.clock.sleep(30)
        assert one.route("amq.fanout", ("",), {}).queues == ("of-two",)

    run(scenario)
