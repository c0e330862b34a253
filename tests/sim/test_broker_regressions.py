"""Seeds that found something, each with what it found. Timing shifts with the code: each bug has a test of its own
beside the part that had it."""

import pytest

from weir.testing.broker_scenario import run_broker_seed

_LOST_DELAYED = (
    "with deduplication, a delayed message that could not be held passed for a duplicate when it was sent again, "
    "because a later message had been stored meanwhile"
)
_ANSWERED_EARLY = (
    "the acknowledgement of what an earlier connection had delivered was answered before it was looked up"
)
FOUND = {
    3: _ANSWERED_EARLY,
    23: _ANSWERED_EARLY,
    47: _ANSWERED_EARLY,
    42: _LOST_DELAYED,
    196: _LOST_DELAYED,
    231: _LOST_DELAYED,
    43: "a client that acknowledged a message twice in one command brought the rest of its batch back",
    1136: "a topic that was loaded while it was being unloaded lost its new claim with the old one",
}


@pytest.mark.parametrize("seed", sorted(FOUND))
def test_a_seed_that_once_found_something_keeps_every_promise(seed: int) -> None:
    assert run_broker_seed(seed).violations == (), FOUND[seed]
