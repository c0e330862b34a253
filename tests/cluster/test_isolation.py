"""Isolation policies, set on any broker as pulsar-admin does it, hold on all of them."""

from typing import Any

import pytest

from weir.broker.balance.balance_round import History, Move, Reason
from weir.model.topics import NamespaceName
from weir.runtime.real import real_runtime
from weir.testing.many_brokers import ManyBrokers, OneBroker

BASE = "clusters/standalone/namespaceIsolationPolicies"
SPACE = NamespaceName("public", "default")


def body(**changed: Any) -> dict[str, Any]:
    """What `pulsar-admin ns-isolation-policy set` sends."""
    failover = {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}
    said = {"namespaces": ["public/.*"], "primary": ["two"], "secondary": [], "auto_failover_policy": failover}
    return {**said, **changed}


def candidates(broker: OneBroker) -> list[str]:
    bundles = broker.composed.bundles
    assert bundles is not None
    return bundles.ownership.candidates(SPACE)


def test_a_policy_set_on_one_broker_holds_on_all_and_the_leader_brings_home_what_is_elsewhere(
    brokers: ManyBrokers,
) -> None:
    async def known(to: list[str]) -> None:
        while any(candidates(broker) != to for broker in brokers.running.values()):
            await real_runtime().clock.sleep(0.01)

    async def round_() -> list[Any]:
        balance = brokers["three"].composed.balance
        assert balance is not None
        return await balance.balancer.round(History())

    brokers["one"].do("POST", f"{BASE}/only", body())
    brokers.call(lambda: known(["two"]))
    assert brokers["three"].do("GET", f"{BASE}/only") == body()
    assert brokers["three"].do("GET", BASE) == {"only": body()}
    shown = brokers["three"].do("GET", f"{BASE}/brokers")
    meant = [entry for entry in shown if entry["policyName"]]
    assert [(entry["brokerName"], entry["primary"]) for entry in meant] == [
        (brokers["two"].http.removeprefix("http://"), True)
    ]
    assert brokers["one"].do("GET", f"{BASE}/brokers/two") == meant[0] | {"namespaceRegex": ["public/.*"]}
    moves = [action for action in brokers.call(round_) if isinstance(action, Move)]
    homed = [move for move in moves if move.bundle.startswith("public/default/")]
    assert homed
    assert {(move.target, move.reason) for move in homed} == {("two", Reason.ISOLATION)}
    assert {info.owner for info in brokers["two"].broker.bundles.of(SPACE)} == {"two"}
    brokers["two"].do("DELETE", f"{BASE}/only")
    brokers.call(lambda: known(["one", "two", "three"]))
    assert brokers["one"].do("GET", BASE) == {}


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"primary": []}, 400),
        ({"namespaces": []}, 400),
        ({"primary": ["("]}, 400),
        ({"auto_failover_policy": None}, 400),
        ({"auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}}}, 400),
        ({"auto_failover_policy": {"policy_type": "other", "parameters": {}}}, 400),
    ],
)
def test_what_is_no_policy_is_refused(brokers: ManyBrokers, changed: dict[str, Any], status: int) -> None:
    assert brokers["one"].ask("POST", f"{BASE}/bad", body(**changed))[0] == status
    assert brokers["one"].ask("GET", f"{BASE}/bad")[0] == 404


def test_a_cluster_that_is_not_there_is_told_as_pulsar_tells_it(brokers: ManyBrokers) -> None:
    other = BASE.replace("standalone", "elsewhere")
    assert brokers["one"].ask("GET", other)[0] == 404
    assert brokers["one"].ask("GET", f"{other}/brokers")[0] == 412
    assert brokers["one"].ask("POST", f"{other}/only", body())[0] == 412
    assert brokers["one"].ask("GET", f"{BASE}/brokers/nobody")[0] == 404
