"""`python -m weir.testing.sim`: run many seeds of a scenario and report the first broken promise.

The scenarios: `cluster`, which is the storage alone; `broker`, which is brokers over it with Pulsar's clients;
`kafka`, with Kafka's: groups, idempotence and transactions; `multibroker`, many brokers; `queues`; and `half`:
half messages, recalls, message groups. Another, `balance`, is one run of a large model, and ends with a table
instead.

Seeds run over all cores, each in isolation. A failure is reported by its seed, the sentence of the promise that
it breaks, the shortest history that the checker still rejects, and the command that runs it again.
"""

import multiprocessing
import os
import random
import sys
import traceback
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from weir.testing.balance import command as balance
from weir.testing.balance.mutations import MUTATIONS as BALANCE_MUTATIONS
from weir.testing.scenario import Scenario
from weir.testing.scenario_table import SCENARIOS
from weir.testing.shrink import shrink
from weir.testing.storage.scenario import CLUSTER

#: Random first seeds stay short enough to type.
_SEED_RANGE = 10**9


_ALL_MUTATIONS = sorted({*BALANCE_MUTATIONS, *(name for known in SCENARIOS.values() for name in known.mutations)})


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is run."""

    scenario: Scenario
    mutation: str | None

    def again(self, seed: int) -> str:
        """The command that runs this seed once more."""
        scenario = "" if self.scenario is CLUSTER else f" --scenario {self.scenario.name}"
        mutation = "" if self.mutation is None else f" --mutation {self.mutation}"
        return f"python -m weir.testing.sim --seed {seed}{scenario}{mutation}"


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of one seed; small, since it travels between processes."""

    seed: int
    summary: str
    operations: int
    #: Empty: no promise was broken.
    failure: str = ""
    shortest: tuple[str, ...] = ()


def report_seed(
    seed: int, mutation: str | None = None, trace: bool = False, scenario: Scenario = CLUSTER
) -> Report:
    """Run one seed and say what came of it; an error of the code under test is a failure too."""
    try:
        return _report(scenario, seed, mutation, trace)
    except Exception:
        return Report(seed, "", 0, failure=f"the run itself failed\n{traceback.format_exc()}")


def _report(scenario: Scenario, seed: int, mutation: str | None, trace: bool) -> Report:
    result = scenario.run(seed, mutation=mutation, trace=sys.stderr if trace else None)
    if not result.violations:
        return Report(seed, result.summary, len(result.ops))
    violation = result.violations[0]
    kept = shrink(result.ops, violation, scenario.checkers) if violation.evidence else ()
    return Report(seed, result.summary, len(result.ops), str(violation), tuple(str(op) for op in kept))


def _job(job: tuple[int, str | None, str]) -> Report:
    return report_seed(job[0], job[1], scenario=SCENARIOS[job[2]])


def _reports(seeds: range, asked: "_Asked", jobs: int) -> Generator[Report, None, None]:
    """Every seed's report, as it comes."""
    work = [(seed, asked.mutation, asked.scenario.name) for seed in seeds]
    if jobs == 1 or len(work) == 1:
        yield from map(_job, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_job, work, chunksize=4)


def _print_failure(console: Console, report: Report, asked: _Asked) -> None:
    console.print(f"\n[bold red]seed {report.seed} breaks a promise[/]  [dim]{report.summary}[/]")
    console.print(report.failure, markup=False, highlight=False, soft_wrap=True)
    if report.shortest:
        console.print(
            f"\nthe shortest rejected history ({len(report.shortest)} of {report.operations} operations):"
        )
        for line in report.shortest:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nrun it again: {asked.again(report.seed)} [--trace]", markup=False, highlight=False)


@click.command()
@click.option("--seeds", default=200, show_default=True, help="How many seeds to run.")
@click.option("--first", type=int, help="The first seed; random if left out.")
@click.option("--seed", type=int, help="Run only this seed.")
@click.option("--scenario", type=click.Choice([*SCENARIOS, balance.NAME]), default=CLUSTER.name, show_default=True)
@click.option(
    "--mutation",
    type=click.Choice(_ALL_MUTATIONS),
    help="Break one promise on purpose.",
)
@click.option("--trace", is_flag=True, help="With --seed: print everything that happens to standard error.")
@click.option("--keep-going", is_flag=True, help="Report every failing seed, not only the first.")
@click.option("--jobs", type=int, default=os.cpu_count() or 1, show_default=True, help="Processes to use.")
def main(  # noqa: PLR0917 - click passes them by name
    seeds: int,
    first: int | None,
    seed: int | None,
    scenario: str,
    mutation: str | None,
    trace: bool,
    keep_going: bool,
    jobs: int,
) -> None:
    """Run seeds of a simulated cluster; exit code 1 if any of them breaks a promise."""
    console = Console()
    if scenario == balance.NAME:
        if mutation is not None and mutation not in BALANCE_MUTATIONS:
            raise click.BadParameter(f"{mutation} is a mutation of another scenario")
        sys.exit(0 if balance.report_balance(console, first or seed or 1, mutation) else 1)
    asked = _Asked(SCENARIOS[scenario], mutation)
    if mutation is not None and mutation not in asked.scenario.mutations:
        raise click.BadParameter(f"{mutation} is a mutation of another scenario")
    if seed is not None:
        report = report_seed(seed, mutation, trace, asked.scenario)
        if report.failure:
            _print_failure(console, report, asked)
            sys.exit(1)
        console.print(f"seed {seed} keeps every promise: {report.operations} operations, {report.summary}")
        return
    start = random.SystemRandom().randrange(_SEED_RANGE) if first is None else first
    failed = _run(console, range(start, start + seeds), asked, keep_going, jobs)
    if failed:
        sys.exit(1)


def _run(console: Console, seeds: range, asked: _Asked, keep_going: bool, jobs: int) -> int:
    """Run all seeds under a progress bar; returns how many failed."""
    mutation = f" with mutation {asked.mutation}" if asked.mutation else ""
    console.print(f"{asked.scenario.name}: seeds {seeds.start} to {seeds.stop - 1}{mutation}")
    failed = operations = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, closing(_reports(seeds, asked, jobs)) as reports:
        task = progress.add_task("simulating", total=len(seeds))
        for report in reports:
            progress.advance(task)
            operations += report.operations
            if report.failure:
                failed += 1
                _print_failure(progress.console, report, asked)
                if not keep_going:
                    break
    if failed:
        console.print(f"[bold red]{failed} seed(s) broke a promise[/]")
    else:
        console.print(f"[green]{len(seeds)} seeds, {operations} operations, every promise kept[/]")
    return failed


if __name__ == "__main__":
    main()
