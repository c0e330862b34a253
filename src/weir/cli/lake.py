"""`weir lake`: export topics as Iceberg tables, run the exporter, and show its progress."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from weir.cli.arguments import parse_pairs, parse_size
from weir.cli.command import examples
from weir.cli.output import Bytes, Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.spark_session import master_option, need_spark, place_of, quiet_session, spark_config
from weir.model.errors import ConfigError, LakeError
from weir.model.moments import parse_span_ms
from weir.model.topics import NamespaceName, TopicName

if TYPE_CHECKING:
    from weir.spark.lake.catalog import Definition
    from weir.spark.lake.export import Exported
    from weir.spark.lake.runner import LakeRunner
    from weir.spark.lake.upkeep import Limits, Tasks
    from weir.spark.tables.names import WeirCluster

log = logging.getLogger(__name__)

#: The interval between checks for due exports.
_STEP_S = 2.0
_UPKEEP_S = 3600.0
#: Files of an export belong to no snapshot until its commit.
_LEAST_ORPHANS_MS = 3_600_000
_UPKEEP = {
    "joined": "small files joined",
    "expired": "files of old days removed",
    "erased": "rows of erased keys removed",
    "snapshots": "snapshots expired",
    "orphans": "orphans removed",
}
#: For tests: names a step of an export or its tasks at which the process exits or halts.
_STOP_AT = "WEIR_LAKE_STOP_AT"


@click.group(
    epilog="""
\b
Examples:
  weir lake on orders                          a table beside the broker's data
  weir lake on shop/orders --catalog archive   all topics of a namespace, in a superuser's catalog
  weir lake on orders --tiered-after 1d        and delete old ledgers; brokers read them from the lake
  weir lake run --once                         export all messages acknowledged so far
  weir lake run                                export continuously, until Ctrl-C
  weir lake status                             the progress of each partition, and its table
"""
)
def lake() -> None:
    """Keep topics as Iceberg tables in a folder or an S3-compatible store."""


def _named(text: str) -> tuple[NamespaceName, TopicName | None]:
    """`tenant/namespace` is a namespace, everything else a topic."""
    if "://" not in text and text.count("/") == 1:
        return NamespaceName.parse(text), None
    topic = TopicName.parse(text)
    if topic.partition is not None:
        raise ConfigError(f"{text} is one partition", hint="name the topic")
    return topic.namespace, topic


def need_lake() -> None:
    """LakeError or SparkSetupError unless the extras are installed."""
    from importlib.util import find_spec

    from weir.model.diagnosis import install_command

    need_spark()
    missing = [name for name in ("pyiceberg", "sqlalchemy") if find_spec(name) is None]
    if missing:
        raise LakeError(
            f"the lake needs {' and '.join(missing)}, which is not installed",
            hint=f"install it with {install_command('lake')}",
        )


@lake.command(
    epilog=examples(
        "weir lake on orders",
        "weir lake on orders --to /srv/lake --keep 365d",
        "weir lake on orders --tiered-after 1d",
        "weir lake on shop/orders --catalog archive",
        "weir lake on public/default --to s3://lake/weir --option s3.endpoint=http://minio:9000",
    )
)
@click.argument("what", metavar="NAMESPACE|TOPIC")
@click.option(
    "--catalog",
    metavar="NAME",
    help="A catalog of `weir lake catalogs list`; the one called default, by default. Superusers may write a URL.",
)
@click.option(
    "--to",
    metavar="URL",
    help="For superusers: a folder, or s3://bucket/...; defines a catalog there for the tenant.",
)
@click.option("--keep", metavar="SPAN", help="Retention of messages in the lake, as in 365d; by default for ever.")
@click.option(
    "--tiered-after",
    metavar="SPAN",
    help="Delete exported ledgers of this age; brokers serve their messages from the lake.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="For superusers, with --to: an option of the store or catalog, with its pyiceberg name.",
)
@remote_options(changes=True)
def on(
    *,
    what: str,
    to: str | None,
    catalog: str | None,
    keep: str | None,
    tiered_after: str | None,
    options: tuple[str, ...],
    remote: Remote,
    as_json: bool,
) -> None:
    """Export a topic, or every topic of a namespace, into tables from now on. `weir lake run` exports."""
    need_lake()
    from weir.model.lake import LakeSelection
    from weir.spark.lake import catalog as lakes
    from weir.spark.lake.catalog import open_catalog
    from weir.spark.lake.topics import check_there, hold, skipped_topics

    namespace, topic = _named(what)
    place = place_of(remote, None)
    pairs = parse_pairs(options)
    # Report errors before storing any of it.
    keep_ms = None if keep is None else parse_span_ms(keep)
    tiered_after_ms = None if tiered_after is None else parse_span_ms(tiered_after)
    if topic is not None:
        check_there(place, topic)
    named = catalog is not None and ":" not in catalog
    if named and (to is not None or pairs):
        raise ConfigError(
            f"--catalog {catalog} names a catalog that defines its location and options",
            hint="leave --to and --option out, or define another one: weir lake catalogs set NAME --to URL",
        )
    if named:
        name = catalog or ""
    else:
        found = _found_default(place, plain=to is None and catalog is None and not pairs)
        if found is None:
            wanted = _placed(place, to, catalog, pairs)
            open_catalog(wanted)
            plain = to is None and catalog is None and not pairs
            name = lakes.ensure_catalog(place.access, wanted, namespace.tenant, "default" if plain else None)
        else:
            name = found
    lakes.select(
        place.access,
        namespace,
        None if topic is None else topic.local,
        LakeSelection(name, keep_ms, tiered_after_ms),
    )
    held = hold(place, namespace, topic)
    defined = next((one.defined for one in lakes.list_catalogs(place.access) if one.name == name), None)
    url = None if defined is None else defined.to
    where = f"catalog {name}" if url is None else url
    skipped = () if topic is not None else skipped_topics(place, namespace)
    if skipped and not as_json:
        names = ", ".join([*skipped[:3], *(["..."] if len(skipped) > 3 else [])])
        click.echo(
            f"{len(skipped)} internal topics are skipped ({names}); "
            f"weir lake on {namespace}/TOPIC exports one of them",
            err=True,
        )
    done(
        f"{what} is in the lake: {where} ({held} topic{'' if held == 1 else 's'} now)",
        as_json=as_json,
        to=url,
        catalog=name,
    )


def _found_default(place: "WeirCluster", *, plain: bool) -> str | None:
    """The default catalog, if it exists."""
    from weir.model.lake import DEFAULT_CATALOG
    from weir.spark.lake.catalog import list_catalogs

    there = plain and any(one.name == DEFAULT_CATALOG for one in list_catalogs(place.access))
    return DEFAULT_CATALOG if there else None


def _placed(place: "WeirCluster", to: str | None, catalog: str | None, options: Mapping[str, str]) -> "Definition":
    """A definition with addresses, as only superusers may write one."""
    from weir.client.streams import listeners
    from weir.spark.lake import catalog as lakes

    data = listeners(place.access).data
    url = lakes.where(to, data)
    found = lakes.Definition(url, lakes.catalog_of(catalog, url, data), options)
    found.check()
    return found


@lake.command(epilog=examples("weir lake off orders", "weir lake off public/default"))
@click.argument("what", metavar="NAMESPACE|TOPIC")
@remote_options(changes=True)
def off(*, what: str, remote: Remote, as_json: bool) -> None:
    """Stop exporting a topic or namespace. Its tables stay."""
    need_lake()
    from weir.spark.lake import catalog as lakes
    from weir.spark.lake.topics import let_go

    namespace, topic = _named(what)
    place = place_of(remote, None)
    was_on = lakes.turn_off(place.access, namespace, None if topic is None else topic.local)
    let_go(place, namespace, topic)
    done(f"{what} {'is no longer' if was_on else 'was not'} in the lake", as_json=as_json)


@lake.group(
    epilog=examples(
        "weir lake catalogs list",
        "weir lake catalogs set archive --to s3://lake/weir --option s3.endpoint=http://minio:9000",
        "weir lake catalogs remove archive",
    )
)
def catalogs() -> None:
    """Manage table catalogs: superusers define them, namespaces select one by name."""


@catalogs.command(
    "set",
    epilog=examples(
        "weir lake catalogs set archive --to /srv/lake",
        "weir lake catalogs set archive --to s3://lake/weir --option s3.endpoint=http://minio:9000 --tenant shop",
        "weir lake catalogs set archive --to s3://lake --catalog http://catalog:8181",
    ),
)
@click.argument("name")
@click.option(
    "--to", metavar="URL", help="A folder, or s3://bucket/...; by default `lake` beside the broker's data."
)
@click.option(
    "--catalog",
    metavar="URL",
    help="sqlite:///FILE (beside the tables, by default), postgresql://..., or a REST one.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the store or catalog, with its pyiceberg name; docs/reference/lake.md lists them.",
)
@click.option(
    "--tenant", "tenants", multiple=True, metavar="TENANT", help="A tenant that may select it; by default all."
)
@remote_options
def set_catalog(
    *,
    name: str,
    to: str | None,
    catalog: str | None,
    options: tuple[str, ...],
    tenants: tuple[str, ...],
    remote: Remote,
    as_json: bool,
) -> None:
    """Define or redefine a catalog. Needs a superuser."""
    need_lake()
    from weir.model.lake import LakeCatalog, check_catalog_name
    from weir.spark.lake import catalog as lakes
    from weir.spark.lake.catalog import open_catalog

    check_catalog_name(name)
    place = place_of(remote, None)
    wanted = _placed(place, to, catalog, parse_pairs(options))
    open_catalog(wanted)
    defined = LakeCatalog(name, wanted.to, wanted.catalog, wanted.options, tenants or None)
    lakes.put_catalog(place.access, defined)
    whose = ", ".join(tenants) if tenants else "every tenant"
    done(f"catalog {name} is defined: {wanted.to}, for {whose}", as_json=as_json, name=name, to=wanted.to)


@catalogs.command("list", epilog=examples("weir lake catalogs list", "weir lake catalogs list -o wide"))
@remote_options
def list_catalogs(*, remote: Remote, out: Output) -> None:
    """List the catalogs that you may select; superusers see all, with their addresses."""
    from weir.spark.lake import catalog as lakes

    rows: list[tuple[object, ...]] = []
    for one in lakes.list_catalogs(place_of(remote, None).access):
        found = one.defined
        if found is None:
            rows.append((one.name, one.kind, None, None, None, None))
            continue
        pairs = ", ".join(f"{name}={value}" for name, value in sorted(found.options.items()))
        tenants = "*" if found.tenants is None else ", ".join(found.tenants)
        rows.append((one.name, one.kind, found.to, tenants, found.catalog, pairs))
    columns = [
        Column("name"),
        Column("kind"),
        Column("to", cut="start"),
        Column("tenants"),
        Column("catalog", wide=True),
        Column("options", wide=True),
    ]
    out.table(columns, rows)


@catalogs.command("remove", epilog=examples("weir lake catalogs remove archive"))
@click.argument("name")
@remote_options
def remove(*, name: str, remote: Remote, as_json: bool) -> None:
    """Remove a catalog that no namespace selects. Its tables stay. Needs a superuser."""
    from weir.spark.lake import catalog as lakes

    lakes.remove_catalog(place_of(remote, None).access, name)
    done(f"catalog {name} is removed", as_json=as_json, name=name)


@lake.command(
    epilog=examples(
        "weir lake run --once",
        "weir lake run --age 1min --size 64M",
        "weir lake run --master spark://head:7077",
    )
)
@click.option("--once", is_flag=True, help="Export all messages acknowledged so far, and exit.")
@click.option(
    "--age", default="5min", show_default=True, metavar="SPAN", help="Export when a message has waited this long."
)
@click.option("--size", default="128M", show_default=True, metavar="SIZE", help="Export when so much data waits.")
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@master_option("Where Spark's tasks run; `none`: without Spark")
@click.option("--memory", default="1g", show_default=True, help="Memory of Spark's driver.")
@remote_options(changes=True)
def run(
    *,
    once: bool,
    age: str,
    size: str,
    kafka: str | None,
    master: str,
    memory: str,
    remote: Remote,
    as_json: bool,
) -> None:
    """Export the topics in the lake: when a message has waited too long, or enough data waits."""
    need_lake()
    from weir.runtime.real import stop_at
    from weir.spark.lake.export import Exporter, LocalJobs, SparkJobs
    from weir.spark.lake.runner import LakeRunner, Trigger

    place = place_of(remote, kafka)
    trigger = Trigger(parse_span_ms(age) / 1000, _bound(size))
    stopped: list[int] = []
    if not once:
        # Before Spark starts, because its JVM ignores Ctrl-C.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: stopped.append(number))
    config = {"spark.driver.memory": memory, **spark_config()}
    spark = None if master == "none" else quiet_session("weir-lake", master=master, config=config)
    try:
        reached = stop_at(os.environ.get(_STOP_AT))
        jobs = LocalJobs() if spark is None else SparkJobs(spark, reached=reached)
        exporter = Exporter(place, jobs, reached=reached)
        with _Bars(shown=not as_json) as bars:
            runner = LakeRunner(place, exporter, trigger, told=bars)
            if once:
                _once(runner, as_json=as_json)
            else:
                _go_on(runner, jobs, lambda: bool(stopped), as_json=as_json)
    finally:
        if spark is not None:
            spark.stop()


@lake.command(epilog=examples("weir lake upkeep", "weir lake upkeep --snapshots 1h --orphans 2h"))
@click.option("--snapshots", default="1d", show_default=True, metavar="SPAN", help="Retention of old snapshots.")
@click.option(
    "--orphans", default="1d", show_default=True, metavar="SPAN", help="Remove older files that no table uses."
)
@click.option("--small", default="32M", show_default=True, metavar="SIZE", help="Join files below this size,")
@click.option("--files", default=8, show_default=True, type=click.IntRange(min=2), help="if a day has so many.")
@click.option(
    "--master", default="none", show_default=True, help="Where Spark's tasks run; `none`: in this process."
)
@remote_options(changes=True)
def upkeep(
    *, snapshots: str, orphans: str, small: str, files: int, master: str, remote: Remote, as_json: bool
) -> None:
    """Join small files; remove old snapshots, orphan files, expired data, erased keys and deleted topics.

    `weir lake run` does the same every hour.
    """
    need_lake()
    from weir.spark.lake.export import Exporter, LocalJobs, SparkJobs
    from weir.spark.lake.runner import LakeRunner, Trigger
    from weir.spark.lake.upkeep import Limits

    if parse_span_ms(orphans) < _LEAST_ORPHANS_MS:
        raise ConfigError(f"--orphans {orphans} would remove files of running exports", hint="give 1h or longer")
    place = place_of(remote, None)
    spark = None if master == "none" else quiet_session("weir-lake", master=master, config=spark_config())
    try:
        jobs = LocalJobs() if spark is None else SparkJobs(spark)
        limits = Limits(
            _bound(small),
            files,
            snapshots_s=parse_span_ms(snapshots) / 1000,
            orphans_s=parse_span_ms(orphans) / 1000,
        )
        failed = _look_after(LakeRunner(place, Exporter(place, jobs), Trigger()), jobs, limits, as_json=as_json)
        _all_done(failed, "maintained")
    finally:
        if spark is not None:
            spark.stop()


def _bound(text: str) -> int:
    """Bytes; an unreachable number for no bound."""
    found = parse_size(text)
    return found if found >= 0 else sys.maxsize


def _look_after(
    runner: "LakeRunner", tasks: "Tasks", limits: "Limits", *, as_json: bool
) -> "dict[TopicName, LakeError]":
    """Tables whose maintenance failed, with the reason."""
    import json
    from dataclasses import asdict

    failed = {}
    for topic, did in runner.look_after(tasks, limits):
        if isinstance(did, LakeError):
            failed[topic] = did
        if isinstance(did, str | LakeError):
            said = did if isinstance(did, str) else f"retried later: {did.what}"
            click.echo(json.dumps({"topic": str(topic), "said": said}) if as_json else f"{topic}: {said}")
            continue
        told = {name: count for name, count in asdict(did).items() if as_json or count}
        words = ", ".join(f"{_UPKEEP[name]}: {count}" for name, count in told.items()) or "nothing to do"
        click.echo(json.dumps({"topic": str(topic), **told}) if as_json else f"{topic}: {words}")
    return failed


def _once(runner: "LakeRunner", *, as_json: bool) -> None:
    found, failed = runner.once()
    if as_json:
        from weir.cli.output import print_json

        print_json({"exported": [_told(one) for one in found], "failed": {str(k): v for k, v in failed.items()}})
    else:
        for one in found:
            click.echo(_line(one))
        if not found and not failed:
            click.echo(
                "everything is in the lake"
                if runner.topics()
                else "the lake is on for no topic: weir lake on TOPIC"
            )
    _all_done(failed, "fully exported")


def _all_done(failed: "Mapping[TopicName, object]", what: str) -> None:
    """LakeError, for the exit code, if some topics failed."""
    if failed:
        first = next(iter(failed.items()))
        many = "1 topic was" if len(failed) == 1 else f"{len(failed)} topics were"
        raise LakeError(f"{many} not {what}; {first[0]}: {first[1]}")


def _go_on(runner: "LakeRunner", tasks: "Tasks", stopped: Callable[[], bool], *, as_json: bool) -> None:
    import json

    from weir.spark.lake.catalog import in_a_line
    from weir.spark.lake.upkeep import Limits

    looked_s = time.monotonic()
    logging.getLogger("weir").setLevel(logging.INFO)
    click.echo(f"exporting to the lake as process {os.getpid()}", err=True)
    while not stopped():
        for one in runner.step():
            click.echo(json.dumps(_told(one)) if as_json else _line(one))
        if time.monotonic() - looked_s > _UPKEEP_S:
            try:
                _look_after(runner, tasks, Limits(), as_json=as_json)
            except Exception as failure:  # catalogs and stores raise many types; exports continue
                log.warning("table maintenance failed, will retry: %s", in_a_line(failure))
            looked_s = time.monotonic()
        for _ in range(int(_STEP_S / 0.1)):
            if stopped():
                break
            time.sleep(0.1)


def _told(one: "Exported") -> dict[str, Any]:
    return {
        "topic": str(one.topic),
        "rows": one.rows,
        "files": one.files,
        "bytes": one.bytes,
        "lost": one.lost,
        "seconds": round(one.seconds, 3),
    }


def _line(one: "Exported") -> str:
    lost = f", {one.lost} had been deleted before" if one.lost else ""
    files = "1 file" if one.files == 1 else f"{one.files} files"
    return f"{one.topic}: {one.rows} rows in {files}{lost}, {one.rows / max(one.seconds, 0.001):.0f} rows/s"


class _Bars:
    """A progress bar for the topic under export."""

    def __init__(self, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bars = Progress(
            *columns, console=console, transient=True, disable=not shown or not console.is_terminal
        )
        self._task: Any = None

    def __enter__(self) -> "_Bars":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, topic: TopicName, offsets: int) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(str(topic), total=offsets)

    def advance(self, offsets: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, offsets)


@lake.command(epilog=examples("weir lake status", "weir lake status orders --json", "weir lake status -o wide"))
@click.argument("what", metavar="[NAMESPACE|TOPIC]", required=False)
@remote_options
def status(*, what: str | None, remote: Remote, out: Output) -> None:
    """Show the exported offset, the backlog and the table of each partition.

    Brokers read offsets before `tiered` from the lake: the ledgers are deleted.
    """
    need_lake()
    from weir.spark.lake.catalog import tiered_parts
    from weir.spark.lake.runner import standings

    place = place_of(remote, None)
    rows: list[tuple[object, ...]] = []
    wanted = None if what is None else _named(what)

    def chosen(name: TopicName) -> bool:
        return wanted is None or (name.namespace == wanted[0] and wanted[1] in (None, name))

    found = list(standings(place, chosen))
    tiers = tiered_parts(place.access, [one.name for one, _, _ in found])
    for one, table, parts in found:
        snapshot = None if table is None else table.table.current_snapshot()
        summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
        size, files = Bytes(int(summary.get("total-files-size", 0))), int(summary.get("total-data-files", 0))
        location, catalog = one.definition.to if table is None else table.location, one.definition.catalog
        tiered = tiers[one.name]
        for part in parts:
            there = tiered.get(part.partition) or {}
            rows.append(
                (
                    *(str(one.name), part.partition, part.exported, part.end, part.lag),
                    *(there.get("endOffset"), location, files, size, catalog),
                    *(Bytes(there["bytes"]) if there else None, there.get("problem", "")),
                )
            )
    columns = [
        Column("topic", cut="start"),
        Column("partition"),
        Column("exported"),
        Column("end"),
        Column("lag"),
        Column("tiered"),
        Column("table", cut="start"),
        Column("files", wide=True),
        Column("size", wide=True),
        Column("catalog", wide=True),
        Column("tiered size", wide=True),
        Column("problem", wide=True),
    ]
    out.table(columns, rows)
