"""`python -m bench.run`: measure everything, then write the table, the JSON and the plot.

--quick        less data and one round: a smoke test, under a minute; results go to --results only if given
--only NAME    only groups whose name contains NAME (may be repeated); prints, and writes only to --results
--data DIR     where to put benchmark data (default: beside the repository, on the same disk; removed after)
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import machine, report
from bench.amqp_groups import NAME as AMQP
from bench.amqp_groups import amqp_groups
from bench.broker_groups import NAME as PULSAR
from bench.broker_groups import broker_groups
from bench.function_groups import NAME as FUNCTIONS
from bench.function_groups import function_groups
from bench.groups import groups
from bench.kafka_groups import NAME as KAFKA
from bench.kafka_groups import kafka_groups
from bench.lake_groups import NAME as LAKE
from bench.lake_groups import lake_groups
from bench.pause_groups import NAME as PAUSES
from bench.pause_groups import pause_groups
from bench.perf_groups import perf_groups
from bench.plan import Group, Round, Run
from bench.spark_groups import NAME as SPARK
from bench.spark_groups import spark_groups
from bench.tiered_groups import NAME as TIERED
from bench.tiered_groups import tiered_groups

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "bench" / "results"
#: How long a whole run waits, in sum, for others to leave the machine alone.
_PATIENCE_S = 180.0


def main() -> int:
    arguments = _arguments()
    console = Console(stderr=True)
    plan = [g for g in _all_groups(arguments) if _wanted(g, arguments.only)]
    data = tempfile.mkdtemp(prefix=".weir-bench-", dir=arguments.data)
    machine.adopt_orphans()
    quiet = machine.Quietness()
    facts = machine.facts(data)
    try:
        results = _measure(plan, data, console, patience_s=0.0 if arguments.quick else _PATIENCE_S)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    foreign = round(quiet.foreign_cores(), 2)
    facts["cores_used_by_others"] = foreign
    console.print(Markdown(report.table(results, facts)))
    if foreign > machine.QUIET_CORES:
        console.print(f"[yellow]the machine was not quiet: others used {foreign} cores")
    target = arguments.results or (RESULTS if not (arguments.quick or arguments.only) else None)
    if target:
        report.write(results, facts, target, keep=bool(arguments.only))
        console.print(f"written to {target}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="less data, one round")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only groups with this in the name"
    )
    parser.add_argument("--data", default=str(REPOSITORY.parent), metavar="DIR", help="where benchmark data goes")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where the results go")
    return parser.parse_args()


def _all_groups(arguments: argparse.Namespace) -> list[Group]:
    """The storage, and the broker beside its peers; those ask Maven, so only when they are wanted."""
    found = groups(quick=arguments.quick)
    for name, peers in (
        (PULSAR, broker_groups),
        (PULSAR, perf_groups),
        (KAFKA, kafka_groups),
        (AMQP, amqp_groups),
        (SPARK, spark_groups),
        (LAKE, lake_groups),
        (PAUSES, pause_groups),
        (FUNCTIONS, function_groups),
        (TIERED, tiered_groups),
    ):
        if not arguments.only or any(wanted.startswith(name) for wanted in arguments.only):
            found += peers(quick=arguments.quick)
    return found


def _wanted(group: Group, names: list[str]) -> bool:
    return not names or any(name in group.name for name in names)


def _measure(plan: list[Group], data: str, console: Console, *, patience_s: float) -> list[report.Result]:
    results = []
    columns = (TextColumn("{task.description:44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=sum(g.rounds * len(g.runs) for g in plan))
        for group in plan:
            progress.update(task, description=f"{group.name}: waiting for a quiet machine")
            patience_s -= machine.wait_for_quiet(patience_s)
            quiet = machine.Quietness()
            rounds: list[Round] = []
            for number in range(group.rounds):
                found: Round = {}
                for run in group.runs:
                    progress.update(task, description=f"{group.name}, round {number + 1}: {run.key}")
                    found[run.key] = _once(run, data)
                    progress.advance(task)
                rounds.append(found)
            busy = round(quiet.foreign_cores(), 2)
            results += [row.result(group, rounds, busy) for row in group.rows]
    return results


def _once(run: Run, data: str) -> dict[str, float]:
    """One measurement in a fresh process and an empty folder, after the disk has settled."""
    folder = f"{data}/{run.key.replace('/', '_').replace(' ', '_')}"
    os.sync()
    command = [sys.executable, "-m", "bench.case", run.case, json.dumps(run.params), folder]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=run.timeout_s
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        machine.bury_orphans()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    sys.exit(main())
