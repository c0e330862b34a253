"""Output of `weir ledger`: JSON for programs, tables for people."""

from datetime import UTC, datetime
from typing import Any

from weir.cli.output import Bytes, Column
from weir.ledger.repair import LedgerReport, RepairReport, ReplicaReport
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerMetadata, LedgerState
from weir.wire.entry import Entry

_SHOWN_ENTRIES = 8


def ledger_json(ledger: LedgerMetadata, suspects: tuple[BookieId, ...] = ()) -> dict[str, Any]:
    closed = ledger.state is LedgerState.CLOSED
    return {
        "ledger": ledger.ledger_id,
        "state": ledger.state.value,
        "ensemble": ledger.quorum.ensemble,
        "write_quorum": ledger.quorum.write,
        "ack_quorum": ledger.quorum.ack,
        "entries": ledger.last_entry + 1 if closed else None,
        "length": ledger.length if closed else None,
        "created_ms": ledger.created_ms,
        "fragments": [{"first_entry": f.first_entry, "bookies": list(f.bookies)} for f in ledger.fragments],
        "underreplicated": list(suspects),
    }


#: Columns of `ledger_rows`.
LEDGER_COLUMNS = (
    "ledger",
    "state",
    "E/Qw/Qa",
    "entries",
    "size",
    Column("fragments", wide=True),
    "created",
    Column("suspect bookies", cut="end"),
)


def ledger_rows(
    ledgers: list[LedgerMetadata], suspects: dict[LedgerId, tuple[BookieId, ...]]
) -> list[tuple[object, ...]]:
    """Rows of ledgers; open ones have no entry count and size."""
    rows: list[tuple[object, ...]] = []
    for ledger in ledgers:
        closed = ledger.state is LedgerState.CLOSED
        rows.append(
            (
                ledger.ledger_id,
                ledger.state.value,
                f"{ledger.quorum.ensemble}/{ledger.quorum.write}/{ledger.quorum.ack}",
                ledger.last_entry + 1 if closed else None,
                Bytes(ledger.length) if closed else None,
                len(ledger.fragments),
                moment(ledger.created_ms),
                list(suspects.get(ledger.ledger_id, ())),
            )
        )
    return rows


def fragment_rows(ledger: LedgerMetadata, present: dict[BookieId, str]) -> list[tuple[object, ...]]:
    """`present`: the state of each registered bookie, writable or not."""
    firsts = [f.first_entry for f in ledger.fragments]
    end = ledger.last_entry if ledger.state is LedgerState.CLOSED else None
    rows: list[tuple[object, ...]] = []
    for i, fragment in enumerate(ledger.fragments):
        last: object = firsts[i + 1] - 1 if i + 1 < len(firsts) else end if end is not None else "..."
        bookies = "  ".join(f"{b} ({present.get(b, 'gone')})" for b in fragment.bookies)
        rows.append((f"{fragment.first_entry} - {last}", bookies))
    return rows


def entry_json(entry: Entry, *, payload: str) -> dict[str, Any]:
    return {
        "entry": entry.entry_id,
        "last_confirmed": entry.last_confirmed,
        "ledger_length": entry.ledger_length,
        "bytes": len(entry.payload),
        "payload_hex": payload,
    }


def replica_json(replica: ReplicaReport) -> dict[str, Any]:
    return {
        "first_entry": replica.stretch.fragment.first_entry,
        "last_entry": replica.stretch.last,
        "bookie": replica.bookie_id,
        "whole": replica.whole,
        "missing": replica.missing,
        "damaged": replica.damaged,
        "unreachable": replica.unreachable or None,
    }


def report_json(report: LedgerReport) -> dict[str, Any]:
    return {
        "ledger": report.ledger_id,
        "good": report.good,
        "lost": report.lost(),
        "replicas": [replica_json(replica) for replica in report.replicas],
    }


#: Columns of `check_rows`.
CHECK_COLUMNS = (
    "ledger",
    "entries",
    "bookie",
    "whole",
    Column("missing", cut="end"),
    Column("damaged", cut="end"),
    Column("verdict", cut="end"),
)


def check_rows(reports: list[LedgerReport]) -> list[tuple[object, ...]]:
    """One row for each copy of a fragment."""
    return [
        (
            report.ledger_id,
            f"{replica.stretch.fragment.first_entry} - {replica.stretch.last}",
            replica.bookie_id,
            replica.whole,
            some(replica.missing),
            some(replica.damaged),
            "good" if replica.good else replica.unreachable or "not intact",
        )
        for report in reports
        for replica in report.replicas
    ]


def repair_json(report: RepairReport) -> dict[str, Any]:
    return {
        "ledger": report.ledger_id,
        "complete": report.complete,
        "replaced": [{"first_entry": f, "lost": lost, "by": by} for f, lost, by in report.replaced],
        "filled": [{"first_entry": f, "bookie": b, "entries": n} for f, b, n in report.filled],
        "waits_for_close": report.waits_for_close,
        "failures": report.failures,
    }


def repair_lines(report: RepairReport) -> list[str]:
    lines = [f"fragment at {first}: {by} replaced {lost}" for first, lost, by in report.replaced]
    lines += [
        f"fragment at {first}: {bookie} received {count} missing entries" for first, bookie, count in report.filled
    ]
    lines += [f"[red]failed[/red]: {failure}" for failure in report.failures]
    if report.waits_for_close:
        lines.append("its last fragment is still being written: close it, or repeat with --fence-open")
    return [f"ledger {report.ledger_id}: {line}" for line in lines or ["nothing to do"]]


def some(entries: list[EntryId]) -> str:
    """A few entry ids, and the count of the others."""
    shown = ", ".join(str(entry_id) for entry_id in entries[:_SHOWN_ENTRIES])
    return shown if len(entries) <= _SHOWN_ENTRIES else f"{shown} and {len(entries) - _SHOWN_ENTRIES} more"


def moment(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if wall_ms else ""
