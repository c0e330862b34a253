"""Moments, spans, sizes and pairs as people write them."""

import pytest

from weir.cli.arguments import parse_pairs, parse_size, short_topic, show_moment
from weir.model.errors import ConfigError
from weir.model.moments import parse_moment_ms, parse_span_ms
from weir.model.topics import TopicName


@pytest.mark.parametrize(
    ("text", "ms"), [("10", 10_000), ("500ms", 500), ("2h", 7_200_000), ("1.5min", 90_000), ("7d", 604_800_000)]
)
def test_spans(text: str, ms: int) -> None:
    assert parse_span_ms(text) == ms


def test_moments() -> None:
    now = 1_000_000_000_000
    assert parse_moment_ms("1700000000000", now) == 1_700_000_000_000
    assert parse_moment_ms("-10s", now) == now - 10_000
    assert parse_moment_ms("1970-01-02", now) == 86_400_000
    assert parse_moment_ms("1970-01-01T01:00:00+01:00", now) == 0
    assert parse_moment_ms("-9999999w", now) == 0
    assert parse_moment_ms("1900-01-01", now) == 0
    for late in ("253402300800000", "99999999999999999999999"):
        with pytest.raises(ConfigError, match="is not a moment"):
            parse_moment_ms(late, now)
    assert show_moment(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("1K", 1024), ("1.5MiB", 1572864), ("-1", -1), ("2gb", 2**31)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_pairs() -> None:
    assert parse_pairs(("a=b", "c=d=e", "f=")) == {"a": "b", "c": "d=e", "f": ""}


@pytest.mark.parametrize("wrong", ["", "x", "5y", "5 s more", "--5s"])
def test_wrong_ones_are_refused(wrong: str) -> None:
    for parse in (
        parse_span_ms,
        parse_size,
        lambda text: parse_moment_ms(text, 0),
        lambda text: parse_pairs((text,)),
    ):
        with pytest.raises(ConfigError):
            parse(wrong)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("persistent://public/default/a", "a"),
        ("persistent://acme/orders/a", "acme/orders/a"),
        ("non-persistent://public/default/a", "non-persistent://public/default/a"),
    ],
)
def test_a_topic_is_as_short_as_it_may_be_typed(name: str, short: str) -> None:
    assert short_topic(name) == short
    assert TopicName.parse(short) == TopicName.parse(name)
