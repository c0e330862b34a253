"""What balance promises, as pure functions from a history to the places where it is broken."""

from collections.abc import Callable
from itertools import pairwise

from weir.broker.balance.balance_round import Reason
from weir.testing.balance.history import BalanceHistory, Moved, Sampled
from weir.testing.checking import Violation

CALM = "nothing flaps: a bundle that was moved stays for its pause"
WORTH = "no broker is touched for less than the least gain"
BOUND = "a bundle goes where its namespace is bound to, and nowhere else"
EVEN = "after settling the load is spread evenly"
ROOM = "no broker has more than it can do for long, if others have room"

COUNTS = "brokers that have little to do serve about as many topics each"

BalanceChecker = Callable[[BalanceHistory], list[Violation]]

#: How far above the outer threshold the 99th of 100 brokers may be, since load moves between rounds.
_SLACK = 0.06
#: In so many of a hundred samples it may be further.
_RARELY = 5
#: For so long after a loss or a join nothing is said of the spread, and an overload may last.
_DISTURBED_S = 1200.0
_PATIENCE_S = 900.0
#: Brokers that are used so little are evened out by counts alone; which may be off by a bundle's topics.
_LITTLE = 0.01
_TOPICS_SLACK = 16


def nothing_flaps(history: BalanceHistory) -> list[Violation]:
    """A drain moves whatever is there; a new leader does not know what the last one did."""
    pause_s = history.plan.limits.bundle_pause_s
    by_bundle: dict[str, list[Moved]] = {}
    for move in history.moves:
        by_bundle.setdefault(move.bundle, []).append(move)
    return [
        _broken(CALM, f"{bundle} is moved at {before.at:.0f} s and at {after.at:.0f} s")
        for bundle, moves in by_bundle.items()
        for before, after in pairwise(moves)
        if after.at - before.at < pause_s - 1 and after.term == before.term and after.reason is not Reason.DRAIN
    ]


def moves_are_worth_it(history: BalanceHistory) -> list[Violation]:
    """What a hot broker gives in a round, or a cold one gets, is worth a pause of its clients."""
    gains: dict[tuple[float, str, str], float] = {}
    for move in history.moves:
        if move.reason in (Reason.HOT, Reason.COLD):
            broker = move.source if move.reason is Reason.HOT else move.target
            key = (move.at, move.reason.value, broker)
            gains[key] = gains.get(key, 0.0) + move.usage
    least = history.plan.limits.min_gain
    return [
        _broken(WORTH, f"{broker}, {reason} at {at:.0f} s, gains {gain:.4f} of a broker")
        for (at, reason, broker), gain in gains.items()
        if gain < least - 1e-9
    ]


def isolation_holds(history: BalanceHistory) -> list[Violation]:
    found = [
        _broken(BOUND, f"{move.bundle} goes to {move.target} at {move.at:.0f} s")
        for move in history.moves
        if not move.allowed
    ]
    last = history.samples[-1]
    if last.misplaced:
        found.append(_broken(BOUND, f"{last.misplaced} bundles are outside of their groups at the end"))
    return found


def is_settled(history: BalanceHistory, sample: Sampled) -> bool:
    """Whether nothing happened for a while but that load moves."""
    plan = history.plan
    return sample.at >= plan.settled_s and not any(
        event <= sample.at < event + _DISTURBED_S for event in (plan.lost_s, plan.joined_s)
    )


def load_is_even(history: BalanceHistory) -> list[Violation]:
    bound = history.plan.limits.start + _SLACK
    settled = [sample for sample in history.samples if is_settled(history, sample)]
    uneven = [sample for sample in settled if sample.above > bound]
    if 100 * len(uneven) <= _RARELY * len(settled):
        return []
    worst = max(uneven, key=lambda sample: sample.above)
    return [
        _broken(
            EVEN,
            f"{len(uneven)} of {len(settled)} samples are uneven, at {worst.at:.0f} s the 99th of 100 brokers is "
            f"{worst.above:.2f} above the mean of those that share its work",
        )
    ]


def overload_is_relieved(history: BalanceHistory) -> list[Violation]:
    since: dict[str, float] = {}
    found: dict[str, Violation] = {}
    for sample in history.samples:
        since = {broker: since.get(broker, sample.at) for broker in sample.overloaded}
        for broker, began in since.items():
            if sample.at - began > _PATIENCE_S and sample.at >= history.plan.settled_s:
                found[broker] = _broken(ROOM, f"{broker} is overloaded from {began:.0f} s to {sample.at:.0f} s")
    return list(found.values())


def counts_are_even(history: BalanceHistory) -> list[Violation]:
    """Where load and bindings leave the choice."""
    plan = history.plan
    if plan.mean_usage > _LITTLE or plan.bound:
        return []
    return [
        _broken(COUNTS, f"brokers have {sample.fewest} to {sample.most_topics} topics at {sample.at:.0f} s")
        for sample in history.samples
        if is_settled(history, sample) and _is_uneven(sample, plan.limits.count_start)
    ]


def _is_uneven(sample: Sampled, share: float) -> bool:
    mean = sample.mean_topics
    return max(mean - sample.fewest, sample.most_topics - mean) > share * mean + _TOPICS_SLACK


def _broken(promise: str, sentence: str) -> Violation:
    return Violation(promise, sentence, ())


CHECKERS: tuple[BalanceChecker, ...] = (
    nothing_flaps,
    moves_are_worth_it,
    isolation_holds,
    load_is_even,
    overload_is_relieved,
    counts_are_even,
)
