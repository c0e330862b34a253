"""What a stream may forget: pure decisions."""

import pytest

from weir.model.ids import LedgerId
from weir.model.policies import Retention
from weir.model.stream import Chain, Span
from weir.stream.retention import bytes_from, offset_keeping, trim_point

MIB = 1024 * 1024
MINUTE = 60_000
#: Three closed ledgers of 100 offsets and 10 MiB, one a minute, and an open one.
CLOSED = [Span(LedgerId(i), i * 100, i * 100 + 100, 10 * MIB, i * MINUTE, (i + 1) * MINUTE) for i in range(3)]
CHAIN = Chain((*CLOSED, Span(LedgerId(3), 300, None, 0, 3 * MINUTE, 3 * MINUTE)))


@pytest.mark.parametrize(
    ("acknowledged", "retention", "expected"),
    [
        (400, Retention(), 300),
        (250, Retention(), 200),
        (99, Retention(), 0),
        (400, Retention(-1, -1), 0),
        (400, Retention(3, -1), 100),
        (400, Retention(3, 1000), 100),
        (400, Retention(-1, 25), 100),
        (400, Retention(100, 24), 100),
        (400, Retention.exactly(3 * MINUTE + 1, -1), 0),
        (400, Retention.exactly(2 * MINUTE, -1), 200),
        (400, Retention.exactly(-1, 15 * MIB + 1), 100),
        (400, Retention.exactly(-1, 15 * MIB), 200),
        (150, Retention(0, 0), 100),
    ],
)
def test_acknowledged_ledgers_go_when_they_are_retained_no_longer(
    acknowledged: int, retention: Retention, expected: int
) -> None:
    assert trim_point(CHAIN, acknowledged, retention, 4 * MINUTE, 5 * MIB) == expected


def test_the_open_ledger_stays() -> None:
    assert trim_point(CHAIN, 1000, Retention(), 10**12, 0) == 300


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, 35 * MIB), (100, 25 * MIB), (150, 20 * MIB), (350, 2.5 * MIB), (400, 0), (999, 0)]
)
def test_bytes_are_spread_evenly_over_a_ledger(offset: int, expected: float) -> None:
    assert bytes_from(CHAIN, offset, 400, 5 * MIB) == expected


@pytest.mark.parametrize("limit", [0, MIB, 5 * MIB, 6 * MIB, 25 * MIB, 34 * MIB])
def test_what_is_kept_is_within_the_limit_and_no_more_is_given_up_than_needed(limit: int) -> None:
    offset = offset_keeping(CHAIN, limit, 400, 5 * MIB)
    assert bytes_from(CHAIN, offset, 400, 5 * MIB) <= limit
    assert offset == 0 or bytes_from(CHAIN, offset - 2, 400, 5 * MIB) > limit


def test_everything_is_kept_below_the_limit() -> None:
    assert offset_keeping(CHAIN, 36 * MIB, 400, 5 * MIB) == 0
