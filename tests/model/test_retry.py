"""Retry policies: their text, their waits, and the levels at which they are said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import InvalidNameError, NotAllowedError
from weir.model.messages import Death, death_in
from weir.model.policies import Policies
from weir.model.retry import (
    DEAD_LETTER_TOPIC,
    MAX_DELIVERIES,
    SCHEDULE,
    Backoff,
    FixedDelays,
    RetryPolicy,
    parse_schedule,
    retry_of,
    with_retry,
)
from weir.model.topics import TopicName


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("1s 10s 1m", [1000, 10_000, 60_000, 60_000]),
        ("1s,10s , 1m", [1000, 10_000, 60_000, 60_000]),
        ("0", [0, 0, 0, 0]),
        ("", [0, 0, 0, 0]),
        ("1s..10s", [1000, 2000, 4000, 8000, 10_000, 10_000]),
        ("1s .. 1m x 3", [1000, 3000, 9000, 27_000, 60_000]),
        ("5s..5s", [5000, 5000]),
    ],
)
def test_the_nth_failure_waits_for_the_nth_wait(text: str, waits: list[int]) -> None:
    schedule = parse_schedule(text)
    assert [schedule.delay_ms(failures) for failures in range(1, len(waits) + 1)] == waits


@pytest.mark.parametrize("text", ["soon", "1", "-1s", "1s..", "10s..1s", "0s..1s", "1s..1m x0", "31d", "1s " * 65])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(NotAllowedError):
        parse_schedule(text)


_SPANS = st.integers(1, 30 * 86_400_000)
_SCHEDULES = st.one_of(
    st.builds(FixedDelays, st.lists(_SPANS, min_size=1, max_size=20).map(tuple)),
    st.builds(
        lambda a, b, factor: Backoff(min(a, b), max(a, b), factor),
        _SPANS,
        _SPANS,
        st.integers(10, 1000).map(lambda tenths: tenths / 10),
    ),
)


@given(schedule=_SCHEDULES)
def test_a_schedule_is_its_text(schedule: FixedDelays | Backoff) -> None:
    assert parse_schedule(str(schedule)) == schedule


def test_a_subscription_s_words_win_one_by_one() -> None:
    topic = RetryPolicy(FixedDelays((1000,)), 5, "graveyard")
    said = retry_of({MAX_DELIVERIES: "3", "other": "x"})
    assert said is not None
    assert said.over(topic) == RetryPolicy(FixedDelays((1000,)), 3, "graveyard")
    assert retry_of({"other": "x"}) is None
    namespace = Policies(retry=RetryPolicy(max_deliveries=9, dead_letter_topic="all"))
    assert Policies(retry=RetryPolicy(max_deliveries=2)).over(namespace).retry == RetryPolicy(None, 2, "all")


def test_a_policy_goes_into_properties_and_comes_back() -> None:
    policy = RetryPolicy(Backoff(1000, 60_000), 16, "graveyard")
    properties = with_retry({"mine": "1", SCHEDULE: "1s"}, policy)
    assert (retry_of(properties), properties["mine"]) == (policy, "1")
    assert with_retry(properties, None) == {"mine": "1"}


@pytest.mark.parametrize(
    "properties",
    [
        {MAX_DELIVERIES: "often"},
        {MAX_DELIVERIES: "1001"},
        {SCHEDULE: "soon"},
        {DEAD_LETTER_TOPIC: "non-persistent://public/default/t"},
        {DEAD_LETTER_TOPIC: "t-partition-1"},
    ],
)
def test_what_cannot_be_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises((NotAllowedError, InvalidNameError)):
        retry_of(properties)


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("", "persistent://a/b/orders-billing-DLQ"),
        ("%DLQ%g", "persistent://a/b/%DLQ%g"),
        ("persistent://c/d/e", "persistent://c/d/e"),
        ("c/d/e", "persistent://c/d/e"),
        ("orders", "persistent://a/b/orders-billing-DLQ"),
    ],
)
def test_dead_letters_of_all_partitions_have_one_place(said: str, place: str) -> None:
    partition = TopicName.parse("persistent://a/b/orders-partition-3")
    assert str(RetryPolicy(dead_letter_topic=said).dead_letters_of(partition, "billing")) == place


def test_a_death_is_read_from_its_headers() -> None:
    topic = TopicName.parse("persistent://a/b/orders-partition-3")
    death = Death("max-deliveries", 3, topic, 17, "billing", 1000, 2000)
    assert death_in([("mine", b"1"), *death.headers()]) == death
    assert death_in([("mine", b"1")]) is None
