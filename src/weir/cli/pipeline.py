"""`weir pipeline`: Spark's declarative pipelines, with topics as sources and sinks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from weir.cli.command import examples
from weir.cli.output import Output, print_json
from weir.cli.remote import Remote, output_options, remote_options
from weir.cli.spark_session import need_spark, place_of, quiet_session
from weir.model.errors import SparkSetupError
from weir.model.topics import TopicName

if TYPE_CHECKING:
    from weir.spark.pipelines.resolution import Resolved
    from weir.spark.pipelines.run import State
    from weir.spark.pipelines.spec import Spec

_FOLDER = click.option(
    "-f",
    "--folder",
    default=".",
    metavar="FOLDER",
    help="The pipeline's folder or file; by default the current folder.",
)
_MASTER = click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")


@click.group(
    epilog="""
\b
Examples:
  weir pipeline init shop --source orders --sink clean
  weir pipeline run -f shop --dry-run      check the schemas against the registry; write nothing
  weir pipeline run -f shop --once         process the current input once
  weir pipeline run -f shop                process new input, until Ctrl-C or weir pipeline stop
  weir pipeline status -f shop
  weir pipeline lineage -f shop --to lineage.svg
"""
)
def pipeline() -> None:
    """Run Spark's declarative pipelines, in Python and SQL, with topics as sources and sinks."""


@pipeline.command(
    epilog=examples("weir pipeline init shop", "weir pipeline init shop --source orders --sink clean")
)
@click.argument("name")
@click.option("--source", default="orders", show_default=True, metavar="TOPIC", help="An input topic.")
@click.option("--sink", default="clean", show_default=True, metavar="TOPIC", help="An output topic.")
def init(*, name: str, source: str, sink: str) -> None:
    """Create a folder with a pipeline's file, and examples in Python and SQL."""
    need_spark()
    from weir.spark.pipelines.spec import make

    for word in (source, sink):
        TopicName.parse(word)
    for path in make(Path(name), source=source, sink=sink):
        click.echo(path)
    click.echo(f"next: weir pipeline run -f {name} --dry-run", err=True)


@pipeline.command(
    epilog=examples(
        "weir pipeline run --dry-run",
        "weir pipeline run --once",
        "weir pipeline run -f shop --every 30",
        "weir pipeline run -f shop --detach",
    )
)
@_FOLDER
@click.option("--dry-run", is_flag=True, help="Check the pipeline; write nothing.")
@click.option("--once", is_flag=True, help="Run one update over the current input.")
@click.option(
    "--every", "every_s", default=5.0, show_default=True, metavar="SECONDS", help="Interval between updates."
)
@click.option("--detach", is_flag=True, help="Run in the background and log to storage/run.log.")
@_MASTER
@click.option("--memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@remote_options(changes=True)
def run(
    *,
    folder: str,
    dry_run: bool,
    once: bool,
    every_s: float,
    detach: bool,
    master: str,
    memory: str,
    kafka: str | None,
    remote: Remote,
    out: Output,
) -> None:
    """Run a pipeline. Exits with 1 if an update fails, or the dry run finds problems."""
    need_spark()
    from weir.spark.pipelines.run import alone
    from weir.spark.pipelines.spec import find, load

    spec = load(find(folder))
    if dry_run:
        _dry_run(spec, remote, kafka, master, out)
        return
    if detach:
        _detach(spec)
        return
    with alone(spec.storage):
        if not _run(spec, remote, kafka, master, memory, every_s=every_s, once=once):
            sys.exit(1)


def _resolved(spec: "Spec", remote: Remote, kafka: str | None, master: str) -> "tuple[Resolved, str]":
    """Resolve by a plain session, which starts faster than one with Spark Connect."""
    from weir.spark.pipelines.graph import read
    from weir.spark.pipelines.resolution import resolve

    place = place_of(remote, kafka)
    spark = quiet_session(f"weir-pipeline-{spec.name}", master=master)
    try:
        return resolve(spec, place, read(spec, spark)), place.kafka
    finally:
        spark.stop()


def _dry_run(spec: "Spec", remote: Remote, kafka: str | None, master: str, out: Output) -> None:
    found, _ = _resolved(spec, remote, kafka, master)
    flows = [{"flow": one.name, "reads": list(one.inputs), "writes": one.target} for one in found.graph.flows]
    if out.json:
        print_json({"pipeline": spec.name, "flows": flows, "problems": found.problems})
    else:
        for one in found.graph.flows:
            click.echo(f"{one.name}: {', '.join(one.inputs) or 'nothing'} -> {one.target}")
        for name in found.to_register:
            click.echo(f"{name}: its topic has no schema; the pipeline creates one")
        for problem in found.problems:
            click.echo(f"problem: {problem}", err=True)
        click.echo(f"{len(found.graph.flows)} flows, {len(found.problems)} problems", err=True)
    if found.problems:
        sys.exit(1)


def _detach(spec: "Spec") -> None:
    """Run the same command without --detach, in its own session."""
    from weir.spark.pipelines.run import alone

    with alone(spec.storage):
        pass
    command = [sys.executable, "-m", "weir.cli.main", *(word for word in sys.argv[1:] if word != "--detach")]
    log = spec.storage / "run.log"
    with log.open("ab") as into:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=into, stderr=into, start_new_session=True
        )
    click.echo(f"process {started.pid}; see {log}, and weir pipeline status")


def _run(
    spec: "Spec", remote: Remote, kafka: str | None, master: str, memory: str, *, every_s: float, once: bool
) -> bool:
    from weir.spark.pipelines.run import Runner, State, check_own, connect, end_orphan, keep_running, write

    check_own(spec.storage, spec.name)
    end_orphan(spec.storage, spec.name)
    ended, environment = Event(), dict(os.environ)
    state = State(spec.name, os.getpid(), "starting", time.time())
    write(spec.storage, state)

    def end(number: int, _: object) -> None:
        """End after the current update; at once before the first one, or on a second signal."""
        again = ended.is_set() and number == signal.SIGINT
        ended.set()
        if state.state == "starting" or again:
            raise SystemExit(130)
        if number == signal.SIGINT:
            os.write(2, b"it ends after the update that it is at; Ctrl-C again ends it at once\n")

    def listen() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)

    listen()

    def say(line: str) -> None:
        state.say(line)
        write(spec.storage, state)
        click.echo(line)

    try:
        place = place_of(remote, kafka)
        session = connect(spec, master, memory, state)
        listen()  # PySpark installed its own Ctrl-C handler, which would abort the current update
        session.when_dead(lambda: _spark_died(spec, state, None if once or ended.is_set() else environment))
        try:
            runner = Runner(spec, place, session.spark, say)
            if runner.resolved.problems:
                for problem in runner.resolved.problems:
                    click.echo(f"problem: {problem}", err=True)
                raise SparkSetupError(
                    f"the pipeline has {len(runner.resolved.problems)} problems",
                    hint="fix them, and run it again",
                )
            done = keep_running(runner, spec, state, every_s=every_s, once=once, ended=ended)
        finally:
            session.stop()
    except BaseException as failure:
        state.state = "stopped" if isinstance(failure, SystemExit) else "failed"
        state.error = "" if state.state == "stopped" else (str(failure).strip() or repr(failure)).splitlines()[0]
        write(spec.storage, state)
        raise
    if state.error:
        click.echo(f"failed: {state.error}", err=True)
    return done


def _spark_died(spec: "Spec", state: "State", again: dict[str, str] | None) -> None:
    """Restart the process from its checkpoints, with its original environment (`again`; None: exit): the JVM has
    ended, so this process cannot continue."""
    from weir.spark.pipelines.run import write

    state.state, state.error = "failed" if again is None else "starting", "Spark's process has ended"
    state.failures += 1
    write(spec.storage, state)
    click.echo(f"failed: {state.error}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if again is not None:
        os.execve(sys.executable, [sys.executable, "-m", "weir.cli.main", *sys.argv[1:]], again)
    os._exit(1)


@pipeline.command(epilog=examples("weir pipeline status", "weir pipeline status -f shop --json"))
@_FOLDER
@output_options
def status(*, folder: str, out: Output) -> None:
    """Show whether a pipeline runs, its updates, and its last error."""
    need_spark()
    from weir.spark.pipelines.run import read
    from weir.spark.pipelines.spec import find, load

    spec = load(find(folder))
    found = read(spec.storage)
    fields: list[tuple[str, Any]] = [
        ("pipeline", spec.name),
        ("state", found.state),
        ("process", found.pid or None),
        ("since", _moment(found.since)),
        ("updates", found.updates),
        ("last update", _moment(found.last_update)),
        ("last update took", f"{found.last_seconds:.1f} s" if found.last_update else None),
        ("failures in a row", found.failures),
        ("error", found.error or None),
        ("said", "\n".join(found.said[-5:]) or None),
    ]
    out.fields(fields)


def _moment(seconds: float) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else None


@pipeline.command(epilog=examples("weir pipeline stop", "weir pipeline stop -f shop"))
@_FOLDER
def stop(*, folder: str) -> None:
    """Stop a running pipeline after its current update."""
    need_spark()
    from weir.spark.pipelines.run import stop as stop_it
    from weir.spark.pipelines.spec import find, load

    spec = load(find(folder))
    click.echo(f"{spec.name} is stopped" if stop_it(spec.storage) else f"{spec.name} does not run")


@pipeline.command(
    epilog=examples(
        "weir pipeline lineage --to lineage.svg",
        "weir pipeline lineage --to lineage.png",
        "weir pipeline lineage --json",
    )
)
@_FOLDER
@click.option("--to", "target", metavar="FILE", help="The image file: .svg, or .png with matplotlib.")
@_MASTER
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@remote_options
def lineage(
    *, folder: str, target: str | None, master: str, kafka: str | None, remote: Remote, out: Output
) -> None:
    """Show the inputs and outputs of each flow: as an image, a list, or an OpenLineage event (--json)."""
    need_spark()
    from uuid import uuid4

    from weir.spark.pipelines import lineage as drawing
    from weir.spark.pipelines import lineage as openlineage
    from weir.spark.pipelines.spec import find, load

    spec = load(find(folder))
    found, servers = _resolved(spec, remote, kafka, master)
    for problem in found.problems:
        click.echo(f"problem: {problem}", err=True)
    if target is not None:
        drawing.write(found.graph, spec.name, Path(target))
        click.echo(target)
    elif out.json:
        print_json({"events": openlineage.events(spec, found.graph, servers, run=uuid4(), kind="OTHER")})
    else:
        for one in found.graph.flows:
            click.echo(f"{one.name}: {', '.join(one.inputs) or 'nothing'} -> {one.target}")
