"""Seeds that found something, each with what it found. Timing shifts with the code: each bug has a test of its own
beside the part that had it."""

import pytest

from weir.testing.scenario import run_seed

FOUND = {
    ("fence-forgotten-at-restart", 13): (
        "a bookie forgot the fence together with a deleted ledger, so a writer that slept through recovery and "
        "deletion was still acknowledged"
    ),
}


@pytest.mark.parametrize(("focus", "seed"), sorted(FOUND))
def test_a_seed_that_once_found_something_keeps_every_promise(focus: str, seed: int) -> None:
    result = run_seed(seed, mutation=focus, innocent=True)
    assert result.violations == (), FOUND[focus, seed]
