"""Policies: each level says what it says, the rest comes from below."""

from dataclasses import fields

from weir.model.policies import DEFAULT_POLICIES, Policies, Rate, Retention


def test_the_narrower_level_wins_where_it_says_something() -> None:
    namespace = Policies(message_ttl_s=60, publish_rate=Rate(messages=10))
    topic = Policies(message_ttl_s=0, retention=Retention(minutes=5))
    both = topic.over(namespace.over(DEFAULT_POLICIES))
    assert (both.message_ttl_s, both.publish_rate, both.retention) == (0, Rate(messages=10), Retention(minutes=5))
    assert both.max_message_bytes == DEFAULT_POLICIES.max_message_bytes


def test_the_default_leaves_nothing_open() -> None:
    assert all(getattr(DEFAULT_POLICIES, field.name) is not None for field in fields(Policies))
