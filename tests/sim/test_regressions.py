"""Seeds that found something, each with what it found. Timing shifts with the code: each bug has a test of its own
beside the part that had it."""

import pytest

from weir.testing.scenario_table import SCENARIOS

_LOST_DELAYED = (
    "with deduplication, a delayed message that could not be held passed for a duplicate when it was sent again, "
    "because a later message had been stored meanwhile"
)
_ANSWERED_EARLY = (
    "the acknowledgement of what an earlier connection had delivered was answered before it was looked up"
)
_NOT_THE_FIRST = (
    "the second batch of an idempotent producer passed for its first, when that could not be stored because the "
    "topic was moving"
)
_NOT_WATCHED = (
    "a fetch session was not told that a topic had ended which could not be closed cleanly, and waited for it to "
    "grow while another was in its place"
)
_NOT_STORED = (
    "a compaction whose ledger could not be written counted as done, so the topic lost all that it was to keep"
)
FOUND = {
    "cluster": {
        12036: "an index that was made anew beneath a running bookie had other rows than its runs in memory, so "
        "that what lay behind damage was denied",
    },
    "broker": {
        3: _ANSWERED_EARLY,
        23: _ANSWERED_EARLY,
        47: _ANSWERED_EARLY,
        42: _LOST_DELAYED,
        196: _LOST_DELAYED,
        231: _LOST_DELAYED,
        43: "a client that acknowledged a message twice in one command brought the rest of its batch back",
        76: "with deduplication, a batch that failed and was stored all the same was stored again: a later batch "
        "of another producer had moved the known end of the log past it",
        1136: "a topic that was loaded while it was being unloaded lost its new claim with the old one",
    },
    "queues": {
        200: "a transient message whose dead letter was acknowledged while its topic was passed on came back "
        "there, and became a second letter",
        3037: "a queue that a broker on its way down could not load passed for one that is gone, and its dead "
        "letter was dropped",
    },
    "kafka": {
        2: "the end of a ledger that a broker in a hurry awaited no longer complained of the metadata to nobody",
        85: _NOT_WATCHED,
        113: _NOT_WATCHED,
        221: _NOT_THE_FIRST,
        222: _NOT_THE_FIRST,
        422: _NOT_THE_FIRST,
        2500: (
            "a broker that had just taken over believed for a moment that the coordinator was elsewhere, and took "
            "a late batch of a producer that had been fenced: a transaction that nobody ended"
        ),
        5121: _NOT_STORED,
        5315: _NOT_STORED,
        5594: (
            "a batch in parts, known to be stored after the marker that ended its epoch, used up numbers of the "
            "next one"
        ),
        5628: (
            "what waited behind an idempotent producer's first batch was stored without it, when that one had "
            "waited for so long that something of another producer had failed meanwhile"
        ),
        250: "Weir's Pulsar client lost credit with every message of a batch that had been acknowledged before",
    },
    "multibroker": {
        32: "a broker that lost its lease during a hand-over took the bundle again, by a claim that it had read "
        "before the hand-over was stored: the claim sent clients to the next owner, which waited without end",
        3012: "the next broker of a topic knew a batch that was stored in parts, and said that it knew nothing of "
        "its producer, whose next batch was out of order then",
    },
}
#: Found in the plan of a mutation, with nothing broken.
FOUND_INNOCENT = {
    ("cluster", "fence-forgotten-at-restart", 13): (
        "a bookie forgot the fence together with a deleted ledger, so a writer that slept through recovery and "
        "deletion was still acknowledged"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "seed"), [(name, seed) for name in sorted(FOUND) for seed in sorted(FOUND[name])]
)
def test_a_seed_that_once_found_something_keeps_every_promise(scenario: str, seed: int) -> None:
    assert SCENARIOS[scenario].run(seed).violations == (), FOUND[scenario][seed]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "focus", "seed"), sorted(FOUND_INNOCENT))
def test_a_plan_that_once_found_something_keeps_every_promise(scenario: str, focus: str, seed: int) -> None:
    result = SCENARIOS[scenario].run(seed, mutation=focus, innocent=True)
    assert result.violations == (), FOUND_INNOCENT[scenario, focus, seed]
