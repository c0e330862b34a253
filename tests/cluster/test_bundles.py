"""Bundles by REST, as `pulsar-admin namespaces` asks, on any broker: looked at, split, given away, let go."""

import json
from collections.abc import Callable

from weir.model.cluster import BundleName
from weir.model.topics import DEFAULT_NAMESPACE
from weir.runtime.real import real_runtime
from weir.testing.many_brokers import ManyBrokers

BASE = f"namespaces/{DEFAULT_NAMESPACE}"
NAMES = ("one", "two", "three")


def owner(brokers: ManyBrokers, bundle: str, seen_by: str = "one") -> str:
    name = BundleName.of_range(DEFAULT_NAMESPACE, bundle)
    return brokers[seen_by].broker.bundles.info(name).owner


def until(brokers: ManyBrokers, holds: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not holds():
            await real_runtime().clock.sleep(0.01)

    brokers.call(wait)


def do(brokers: ManyBrokers, verb: str, first: str, path: str) -> str:
    """Ask one broker, and then the one that it sends to, as clients do; who answered."""
    status, headers, said = brokers[first].ask(verb, path)
    if status != 307:
        assert status in (200, 204), said
        return first
    (to,) = [name for name in brokers.running if headers["location"].startswith(brokers[name].http)]
    assert brokers[to].ask(verb, path)[0] in (200, 204)
    return to


def boundaries(brokers: ManyBrokers, name: str) -> list[str]:
    found: list[str] = json.loads(brokers[name].ask("GET", f"{BASE}/bundles")[2])["boundaries"]
    return found


def test_a_bundle_is_split_given_away_and_let_go_by_way_of_any_broker() -> None:
    brokers = ManyBrokers(*NAMES, spread=True).start()
    try:
        before = boundaries(brokers, "one")
        assert len(before) == 5
        bundle = f"{before[0]}_{before[1]}"
        has = owner(brokers, bundle)
        (other, target) = [name for name in NAMES if name != has]
        assert do(brokers, "PUT", other, f"{BASE}/{bundle}/split?splitBoundaries=0x10000000") == has
        after = [before[0], "0x10000000", *before[1:]]
        until(
            brokers,
            lambda: all(len(one.broker.bundles.of(DEFAULT_NAMESPACE)) == 5 for one in brokers.running.values()),
        )
        assert all(boundaries(brokers, name) == after for name in NAMES)
        half = f"{before[0]}_0x10000000"
        path = f"{BASE}/{half}/transfer?destinationBroker={brokers[target].http.removeprefix('http://')}"
        assert do(brokers, "PUT", other, path) == has
        until(brokers, lambda: all(owner(brokers, half, name) == target for name in NAMES))
        assert owner(brokers, f"0x10000000_{before[1]}") == has
        assert brokers[has].ask("PUT", f"{BASE}/{half}/transfer")[0] in (307, 412)
        assert do(brokers, "PUT", has, f"{BASE}/{half}/unload") == target
        until(brokers, lambda: all(owner(brokers, half, name) == "" for name in NAMES))
        assert {do(brokers, "PUT", name, f"{BASE}/{half}/unload") for name in NAMES} <= set(NAMES)
    finally:
        brokers.stop()
