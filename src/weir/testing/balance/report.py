"""What came of a run of the balance scenario, as a table."""

from rich.table import Table

from weir.testing.balance.checkers import is_settled
from weir.testing.balance.history import BalanceHistory, Sampled


def rows_of(history: BalanceHistory) -> list[tuple[str, str]]:
    """Each line's name and value."""
    plan = history.plan
    first = next((s for s in history.samples if s.at >= 1), history.samples[0])
    settled = [sample for sample in history.samples if is_settled(history, sample)]
    return [
        ("brokers, bundles, namespaces", f"{plan.brokers:,}, {plan.bundles:,}, {plan.namespaces:,}"),
        ("virtual time", f"{plan.end_s / 3600:.1f} h, a round every {plan.settings.interval_s:.0f} s"),
        ("mean usage at the beginning, highest", f"{first.mean:.2f}, {first.most:.2f}"),
        ("max/mean, p99/mean at the beginning", _spread([first])),
        ("max/mean, p99/mean after settling", _spread(settled)),
        ("moves per hour while settling", _moves(history, 0, plan.settled_s)),
        ("moves per hour with moving load", _moves(history, plan.settled_s, plan.lost_s)),
        ("moves in the hour after the loss", _moves(history, plan.lost_s, min(plan.lost_s + 3600, plan.joined_s))),
        ("most moves of one bundle", f"{_most_moved(history)}"),
        ("splits", f"{history.splits}"),
        ("brokers lost, without an owner for", f"{plan.lost_share:.0%}, {history.unserved_s:.0f} s (the lease)"),
        ("loss absorbed (spread as before) after", _absorbed(history, plan.lost_s, plan.settled_s)),
        ("new brokers have their share after", _absorbed(history, plan.joined_s, plan.settled_s)),
    ]


def table_of(history: BalanceHistory) -> Table:
    table = Table(title="balance", show_header=False)
    for name, value in rows_of(history):
        table.add_row(name, value)
    return table


def _spread(samples: list[Sampled]) -> str:
    most = sum(sample.most / sample.mean for sample in samples) / len(samples)
    p99 = sum(sample.p99 / sample.mean for sample in samples) / len(samples)
    return f"{most:.2f}, {p99:.2f}"


def _moves(history: BalanceHistory, start: float, end: float) -> str:
    count = sum(start <= move.at < end for move in history.moves)
    return f"{count * 3600 / (end - start):.0f}"


def _most_moved(history: BalanceHistory) -> int:
    counts: dict[str, int] = {}
    for move in history.moves:
        counts[move.bundle] = counts.get(move.bundle, 0) + 1
    return max(counts.values(), default=0)


def _absorbed(history: BalanceHistory, event: float, settled_s: float) -> str:
    """How long until the 99th of 100 brokers is no further above the mean than in nine of ten samples before."""
    before = sorted(s.above for s in history.samples if settled_s <= s.at < history.plan.lost_s)
    usual = before[int(len(before) * 0.9)]
    after = next((s.at for s in history.samples if s.at > event and s.above <= usual), None)
    return "never" if after is None else f"{after - event:.0f} s"
