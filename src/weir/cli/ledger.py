"""`weir ledger`: list, read, check and repair replicated ledgers.

Each command opens a ledger client and closes it at its end.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weir.broker.security.cluster_credentials import ClusterCredentialSettings, load_credentials
from weir.cli import ledger_views as views
from weir.cli.command import examples
from weir.cli.output import Column, Format, Output, csv_line
from weir.cli.remote import output_options
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.copying import stretches
from weir.ledger.marks import Marks
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.ledger.repair import LedgerReport, Repair, RepairReport, check_ledger
from weir.meta.connect import connect
from weir.model.errors import LedgerError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerMetadata
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.wire.entry import Entry

T = TypeVar("T")


@asynccontextmanager
async def ledger_session(runtime: Runtime, meta_url: str, secret: str = "") -> AsyncIterator[LedgerClient]:
    """Connect to the metadata and its bookies. `secret`: used if the environment has none."""
    meta = await connect(meta_url, runtime)
    directory = BookieDirectory(runtime.clock, meta)
    shown = await load_credentials(runtime.disk, _credentials(secret))
    pool = RemoteBookiePool(runtime, directory.resolve, tls=shown.client_tls, secret=shown.secret)
    client = LedgerClient(runtime, meta, pool, directory=directory)
    try:
        await client.start()
        yield client
    finally:
        await client.close()
        await directory.close()
        await pool.close()
        await meta.close()


def _credentials(secret: str) -> ClusterCredentialSettings:
    """Credentials of a cluster node: a command that connects to bookies acts as one."""
    names = ("SECRET", "CERTIFICATE", "KEY", "AUTHORITY")
    said = [os.environ.get(f"WEIR_CLUSTER_{name}", "") for name in names]
    return ClusterCredentialSettings(said[0] or secret, *said[1:])


def with_client(meta_url: str, work: Callable[[LedgerClient], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a client on the real runtime."""

    async def main(runtime: Runtime) -> T:
        async with ledger_session(runtime, meta_url) as client:
            return await work(client)

    return run(main)


#: Exit code if a ledger is not intact.
NOT_WHOLE = 1

_META_HELP = "The metadata store: file:/path/to/folder or etcd://host:port[,host:port]."


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that every command here has."""
    command = output_options(command)
    return click.option("--meta", "meta_url", required=True, envvar="WEIR_META", metavar="URL", help=_META_HELP)(
        command
    )


@click.group(
    epilog="""
\b
Examples:
  weir ledger list --meta etcd://127.0.0.1:2379
  weir ledger check 17 18 --meta file:/var/lib/weir/meta
  WEIR_META=etcd://127.0.0.1:2379 weir ledger replicate 17 --lost bookie-3
"""
)
def ledger() -> None:
    """List, read, check and repair replicated ledgers."""


@ledger.command(
    "list",
    epilog=examples("weir ledger list --meta etcd://127.0.0.1:2379", "weir ledger list --underreplicated -o csv"),
)
@click.option("--underreplicated", is_flag=True, help="Only ledgers marked for repair.")
@_common
def list_(meta_url: str, out: Output, underreplicated: bool) -> None:
    """List ledgers: state, quorums, size, and bookies whose copies are in doubt."""

    async def work(client: LedgerClient) -> None:
        suspects = await _suspects(client)
        found = [item for item in await client.list() if not underreplicated or item.ledger_id in suspects]
        data = [views.ledger_json(item, suspects.get(item.ledger_id, ())) for item in found]
        out.table(views.LEDGER_COLUMNS, views.ledger_rows(found, suspects), data=data)

    with_client(meta_url, work)


@ledger.command(epilog=examples("weir ledger show 17 --meta file:/var/lib/weir/meta"))
@click.argument("ledger_id", type=int, metavar="LEDGER")
@_common
def show(ledger_id: int, meta_url: str, out: Output) -> None:
    """Show one ledger: its fragments, and whether their bookies are available."""

    async def work(client: LedgerClient) -> None:
        found = await client.metadata(LedgerId(ledger_id))
        suspects = await _suspects(client)
        if out.json:
            _print_json(views.ledger_json(found, suspects.get(found.ledger_id, ())))
            return
        directory = client.context.directory
        present = dict.fromkeys(directory.writable(), "writable") | dict.fromkeys(
            directory.read_only(), "read-only"
        )
        out.table(views.LEDGER_COLUMNS, views.ledger_rows([found], suspects))
        out.gap()
        title = f"ledger {found.ledger_id}: {found.state.value}"
        out.table(("entries", Column("bookies", cut="end")), views.fragment_rows(found, present), title=title)

    with_client(meta_url, work)


@ledger.command(
    epilog="""
\b
Examples:
  weir ledger read 17 --meta $META                    all of it, one entry per line
  weir ledger read 17 --from 100 --to 199 --meta $META
  weir ledger read 17 --raw --meta $META > payloads   only the payloads
"""
)
@click.argument("ledger_id", type=int, metavar="LEDGER")
@click.option("--from", "first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry.")
@click.option("--to", "last", type=click.IntRange(min=0), help="Last entry; by default the current end.")
@click.option("--recover", is_flag=True, help="Fence and close the ledger first. Its writer is stopped for good.")
@click.option("--raw", is_flag=True, help="Write the payloads to standard output, one after the other.")
@_common
def read(
    *, ledger_id: int, first: int, last: int | None, recover: bool, raw: bool, meta_url: str, out: Output
) -> None:
    """Print entries. Of an open ledger, read up to the last confirmed entry; its writer continues."""

    show = _entry_printer(out, raw=raw)

    async def work(client: LedgerClient) -> None:
        reader = await client.open(LedgerId(ledger_id), recover=recover)
        try:
            end = None if last is None else EntryId(last)
            async with aclosing(reader.stream(EntryId(first), end)) as batches:
                async for batch in batches:
                    for entry in batch:
                        show(entry)
        finally:
            await reader.close()

    with_client(meta_url, work)


@ledger.command(epilog=examples("weir ledger check", "weir ledger check 12 13"))
@click.argument("ledger_ids", type=int, nargs=-1, metavar="[LEDGER]...")
@_common
@click.pass_context
def check(ctx: click.Context, ledger_ids: tuple[int, ...], meta_url: str, out: Output) -> None:
    """Read every entry from every replica, and report missing and damaged ones. Without LEDGER, check all.

    Exits with 1 if a replica is not intact."""

    async def work(client: LedgerClient) -> list[LedgerReport]:
        found = await _chosen(client, ledger_ids)
        confirmed = {item.ledger_id: await _confirmed(client, item) for item in found}
        with _progress() as progress:
            copies = sum(_copies(item, confirmed[item.ledger_id]) for item in found)
            task = progress.add_task("checking", total=copies)
            return [
                await check_ledger(
                    client.context,
                    item,
                    confirmed=confirmed[item.ledger_id],
                    progress=lambda entries, _: progress.advance(task, entries),
                )
                for item in found
            ]

    reports = with_client(meta_url, work)
    data = [views.report_json(report) for report in reports]
    out.table(views.CHECK_COLUMNS, views.check_rows(reports), data=data)
    if out.format in (Format.TABLE, Format.WIDE):
        lost = {report.ledger_id: report.lost() for report in reports if report.lost()}
        for ledger_id, entries in lost.items():
            _console().print(f"[red]ledger {ledger_id}: no reachable bookie has {views.some(entries)}[/red]")
    if not all(report.good for report in reports):
        ctx.exit(NOT_WHOLE)


@ledger.command(
    epilog="""
\b
Examples:
  weir ledger replicate --meta $META                        all marked ledgers
  weir ledger replicate 17 --meta $META                     copy missing entries to its bookies
  weir ledger replicate 17 --lost bookie-3 --meta $META     bookie-3 is gone for good
"""
)
@click.argument("ledger_ids", type=int, nargs=-1, metavar="[LEDGER]...")
@click.option("--lost", multiple=True, metavar="BOOKIE", help="Repair only this bookie's copies; may be repeated.")
@click.option("--fence-open", is_flag=True, help="Recover open ledgers of a lost bookie.")
@_common
@click.pass_context
def replicate(
    ctx: click.Context,
    *,
    ledger_ids: tuple[int, ...],
    lost: tuple[str, ...],
    fence_open: bool,
    meta_url: str,
    as_json: bool,
) -> None:
    """Restore the full number of replicas: replace lost bookies by others, and copy missing entries to present
    ones. Without LEDGER, repair the marked ledgers.

    Exits with 1 if a repair failed."""

    async def work(client: LedgerClient) -> list[RepairReport]:
        repair = Repair(client.context)
        reports = []
        with _progress() as progress:
            task = progress.add_task("copying", total=None)
            for ledger_id, suspects in (await _to_repair(client, ledger_ids, lost)).items():
                report = await repair.repair(
                    ledger_id,
                    suspects,
                    fence_open=fence_open,
                    progress=lambda entries, _: progress.advance(task, entries),
                )
                reports.append(report)
                if report.complete:
                    await _unmark(client, ledger_id, suspects)
        return reports

    reports = with_client(meta_url, work)
    if as_json:
        _print_json([views.repair_json(report) for report in reports])
    else:
        for line in [line for report in reports for line in views.repair_lines(report)] or [
            "no ledger is marked for repair"
        ]:
            _console().print(line)
    if not all(report.complete for report in reports):
        ctx.exit(NOT_WHOLE)


# --- helpers --------------------------------------------------------------------------------------------------


async def _suspects(client: LedgerClient) -> dict[LedgerId, tuple[BookieId, ...]]:
    marks = await Marks(client.context.runtime, client.context.meta).list()
    return {mark.ledger_id: mark.suspects for mark in marks}


async def _chosen(client: LedgerClient, ledger_ids: tuple[int, ...]) -> list[LedgerMetadata]:
    if not ledger_ids:
        return await client.list()
    return [await client.metadata(LedgerId(ledger_id)) for ledger_id in ledger_ids]


async def _confirmed(client: LedgerClient, ledger: LedgerMetadata) -> EntryId:
    """The last entry known to exist."""
    reader = await client.open(ledger.ledger_id, recover=False)
    try:
        return await reader.last_confirmed()
    except LedgerError:
        return reader.known_confirmed
    finally:
        await reader.close()


def _copies(ledger: LedgerMetadata, confirmed: EntryId) -> int:
    entries = sum(stretch.last - stretch.fragment.first_entry + 1 for stretch in stretches(ledger, confirmed))
    return entries * ledger.quorum.write


async def _to_repair(
    client: LedgerClient, ledger_ids: tuple[int, ...], lost: tuple[str, ...]
) -> dict[LedgerId, tuple[BookieId, ...]]:
    """The ledgers to repair, each with its suspect bookies."""
    named = tuple(BookieId(bookie_id) for bookie_id in lost)
    if not ledger_ids:
        marked = await _suspects(client)
        if not named:
            return marked
        return {
            ledger.ledger_id: named for ledger in await client.list() if any(b in named for b in ledger.bookies())
        }
    return {ledger.ledger_id: named or ledger.bookies() for ledger in await _chosen(client, ledger_ids)}


async def _unmark(client: LedgerClient, ledger_id: LedgerId, handled: tuple[BookieId, ...]) -> None:
    """Remove the ledger's mark if no other bookie is suspect."""
    marks = Marks(client.context.runtime, client.context.meta)
    for mark in await marks.list():
        if mark.ledger_id == ledger_id and all(bookie_id in handled for bookie_id in mark.suspects):
            await marks.clear(mark)


def _entry_printer(out: Output, *, raw: bool) -> Callable[[Entry], None]:
    """Print one line per entry as it arrives: a ledger may exceed memory."""

    def write_raw(entry: Entry) -> None:
        sys.stdout.buffer.write(entry.payload)

    def as_json(entry: Entry) -> None:
        click.echo(json.dumps(views.entry_json(entry, payload=bytes(entry.payload).hex())))

    def as_csv(entry: Entry) -> None:
        click.echo(csv_line((entry.entry_id, len(entry.payload), _readable(bytes(entry.payload)))), nl=False)

    def as_text(entry: Entry) -> None:
        click.echo(f"{entry.entry_id}\t{len(entry.payload)}\t{_readable(bytes(entry.payload))}")

    if raw:
        return write_raw
    if out.json:
        return as_json
    if out.format is Format.CSV:
        click.echo(csv_line(("entry", "bytes", "payload")), nl=False)
        return as_csv
    return as_text


def _readable(payload: bytes) -> str:
    """The payload as text if it is UTF-8, else as a Python literal."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return repr(payload)[2:-1]
    return text if text.isprintable() else repr(text)[1:-1]


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def _console() -> Console:
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def _progress() -> Progress:
    """A progress bar, on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
