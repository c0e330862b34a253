"""Queues' names as topics', and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.queues import queue_of_topic, topic_of_queue
from weir.model.topics import DEFAULT_NAMESPACE, TopicName


@given(st.text(min_size=1, max_size=80))
def test_every_queue_is_a_topic_of_its_own_and_finds_its_name_again(name: str) -> None:
    topic = topic_of_queue(DEFAULT_NAMESPACE, name)
    assert topic.partition is None
    assert TopicName.parse(str(topic)) == topic
    assert queue_of_topic(topic) == name


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("orders", "orders"),
        ("celery@host.celery.pidbox", "celery@host.celery.pidbox"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("..", ".%2E"),
        ("orders-partition-7", "orders-partition-%37"),
    ],
)
def test_letters_that_no_topic_has_are_escaped(name: str, local: str) -> None:
    assert topic_of_queue(DEFAULT_NAMESPACE, name).local == local
