"""Brokers that know their leader, say how much work they have, and do what a leader asks, over real sockets."""

from collections.abc import Callable

import pulsar

from weir.broker.balance.balance_plan import plan_moves
from weir.broker.balance.balance_round import BalanceLimits, History, Move, Reason
from weir.model.cluster import BrokerLoad, BundleLoad, BundleName
from weir.model.policies import Isolation
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.server.compose.cluster_balance import ClusterBalance, PolicyIsolation
from weir.testing.many_brokers import ManyBrokers


def _balance(brokers: ManyBrokers, name: str) -> ClusterBalance:
    found = brokers[name].composed.balance
    assert found is not None
    return found


def test_all_brokers_know_the_leader_and_ask_everyones_load_and_one_hands_over_what_it_is_told_to(
    brokers: ManyBrokers,
) -> None:
    names = sorted(brokers.running)
    leader: list[str] = []

    async def scenario() -> None:
        clock = real_runtime().clock
        while len({_balance(brokers, name).leader() for name in names} - {""}) != 1 or not all(
            _balance(brokers, name).leader() for name in names
        ):
            await clock.sleep(0.01)
        assert sum(_balance(brokers, name).leading for name in names) == 1
        leader.append(_balance(brokers, names[0]).leader())
        asking = _balance(brokers, names[0])
        loads = await asking.loads()
        assert sorted(load.broker_id for load in loads) == names
        giver = next(load for load in loads if load.bundles)
        bundle, to = giver.bundles[0].bundle, next(name for name in names if name != giver.broker_id)
        await asking.control.hand_over(giver.broker_id, bundle, to)
        while brokers[names[0]].broker.bundles.info(BundleName.parse(bundle)).owner != to:
            await clock.sleep(0.01)
        await asking.control.split(to, bundle)
        halves = {str(half) for half in BundleName.parse(bundle).halves()}
        held = await asking.control.load(to)
        assert halves <= {found.bundle for found in held.bundles}

    brokers.call(scenario)
    url = brokers[leader[0]].http
    for name in names:
        told = brokers[name].do("GET", "brokers/leaderBroker")
        assert told == {"brokerId": url.removeprefix("http://"), "serviceUrl": url}


def test_every_broker_reports_its_own_load_as_pulsars_tools_expect_it(
    brokers: ManyBrokers, connect: Callable[..., pulsar.Client], unique: str
) -> None:
    name = f"persistent://public/default/{unique}"
    producer = connect(brokers["one"].url).create_producer(name)
    producer.send(b"x")
    reports = {member: brokers[member].do("GET", "broker-stats/load-report") for member in brokers.running}
    for member, report in reports.items():
        assert report["webServiceUrl"] == brokers[member].http
        assert report["pulsarServiceUrl"] == brokers[member].url
        assert report["loadReportType"] == "LocalBrokerData"
        assert set(report["lastStats"]) <= set(report["bundles"])
        assert report["numBundles"] == len(report["bundles"])
    assert sum(report["numProducers"] for report in reports.values()) == 1
    held = [bundle for report in reports.values() for bundle in report["bundles"]]
    assert len(held) == len(set(held))
    (owner,) = (member for member, report in reports.items() if report["numProducers"])
    bundle = brokers[owner].broker.bundles.bundle_of(TopicName.parse(name))
    topics = brokers[owner].do("GET", "broker-stats/topics")
    assert topics["public/default"][bundle.range]["persistent"][name]["msgInCounter"] == 1
    (rates,) = brokers[owner].do("GET", "broker-stats/metrics")
    assert rates["metrics"]["brk_no_of_producers"] == 1
    assert rates["dimensions"]["namespace"] == "public/default"


def test_the_leader_and_those_who_take_what_nobody_has_follow_the_same_bindings() -> None:
    infos = [BrokerInfo("ssd-1", "1"), BrokerInfo("ssd-2", "1"), BrokerInfo("hdd-1", "1")]
    bound = Isolation(("ssd-.*",), ("hdd-.*",))
    isolation = PolicyIsolation(lambda namespace: bound if namespace.name == "fast" else None, lambda: infos)
    live = frozenset(info.broker_id for info in infos)
    assert isolation.allowed("t/fast", live) == {"ssd-1", "ssd-2"}
    assert isolation.allowed("t/other", live) == live
    assert isolation.allowed("t/fast", frozenset({"hdd-1"})) == {"hdd-1"}
    astray = BrokerLoad("hdd-1", (BundleLoad("t/fast/0x00000000_0xffffffff", 10),), 0.01, messages_in=10)
    loads = [astray, BrokerLoad("ssd-1", cpu=0.02), BrokerLoad("ssd-2", cpu=0.01)]
    (move,) = plan_moves(loads, BalanceLimits(), isolation, History(), 0.0)
    assert isinstance(move, Move)
    assert (move.target, move.reason) == ("ssd-2", Reason.ISOLATION)
