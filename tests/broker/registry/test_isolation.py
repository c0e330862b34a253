"""Which brokers serve a namespace: what it says itself, what policies say, and who is left for all others."""

from weir.broker.cluster.bundle_placement import candidates
from weir.broker.metadata.registry import isolation_of
from weir.model.policies import Isolation, IsolationPolicy
from weir.model.registry import BrokerInfo
from weir.model.topics import NamespaceName

FAST = IsolationPolicy(("acme/.*",), ("ssd-.*",), ("hdd-1",))
POLICIES = {"fast": FAST, "last": IsolationPolicy((".*/private",), ("hdd-3",))}
ALL = [BrokerInfo(name, "1") for name in ("ssd-1", "ssd-2", "hdd-1", "hdd-2", "hdd-3")]


def serving(
    namespace: str,
    policies: dict[str, IsolationPolicy] = POLICIES,
    *,
    said: Isolation | None = None,
    brokers: list[BrokerInfo] = ALL,
) -> list[str]:
    return candidates(brokers, isolation_of(NamespaceName.parse(namespace), said, policies))


def test_the_first_policy_that_names_a_namespace_says_who_serves_it() -> None:
    assert serving("acme/orders") == ["ssd-1", "ssd-2"]
    assert serving("acme/private") == ["ssd-1", "ssd-2"]
    assert serving("public/private") == ["hdd-3"]


def test_all_others_are_kept_off_primary_brokers_unless_there_are_no_others() -> None:
    assert serving("public/default") == ["hdd-1", "hdd-2"]
    assert serving("public/default", brokers=ALL[:2]) == ["ssd-1", "ssd-2"]
    assert serving("public/default", {}) == [broker.broker_id for broker in ALL]


def test_secondary_brokers_serve_as_well_where_primary_ones_are_too_few() -> None:
    assert serving("acme/orders", brokers=ALL[2:]) == ["hdd-1"]
    two = {"fast": IsolationPolicy(("acme/.*",), ("ssd-.*",), ("hdd-1",), min_limit=2)}
    assert serving("acme/orders", two) == ["ssd-1", "ssd-2"]
    assert serving("acme/orders", two, brokers=ALL[1:]) == ["ssd-2", "hdd-1"]
    assert serving("acme/orders", brokers=ALL[3:]) == []


def test_what_a_namespace_says_itself_goes_before_policies() -> None:
    assert serving("acme/orders", said=Isolation(("hdd-2",))) == ["hdd-2"]
    assert serving("acme/orders", said=Isolation()) == ["ssd-1", "ssd-2"]


def test_a_broker_may_be_named_by_the_host_where_it_is_reached() -> None:
    listeners = {"http": "http://10.1.2.3:8080", "kafka": "kafka.example:9092"}
    brokers = [BrokerInfo("a", "1", listeners), BrokerInfo("b", "1", {"http": "http://10.9.2.3:8080"})]
    for pattern in (r"10\.1\..*", "kafka.example", "a"):
        policies = {"fast": IsolationPolicy(("acme/.*",), (pattern,))}
        assert serving("acme/orders", policies, brokers=brokers) == ["a"]
