"""Policies: which one holds for a queue or an exchange, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.queues.queue_policies import PolicyTable, check_policy
from weir.model.errors import QueueArgumentError
from weir.model.queues import QueueKind, QueuePolicy

TTL = {"message-ttl": 5}


def holding(*policies: QueuePolicy, kind: QueueKind = QueueKind.CLASSIC, name: str = "orders.new") -> str | None:
    found = PolicyTable(policies).of_queue(name, kind)
    return None if found is None else found.name


def test_a_pattern_is_looked_for_anywhere_in_the_name() -> None:
    assert holding(QueuePolicy("p", "new", TTL)) == "p"
    assert holding(QueuePolicy("p", "^new", TTL)) is None
    assert holding(QueuePolicy("p", r"^orders\.", TTL)) == "p"


def test_a_pattern_may_leave_names_out_that_begin_with_something() -> None:
    policy = QueuePolicy("p", r"^(?!amq\.).*", TTL)
    assert holding(policy) == "p"
    assert holding(policy, name="amq.gen-1") is None


def test_the_highest_priority_holds_alone() -> None:
    low, high = QueuePolicy("low", "", TTL, priority=1), QueuePolicy("high", "", {"max-length": 5}, priority=2)
    assert holding(low, high) == holding(high, low) == "high"
    assert holding(low, QueuePolicy("high", "^other", TTL, priority=2)) == "low"


def test_a_policy_holds_for_what_it_applies_to() -> None:
    for apply_to, kinds in {
        "queues": set(QueueKind),
        "all": set(QueueKind),
        "exchanges": set(),
        "classic_queues": {QueueKind.CLASSIC},
        "quorum_queues": {QueueKind.QUORUM},
        "streams": {QueueKind.STREAM},
    }.items():
        policy = QueuePolicy("p", "", {"max-length-bytes": 5}, apply_to=apply_to)
        assert {kind for kind in QueueKind if holding(policy, kind=kind)} == kinds
        of_exchange = PolicyTable([policy]).of_exchange("e")
        assert (of_exchange is not None) == (apply_to in ("all", "exchanges"))


def test_a_policy_that_says_what_a_kind_of_queue_cannot_do_does_not_hold_for_it() -> None:
    limited = QueuePolicy("limited", "", {"delivery-limit": 3, **TTL}, priority=5)
    plain = QueuePolicy("plain", "", TTL)
    assert holding(limited, plain) == "plain"
    assert holding(limited, plain, kind=QueueKind.QUORUM) == "limited"
    assert holding(limited, plain, kind=QueueKind.STREAM) is None


def test_an_operators_policy_is_beside_the_others() -> None:
    table = PolicyTable([QueuePolicy("p", "", TTL), QueuePolicy("p", "", {"max-length": 5}, operator=True)])
    own, operators = (table.of_queue("q", QueueKind.CLASSIC, operator=operator) for operator in (False, True))
    assert own is not None
    assert own.definition == TTL
    assert operators is not None
    assert operators.definition == {"max-length": 5}
    assert [one.operator for one in table.without("p", operator=True).policies] == [False]


def test_a_policy_takes_the_place_of_one_of_its_name() -> None:
    table = PolicyTable().with_policy(QueuePolicy("p", "", TTL)).with_policy(QueuePolicy("p", "^x", TTL))
    assert [one.pattern for one in table.policies] == ["^x"]
    assert not table.without("p").policies


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        (QueuePolicy("p", "", {"message-ttl": -1}), "-1 is not a valid message TTL"),
        (QueuePolicy("p", "", {"message-ttl": "5"}), '<<"5">> is not a valid message TTL'),
        (QueuePolicy("p", "", {"expires": 0}), "0 is not a valid queue expiry"),
        (QueuePolicy("p", "", {"overflow": "x"}), '<<"x">> is not a valid overflow value'),
        (QueuePolicy("p", "", {"max-priority": 5}), '[{<<"max-priority">>,5}] are not recognised policy settings'),
        (QueuePolicy("p", "", {"overflow": "drop-head"}, operator=True), "are not recognised policy settings"),
        (QueuePolicy("p", "", {"max-age": "1 day"}), '<<"1 day">> is not a valid max age'),
        (QueuePolicy("p", "", {}), "no policy provided"),
        (QueuePolicy("p", "(", TTL), "pattern should be regular expression"),
        (QueuePolicy("p", "x" * 600, TTL), "at most 512"),
        (QueuePolicy("p", "", TTL, apply_to="topics"), "apply-to"),
        (QueuePolicy("", "", TTL), "has a name"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(policy: QueuePolicy, fault: str) -> None:
    with pytest.raises(QueueArgumentError) as refused:
        check_policy(policy)
    assert fault in refused.value.what


policies = st.builds(
    QueuePolicy,
    st.text(min_size=1, max_size=5),
    st.sampled_from(["", "a", "^b"]),
    st.dictionaries(st.sampled_from(["message-ttl", "max-length"]), st.integers(0, 10), min_size=1),
    st.integers(-5, 5),
    st.sampled_from(["all", "queues"]),
    st.booleans(),
)


@given(st.lists(policies, max_size=5))
def test_what_is_stored_is_what_was_set(found: list[QueuePolicy]) -> None:
    table = PolicyTable()
    for policy in found:
        table = table.with_policy(policy)
    assert PolicyTable.decode(table.encode()).policies == table.policies


@pytest.mark.parametrize(
    "text", ["", "{", "5", "[5]", '[{"name":"p"}]', '[{"name":"p","pattern":"(","definition":{}}]']
)
def test_what_cannot_be_read_says_nothing(text: Any) -> None:
    assert not PolicyTable.decode(text).policies
