"""What is measured, in which groups, and what each row of the table compares.

A group's raw limits and Weir's measurements run one after the other, round by round, so that noise of the
machine hits both; a row's ratio is taken within each round.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.case import Measured
from bench.report import RAW_LIMIT, Result, Target
from bench.stats import Spread

#: What one round of a group measured, by the key of the run.
Round = dict[str, Measured]


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement in a process of its own."""

    key: str
    case: str
    params: dict[str, Any]
    timeout_s: int = 180


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, computed from a group's rounds."""

    title: str
    unit: str
    value: Callable[[Round], float]
    raw_title: str = ""
    raw: Callable[[Round], float] | None = None
    lower_is_better: bool = False
    target: Target | None = None

    def result(self, group: "Group", rounds: list[Round], busy_cores: float) -> Result:
        values = [self.value(r) for r in rounds]
        raws = [self.raw(r) for r in rounds] if self.raw else []
        value = Spread.of(values)
        ratio = Spread.of([v / w for v, w in zip(values, raws, strict=True)]) if raws else None
        return Result(
            group=group.name,
            section=group.section,
            title=self.title,
            unit=self.unit,
            value=value,
            raw_title=self.raw_title,
            raw=Spread.of(raws) if raws else None,
            ratio=ratio,
            lower_is_better=self.lower_is_better,
            target=self.target.says if self.target else "",
            met=self.target.met(value, ratio) if self.target else None,
            busy_cores=busy_cores,
            beside=group.beside,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that belong beside one another, and the rows made of them."""

    name: str
    section: str
    runs: list[Run]
    rows: list[Row]
    rounds: int = field(default=3)
    #: What Weir stands beside in these rows.
    beside: str = RAW_LIMIT


def at_least(ratio: float) -> Target:
    return Target(f">= {ratio:g} of raw", lambda _value, found: found is not None and found.median >= ratio)


def at_most(ratio: float) -> Target:
    return Target(f"<= {ratio:g} x raw", lambda _value, found: found is not None and found.median <= ratio)


def value_at_least(value: float, unit: str) -> Target:
    return Target(f">= {value:,.0f} {unit}", lambda found, _ratio: found.median >= value)


def metric(run: str, name: str) -> Callable[[Round], float]:
    return lambda found: found[run][name]
