"""The process that runs one function on Spark: `python -m weir.spark.functions.worker`, started by its runner."""

import logging
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from weir.client import functions as rest
from weir.client.blocking import Access
from weir.functions.counting import Counts, Reports
from weir.functions.loading import look
from weir.functions.options import from_text
from weir.functions.parent import end_with_parent
from weir.functions.place import Place
from weir.model.errors import FunctionError, SparkSetupError, WeirError
from weir.model.topics import TopicName

#: How long a broker may be away.
_PATIENCE_S = 60.0
_LOOK_S = 0.2


@click.command()
@click.argument("name")
@click.option("--url", required=True)
@click.option("--ca")
@click.option("--kafka")
@click.option("--checkpoints")
@click.option("--level", default="WARNING")
def main(*, name: str, url: str, ca: str | None, kafka: str | None, checkpoints: str | None, level: str) -> None:
    """Run a function on Spark until a signal comes."""
    logging.basicConfig(level=level, format="%(levelname)s %(message)s")
    stopped: list[int] = []
    # Before Spark starts, which has the JVM ignore Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _frame: stopped.append(found))
    end_with_parent()
    access = Access(url, os.environ.get("WEIR_TOKEN"), ca, _PATIENCE_S)
    folder = Path(checkpoints) if checkpoints else Path.home() / ".local" / "state" / "weir" / "functions"
    try:
        serve(access, TopicName.parse(name), kafka, folder, stopped)
    except WeirError as failure:
        click.echo(str(failure), err=True)
        sys.exit(1)


def serve(access: Access, name: TopicName, kafka: str | None, folder: Path, stopped: list[int]) -> None:
    try:
        from weir.spark.functions.query import start, task_of
        from weir.spark.sessions import session
        from weir.spark.sql.cluster import WeirCluster
    except ImportError as missing:
        raise SparkSetupError(f"the function runs on Spark, and {missing.name} is not installed") from None
    place, cluster = Place.find(access, kafka), WeirCluster.find(access, kafka)
    function = rest.get_function(access, name).function
    options, counts = from_text(function.options), Counts()
    look(function.code, function.file, function.entry)
    where = f"{platform.node()}, process {os.getpid()}"
    started_ms, state = time.time_ns() // 1_000_000, ["starting"]
    reports = Reports(access, function, lambda: counts.stats(function, state[0], where, started_ms))
    spark = None
    try:
        task = task_of(place, function)
        spark = session(
            f"weir-function-{name.local}", master=options.master, config={"spark.driver.memory": options.memory}
        )
        query = start(spark, cluster, task, str(folder / function.id))
        state[0] = "running"
        reports.tell()
        _follow(query, counts, stopped)
        state[0] = "stopped"
    except BaseException:
        state[0] = "failed"
        raise
    finally:
        if spark is not None:
            spark.stop()
        reports.close()


def _follow(query: Any, counts: Counts, stopped: list[int]) -> None:
    """Until it shall stop; FunctionError if the query ends by itself."""
    seen = -1
    while not stopped and query.isActive:
        for progress in query.recentProgress:
            if progress.batchId > seen and progress.numInputRows:
                seen = progress.batchId
                count(counts, progress)
        time.sleep(_LOOK_S)
    if stopped:
        query.stop()
        return
    failure = query.exception()
    lines = str(failure).strip().splitlines()
    raise FunctionError(f"the query has ended: {lines[0] if lines else 'without a word'}")


def count(counts: Counts, progress: Any) -> None:
    """What a micro-batch says of itself."""
    from weir.spark.functions.query import COUNTED

    counts.received += progress.numInputRows
    found = progress.observedMetrics.get(COUNTED)
    if found is not None:
        counts.sent += found["sent"] or 0
        counts.dead += found["dead"] or 0
    counts.took(progress.durationMs.get("triggerExecution", 0) / 1000)
    counts.state_keys = sum(one.numRowsTotal for one in progress.stateOperators)
    counts.state_bytes = sum(one.memoryUsedBytes for one in progress.stateOperators)


if __name__ == "__main__":
    main()
