"""Policies: each level says what it says, the rest comes from below."""

from dataclasses import fields

import pytest

from weir.model.policies import DEFAULT_POLICIES, Policies, Rate, Retention


def test_the_narrower_level_wins_where_it_says_something() -> None:
    namespace = Policies(message_ttl_s=60, publish_rate=Rate(messages=10))
    topic = Policies(message_ttl_s=0, retention=Retention(minutes=5))
    both = topic.over(namespace.over(DEFAULT_POLICIES))
    assert (both.message_ttl_s, both.publish_rate, both.retention) == (0, Rate(messages=10), Retention(minutes=5))
    assert both.max_message_bytes == DEFAULT_POLICIES.max_message_bytes


def test_the_default_leaves_nothing_open() -> None:
    assert all(getattr(DEFAULT_POLICIES, field.name) is not None for field in fields(Policies))


@pytest.mark.parametrize(
    ("time_ms", "size_bytes", "shown"),
    [
        (-1, -1, (-1, -1)),
        (0, 0, (0, 0)),
        (60_000, 1 << 20, (1, 1)),
        (60_001, (1 << 20) + 1, (2, 2)),
        (1, 1, (1, 1)),
    ],
)
def test_retention_is_exact_and_shown_rounded_up(time_ms: int, size_bytes: int, shown: tuple[int, int]) -> None:
    retention = Retention.exactly(time_ms, size_bytes)
    assert (retention.time_ms, retention.size_bytes) == (time_ms, size_bytes)
    assert (retention.minutes, retention.megabytes) == shown


def test_retention_by_whole_minutes_and_megabytes_is_the_same_value_either_way() -> None:
    assert Retention.exactly(3 * 60_000, 2 << 20) == Retention(3, 2)
