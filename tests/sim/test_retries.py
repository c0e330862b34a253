"""Retries and dead letters of shared subscriptions under crashes: few seeds, and that mistakes are found."""

import pytest

from weir.testing.retries.scenario import RETRIES


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_message_is_there_once_dead_or_not_whatever_strikes(seed: int) -> None:
    result = RETRIES.run(seed)
    assert result.violations == ()
    assert len(result.ops) > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "seed"), [("sent-without-stamps", 1), ("parcels-not-written", 1), ("given-up-too-early", 0)]
)
def test_a_mistake_is_found(mutation: str, seed: int) -> None:
    assert RETRIES.run(seed, mutation=mutation).violations
