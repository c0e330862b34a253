"""Kafka's names of Weir's topics, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.gateway.kafka.metadata import kafka_name, topic_of
from weir.model.errors import InvalidNameError
from weir.model.topics import TopicName


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("orders", "persistent://public/default/orders"),
        ("sales..eu..orders", "persistent://sales/eu/orders"),
        ("sales/eu/orders", "persistent://sales/eu/orders"),
        ("a..b", "persistent://public/default/a..b"),
        ("a..b..c..d", "persistent://public/default/a..b..c..d"),
        ("..a..b", "persistent://public/default/..a..b"),
    ],
)
def test_a_name_means_one_topic(said: str, meant: str) -> None:
    assert str(topic_of(said)) == meant


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "x" * 250, "a/b", "a/b/c/d", "a//c", "t-partition-0"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        topic_of(name)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("sales/eu/orders", "sales..eu..orders"),
        ("public/default/a..b..c", None),  # would be taken for topic c of another namespace
        ("public/default/with space", None),
        ("public/x:y/orders", None),
    ],
)
def test_a_topic_has_one_name_or_none(topic: str, name: str | None) -> None:
    assert kafka_name(TopicName.parse(topic)) == name


_LEGAL = st.text("ab.-_", min_size=1, max_size=8)


@given(_LEGAL, _LEGAL, _LEGAL)
def test_a_topic_that_has_a_name_is_found_by_it(tenant: str, namespace: str, local: str) -> None:
    try:
        topic = TopicName.parse(f"persistent://{tenant}/{namespace}/{local}")
    except InvalidNameError:
        return
    name = kafka_name(topic)
    assert name is None or topic_of(name) == topic
