"""Each promise, broken on purpose: its own checkers must find it, and none when nothing is broken."""

from collections.abc import Sequence

import pytest

from weir.testing.checking import BUG
from weir.testing.operations import Operation
from weir.testing.scenario import Scenario
from weir.testing.scenario_table import SCENARIOS
from weir.testing.world.errors import LivelockError

#: Where to begin to look; seeds that caught each mutation when it was written. They shift whenever timing does, so
#: the search goes on from there.
FIRST_SEED = {
    "cluster": {
        "ack-before-sync": 2,
        "ack-below-quorum": 0,
        "acks-out-of-order": 0,
        "append-doubled": 0,
        "bookie-confirms-too-much": 16,
        "bookie-ignores-fence": 0,
        "close-forgets-last-entry": 0,
        "compaction-drops-entries": 0,
        "compare-and-set-without-compare": 3,
        "delete-keeps-record": 0,
        "fence-forgotten-at-restart": 3,
        "fence-forgotten-with-ledger": 4,
        "left-out-silently": 0,
        "no-checksums": 2,
        "no-replay": 3,
        "recovery-believes-one-denial": 4,
        "recovery-never-taken-over": 0,
        "recovery-of-the-closed": 86,
        "recovery-trusts-last-confirmed": 0,
        "recovery-without-fencing": 0,
        "repair-without-copying": 2,
        "short-journal-taken-for-whole": 0,
        "unrecorded-ensemble-change": 0,
        "whole-taken-for-damaged": 0,
    },
    "broker": {
        "epoch-begins-anew": 0,
        "epoch-lost-in-a-split": 0,
        "cancel-forgotten": 0,
        "last-id-too-far": 0,
        "receipt-elsewhere": 0,
        "ack-not-persisted": 0,
        "answered-before-applied": 2,
        "cursor-without-holes": 3,
        "done-before-appended": 9,
        "ids-go-back": 9,
        "key-taken-over": 3,
        "one-too-many": 0,
        "receipt-before-stored": 2,
        "receipts-as-they-end": 0,
        "released-early": 0,
        "seek-not-persisted": 6,
        "seen-before-stored": 1,
        "snapshot-without-tail": 1,
        "two-ways-at-once": 5,
        "whole-batch": 0,
    },
    "kafka": {
        "aborted-delay-seen": 0,
        "aborted-delivered": 1,
        "aborted-forgotten": 2,
        "aborted-from-the-start": 0,
        "aborted-not-told": 0,
        "answered-before-decision": 67,
        "batch-left-out": 0,
        "committed-delay-lost": 0,
        "committed-not-delivered": 0,
        "delay-forgotten": 0,
        "deleted-stays": 0,
        "duplicate-answered-wrongly": 0,
        "duplicate-stored": 0,
        "epoch-not-checked": 0,
        "epoch-not-counted-on": 2,
        "fetch-beyond-stable": 0,
        "first-batch-missed": 9,
        "first-value-kept": 0,
        "former-self-not-fenced": 23,
        "gap-accepted": 14,
        "generation-not-checked": 1,
        "group-not-persisted": 0,
        "growth-not-told": 1,
        "joined-before-durable": 0,
        "marker-before-decision": 23,
        "marker-in-one-partition": 0,
        "never-timed-out": 0,
        "new-group-at-the-end": 1,
        "numbers-alone-tell": 0,
        "offsets-shifted": 0,
        "only-the-last-batch-known": 0,
        "open-forgotten": 1,
        "position-before-flush": 2,
        "position-moved-at-once": 0,
        "position-moved-by-aborted": 0,
        "position-not-pending": 5,
        "producers-forgotten": 0,
        "receipt-before-stored": 2,
        "renamed-before-its-markers": 0,
        "repeated-end-is-always-right": 1,
        "rows-moved": 0,
        "seen-before-stored": 5,
        "stable-offset-ignores-open": 0,
        "stale-subscription": 0,
        "static-member-is-new": 0,
        "static-share-forgotten": 5,
        "tail-not-read": 0,
        "too-much-deleted": 0,
    },
    "multibroker": {
        "acknowledged-when-given-away": 0,
        "claimed-without-compare": 8,
        "committed-elsewhere-only": 0,
        "epoch-begins-anew": 1,
        "epoch-stands-still": 1,
        "half-not-claimed": 0,
        "handed-over-before-closed": 0,
        "late-marker-taken": 2,
        "left-before-its-end": 0,
        "log-not-read-to-its-end": 0,
        "marked-here-alone": 0,
        "marker-tried-once": 4,
        "moved-not-told": 5,
        "no-fencing": 3,
        "not-verified": 1,
        "position-elsewhere-forgotten": 0,
    },
    "half": {
        "committed-when-prepared": 1,
        "decisions-in-memory": 1,
        "failed-lets-others-pass": 4,
        "group-stands-still": 1,
        "groups-not-looked-at": 1,
        "recalled-while-released": 0,
        "release-not-found-again": 4,
        "rolled-back-in-memory": 1,
        "stuck": 1,
        "undecided-forgotten": 1,
    },
    "queues": {
        "acknowledged-before-sent": 0,
        "acknowledged-in-memory": 0,
        "given-back-is-given-up": 0,
        "letters-without-stamps": 0,
        "parcels-not-written": 0,
        "requeued-behind": 0,
        "stored-twice": 0,
        "stuck": 0,
    },
    "retries": {
        "acknowledged-before-sent": 1,
        "acknowledged-in-memory": 0,
        "given-up-too-early": 0,
        "parcels-not-written": 1,
        "sent-without-stamps": 1,
        "stuck": 0,
    },
    "rocketmq": {
        "acknowledged-here-only": 0,
        "confirmed-before-stored": 0,
        "halves-are-wholes": 0,
        "subscribed-once": 0,
    },
}
_MOST_SEEDS = 150
#: Of a function that is called with other arguments than the one in whose place it was put.
_UNFIT = "positional argument"
_ALL = [(name, mutation) for name in sorted(SCENARIOS) for mutation in sorted(SCENARIOS[name].mutations)]
_EACH = pytest.mark.parametrize("scenario", sorted(SCENARIOS))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mutation"), _ALL, ids=[f"{name}-{mutation}" for name, mutation in _ALL])
def test_a_broken_promise_is_found_by_its_checkers_and_only_then(name: str, mutation: str) -> None:
    scenario, first = SCENARIOS[name], FIRST_SEED[name][mutation]
    wanted = scenario.mutations[mutation].found_by
    for seed in range(first, first + _MOST_SEEDS):
        ops = ops_of(scenario, seed, mutation)
        if all(checker(ops) for checker in wanted):
            break
    else:
        names = ", ".join(checker.__name__ for checker in wanted)
        sin = scenario.mutations[mutation].sin
        pytest.fail(f"in {_MOST_SEEDS} seeds from {first} on, {names} missed: {sin}")
    innocent = scenario.run(seed, mutation=mutation, innocent=True)
    assert innocent.violations == (), f"seed {seed} fails without the mutation, too"


def ops_of(scenario: Scenario, seed: int, mutation: str) -> Sequence[Operation]:
    try:
        result = scenario.run(seed, mutation=mutation)
    except LivelockError:  # a broken promise may also turn a loop into one without end
        return ()
    unfit = [found.sentence for found in result.violations if found.promise == BUG and _UNFIT in found.sentence]
    assert not unfit, f"{mutation} no longer fits what it patches: {unfit[0]}"
    return result.ops


@_EACH
def test_every_checker_has_a_mutation_that_it_must_find(scenario: str) -> None:
    mutations, checkers = SCENARIOS[scenario].mutations.values(), SCENARIOS[scenario].checkers
    found_by = [checker.__name__ for mutation in mutations for checker in mutation.found_by]
    found_by += [checker.__name__ for checker in SCENARIOS[scenario].shown_elsewhere]
    assert sorted(set(found_by)) == sorted(checker.__name__ for checker in checkers)


@_EACH
def test_every_mutation_says_what_is_done_wrong_and_who_finds_it(scenario: str) -> None:
    mutations = SCENARIOS[scenario].mutations
    assert all(mutation.sin.endswith(".") and mutation.found_by for mutation in mutations.values())
    assert sorted(FIRST_SEED[scenario]) == sorted(mutations)
