"""The process that runs one function on Spark: `python -m weir.spark.functions.worker`, started by its runner."""

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import click

from weir.client import functions as rest
from weir.client.admin import Access
from weir.functions.executor_pool import Executors
from weir.functions.executor_process import end_with_parent
from weir.functions.executor_protocol import SchemaVersion
from weir.functions.function_code import look
from weir.functions.micro_batch import setup_of
from weir.functions.options import FunctionOptions, from_text
from weir.functions.stats import Counts, Origin, Reports
from weir.functions.subscriptions import Place, leave_dropped, subscribe
from weir.model.definitions import Function, FunctionStats
from weir.model.errors import FunctionError, SparkSetupError, WeirError
from weir.model.topics import TopicName

#: How long a broker may be away.
_PATIENCE_S = 60.0
_LOOK_S = 0.2


@click.command()
@click.argument("name")
@click.option("--url", required=True)
@click.option("--ca")
@click.option("--cert")
@click.option("--cert-key")
@click.option("--kafka")
@click.option("--checkpoints", required=True)
@click.option("--restarts", default=0)
@click.option("--level", default="WARNING")
def main(
    *,
    name: str,
    url: str,
    ca: str | None,
    cert: str | None,
    cert_key: str | None,
    kafka: str | None,
    checkpoints: str,
    restarts: int,
    level: str,
) -> None:
    """Run a function on Spark until a signal comes."""
    logging.basicConfig(level=level, format="%(levelname)s %(message)s")
    stopped: list[int] = []
    # Before Spark starts, which has the JVM ignore Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _frame: stopped.append(found))
    end_with_parent()
    access = Access(url, os.environ.get("WEIR_TOKEN"), ca, _PATIENCE_S, cert, cert_key)
    try:
        serve(
            access,
            TopicName.parse(name),
            kafka=kafka,
            folder=Path(checkpoints),
            restarts=restarts,
            stopped=stopped,
        )
    except WeirError as failure:
        click.echo(str(failure), err=True)
        sys.exit(1)


def serve(
    access: Access, name: TopicName, *, kafka: str | None, folder: Path, restarts: int, stopped: list[int]
) -> None:
    try:
        from py4j.protocol import Py4JError

        from weir.spark.functions.query import start, task_of
        from weir.spark.spark_session import session
        from weir.spark.sql.stream_query import unread
        from weir.spark.tables.names import WeirCluster
    except ImportError as missing:
        raise SparkSetupError(f"the function runs on Spark, and {missing.name} is not installed") from None
    place, cluster = Place.find(access, kafka), WeirCluster.find(access, kafka)
    function = rest.get_function(access, name).function
    options, counts, state = from_text(function.options), Counts(), ["starting"]
    look(function.code, function.file, function.entry)
    origin = Origin.here(options.parallelism, restarts)
    checkpoint, scratch = folder / function.id, folder / f"{function.id}-scratch"

    def stats() -> FunctionStats:
        with suppress(WeirError, OSError):  # as last known, if that cannot be said now
            counts.lag = unread(cluster, function.inputs, checkpoint, latest_first=options.start == "latest")
        return counts.stats(function, state[0], origin)

    reports = Reports(access, function, stats)
    spark = None
    try:
        subscribe(access, function)
        task = task_of(place, function)
        check_loads(function, options, task.schemas)
        rmtree(scratch, ignore_errors=True)  # of one that was killed
        config = {"spark.driver.memory": options.memory}
        config |= {"spark.local.dir": str(scratch)} if options.master.startswith("local") else {}
        spark = session(f"weir-function-{name.local}", master=options.master, config=config)
        query = start(spark, cluster, task, str(checkpoint))
        leave_dropped(access, function)
        state[0] = "running"
        reports.tell()
        try:
            _follow(query, counts, stopped)
        except (Py4JError, OSError):
            raise FunctionError("the query has ended: the JVM that drove it is gone") from None
        state[0] = "stopped"
    except BaseException:
        state[0] = "failed"
        raise
    finally:
        if spark is not None:
            with suppress(OSError, Py4JError):  # the JVM may be what has died
                spark.stop()
            rmtree(scratch, ignore_errors=True)
        reports.close()


def check_loads(
    function: Function, options: FunctionOptions, schemas: Mapping[str, Sequence[SchemaVersion]]
) -> None:
    """FunctionError says why the code cannot be loaded, before there is a Spark that would say it in its way."""
    trial = Executors(setup_of(function, options, schemas), 1)
    try:
        trial.start()
    finally:
        trial.close()


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
    from weir.spark.sql.stream_query import told

    failure = query.exception()
    raise FunctionError(f"the query has ended: {'without a word' if failure is None else told(failure)}")


def count(counts: Counts, progress: Any) -> None:
    """What a micro-batch says of itself."""
    from weir.spark.functions.query import COUNTED

    counts.received += progress.numInputRows
    found = progress.observedMetrics.get(COUNTED)
    if found is not None:
        counts.sent += found["sent"] or 0
        counts.failed += found["failed"] or 0
        counts.dead += found["dead"] or 0
        counts.retried = counts.failed - counts.dead
    counts.took(progress.durationMs.get("triggerExecution", 0) / 1000)
    counts.state_keys = sum(one.numRowsTotal for one in progress.stateOperators)
    counts.state_bytes = sum(one.memoryUsedBytes for one in progress.stateOperators)


if __name__ == "__main__":
    main()
