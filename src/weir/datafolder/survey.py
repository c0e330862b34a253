"""One pass over a stopped data folder: what can be read is handed on, what cannot is listed by topic and
offsets.

What a survey found, as JSON and in a sentence.

Checks every checksum of a stopped data folder, and says by topic and offsets what is lost.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import Any

from weir.bookie.folder import Layout
from weir.bookie.survey import Batch, BookieSurvey, FileDamage, Progress, survey
from weir.datafolder.folder import DataFolder, format_path, read_format, stopped
from weir.datafolder.ledger_owners import UNKNOWN, Chart, Found, Hole, LedgerUse, Role, topic_of_stream
from weir.ledger.losses import decode_runs
from weir.meta import keys
from weir.meta.survey import MetaSurvey, survey_meta
from weir.model.errors import FileMissingError, WireError
from weir.model.ids import LedgerId
from weir.model.ledger import LedgerState
from weir.runtime.interfaces import Runtime
from weir.wire.metadata import Cookie, decode_cookie

#: A cookie without a checksum that differs in so few characters is damaged, not another.
_DAMAGED_CHARS = 4

#: Takes whole entries of one ledger.
Take = Callable[[LedgerId, Batch], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LostRange:
    """Entries of a ledger that cannot be read, and the offsets [first_offset, end_offset) of their messages, -1
    where nothing says which."""

    topic: str
    partition: int | None
    what: str
    ledger_id: int
    first_entry: int
    last_entry: int
    first_offset: int
    end_offset: int
    cause: str

    @property
    def messages(self) -> int | None:
        """How many messages at the most; None where nobody can say, or where it holds none."""
        known = self.first_offset >= 0 and self.end_offset >= 0 and self.what == Role.MESSAGES.value
        return self.end_offset - self.first_offset if known else None


@dataclass(frozen=True, slots=True)
class PositionBeyondEnd:
    """A subscription or consumer group whose position is after the last message that is left of a topic. The
    broker moves it to the end of the log when it loads the topic."""

    topic: str
    subscription: str
    offset: int
    end_offset: int


@dataclass(slots=True)
class FolderSurvey:
    """What there is, what is damaged, and what that costs."""

    folder: str
    meta: MetaSurvey
    bookie: BookieSurvey
    chart: Chart
    found: Found
    losses: list[LostRange] = field(default_factory=list)
    #: What was given up before: by `weir salvage`, or left out by readers.
    known: list[LostRange] = field(default_factory=list)
    #: Places where the metadata and the bookie's files contradict each other.
    contradictions: list[FileDamage] = field(default_factory=list)
    #: How to mend files without a copy of the folder.
    remedies: list[str] = field(default_factory=list)
    #: Positions that move back, because the last messages of their topics are lost.
    positions: list[PositionBeyondEnd] = field(default_factory=list)
    #: Topics that `weir salvage` had to give a new name, or of which it had to guess what they were.
    adopted: list[str] = field(default_factory=list)

    @property
    def damages(self) -> list[FileDamage]:
        """Every damaged place of every file."""
        of_meta = [FileDamage(damage.path, damage.offset, damage.what) for damage in self.meta.damages]
        malformed = [FileDamage(key, 0, what) for key, what in self.chart.malformed.items()]
        return [*of_meta, *malformed, *self.bookie.damages, *self.contradictions]

    @property
    def is_whole(self) -> bool:
        return not self.damages and not self.losses

    def last_entry(self, ledger_id: LedgerId) -> int:
        """The last entry that the ledger has, or had as far as anything tells."""
        ledger = self.chart.ledgers.get(ledger_id)
        if ledger is not None and ledger.state is LedgerState.CLOSED:
            return ledger.last_entry
        return self.bookie.last.get(ledger_id, -1)


async def nothing(_ledger_id: LedgerId, _batch: Batch) -> None:
    """Takes whole entries, and leaves them."""


async def survey_folder(
    runtime: Runtime,
    folder: DataFolder,
    meta: MetaSurvey,
    *,
    take: Take = nothing,
    progress: Progress = lambda _done, _all: None,
    entry_logs: bool = True,
) -> FolderSurvey:
    """Read all of a folder that nobody else uses, and whose metadata is this. Hands on the entries of ledgers that
    something uses, and of others if what uses them may have been lost with a part of the metadata."""
    chart = Chart.of(meta.items.values())
    found = Found(chart)
    strangers = bool(meta.damages)

    async def note(ledger_id: LedgerId, batch: Batch) -> None:
        ledger = chart.ledgers.get(ledger_id)
        is_known = ledger is not None or ledger_id in chart.uses
        if not is_known and not strangers:
            return
        if ledger is not None and ledger.state is LedgerState.CLOSED:
            batch = [each for each in batch if each[0] <= ledger.last_entry]
        found.take(ledger_id, batch, messages=not is_known)
        await take(ledger_id, batch)

    bookie = await survey(runtime, folder.bookie, note, progress, entry_logs=entry_logs)
    found.settle()
    report = FolderSurvey(folder.path, meta, bookie, chart, found)
    await _check_format(runtime, report)
    _compare_cookies(report, Layout(folder.bookie).cookie)
    if entry_logs:
        _list_losses(report)
        report.positions += _positions_beyond_end(report)
    return report


def _positions_beyond_end(report: FolderSurvey) -> Iterator[PositionBeyondEnd]:
    for stream, positions in sorted(report.chart.positions.items()):
        topic, end = topic_of_stream(stream), _end_of(report, stream)
        for name, at in sorted(positions.items()):
            if end is not None and at > end:
                yield PositionBeyondEnd(stream if topic is None else str(topic), name, at, end)


def _end_of(report: FolderSurvey, stream: str) -> int | None:
    """Where the log ends as a broker will find it; None if nothing says it."""
    chain = report.chart.chains.get(stream)
    if chain is None:
        return None
    end = max(chain.start_offset, report.chart.memory_ends.get(stream, 0))
    for span in chain.spans:
        found = report.found.ledgers.get(span.ledger_id)
        lost = any(one.ledger_id == span.ledger_id for one in report.losses)
        if span.end_offset is None and (lost or (found is not None and found.marked)):
            return None  # entries that only keep their place may have offsets, too
        runs = [] if found is None else found.runs
        end = max([end, span.first_offset, span.end_offset or 0, *(run.end for run in runs)])
    return end


async def _check_format(runtime: Runtime, report: FolderSurvey) -> None:
    try:
        await read_format(runtime.disk, report.folder)
    except FileMissingError:
        return
    except WireError as bad:
        what = f"{bad.what}; the next start writes the file anew"
        report.contradictions.append(FileDamage(format_path(report.folder), 0, what))


def _compare_cookies(report: FolderSurvey, path: str) -> None:
    """A start refuses a bookie that the metadata does not know: its disk may be another's."""
    known = {item.value: _cookie(item.value) for item in report.meta.under(keys.COOKIES)}
    found = report.bookie.cookie
    if found is not None and found in known.values():
        return
    if found is not None and not known:
        if report.bookie.last and not report.meta.damages:
            what = "the metadata does not know this bookie, which holds ledgers"
            report.contradictions.append(FileDamage(path, 0, what))
        return
    damaged = [value for value, cookie in known.items() if cookie is not None and _is_damaged(found, cookie)]
    if found is not None:
        what = "damaged" if damaged else "of another disk"
        what = f"it is not the cookie that the metadata has: it is {what}"
        report.contradictions.append(FileDamage(path, 0, what))
    if len(damaged) == 1 and report.bookie.checkpoint is not None:
        report.remedies.append(f"printf %s {quote(damaged[0].decode())} > {quote(path)}")


def _is_damaged(found: Cookie | None, known: Cookie) -> bool:
    """Whether this is what damage left of the known cookie. Another disk's differs in nearly all characters."""
    if found is None:
        return True
    texts = [f"{cookie.bookie_id}/{cookie.instance}" for cookie in (found, known)]
    return len(texts[0]) == len(texts[1]) and sum(a != b for a, b in zip(*texts, strict=True)) <= _DAMAGED_CHARS


def _cookie(value: bytes) -> Cookie | None:
    try:
        return decode_cookie(value)
    except WireError:
        return None


def _list_losses(report: FolderSurvey) -> None:
    causes: dict[tuple[int, int], str] = {}
    for damage in report.bookie.damages:
        if damage.ledger_id is not None and damage.entry_id is not None:
            why = damage.what.split(": ", 1)[-1]
            causes[damage.ledger_id, damage.entry_id] = f"{damage.path} at byte {damage.offset}: {why}"
    uses = {**dict.fromkeys(report.chart.ledgers), **report.chart.uses}
    known = _known_losses(report)
    for ledger_id in sorted(uses):
        use = uses[ledger_id]
        if use is None:
            continue  # made and not used yet, or being deleted
        last = report.last_entry(ledger_id)
        for hole in report.found.holes(ledger_id, use, last):
            if 0 <= hole.end <= use.start_offset:
                continue  # trimmed: nobody will ask for it
            cause = next(
                (causes[ledger_id, e] for e in range(hole.first, hole.last + 1) if (ledger_id, e) in causes),
                "it is in no file",
            )
            report.losses.append(_lost(use, hole, cause))
        report.known += [_lost(use, hole, why) for hole, why in known.get(ledger_id, [])]


def _known_losses(report: FolderSurvey) -> dict[LedgerId, list[tuple[Hole, str]]]:
    """What records of the metadata say, and what only keeps its place."""
    found: dict[LedgerId, list[tuple[Hole, str]]] = {}
    for item in report.meta.under(keys.LOST_ENTRIES):
        try:
            runs = decode_runs(item.value)
        except WireError:
            continue
        marked = report.found.ledgers.get(keys.ledger_id_of(item.key))
        for run in runs:
            if marked is not None and run.first in marked.marked:
                hole = Hole(run.first, run.last, run.first_offset, run.end_offset)
                found.setdefault(keys.ledger_id_of(item.key), []).append((hole, run.what))
    return found


def _lost(use: LedgerUse, hole: Hole, cause: str) -> LostRange:
    topic = topic_of_stream(use.stream)
    base, end = hole.base, hole.end
    if use.role is not Role.MESSAGES:
        base = end = UNKNOWN
    elif base >= 0:
        base = max(base, use.start_offset)
    return LostRange(
        use.stream if topic is None else str(topic.base),
        None if topic is None else topic.partition,
        use.role.value,
        use.ledger_id,
        hole.first,
        hole.last,
        base,
        end,
        cause,
    )


def report_fields(report: FolderSurvey) -> dict[str, Any]:
    """For programs: what was read, what is damaged where, and what is lost of which topic."""
    return {
        "folder": report.folder,
        "whole": report.is_whole,
        "read": {
            "topics": len(report.chart.chains),
            "keys": len(report.meta.items),
            "ledgers": len(report.chart.ledgers),
            "entries": report.bookie.entries,
            "entryLogs": report.bookie.logs,
            "journalRecords": report.bookie.journal_records,
            "bytes": report.bookie.bytes_read,
        },
        "damages": [{"file": each.path, "offset": each.offset, "what": each.what} for each in report.damages],
        "remedies": list(report.remedies),
        "lost": [_lost_fields(lost) for lost in report.losses],
        "knownLost": [_lost_fields(lost) for lost in report.known],
        "lostMessages": lost_messages(report),
        "lostMetadataChanges": report.meta.lost_changes,
        "positionsBeyondEnd": [
            {
                "topic": one.topic,
                "subscription": one.subscription,
                "offset": one.offset,
                "endOffset": one.end_offset,
            }
            for one in report.positions
        ],
        "adopted": list(report.adopted),
    }


def lost_messages(report: FolderSurvey) -> int:
    """How many messages at the most, as far as it can be counted."""
    return sum(lost.messages or 0 for lost in report.losses)


def _lost_fields(lost: LostRange) -> dict[str, Any]:
    fields = asdict(lost)
    return {
        "topic": fields["topic"],
        "partition": fields["partition"],
        "what": fields["what"],
        "firstOffset": fields["first_offset"],
        "endOffset": fields["end_offset"],
        "messages": lost.messages,
        "ledger": fields["ledger_id"],
        "firstEntry": fields["first_entry"],
        "lastEntry": fields["last_entry"],
        "cause": fields["cause"],
    }


async def verify_folder(
    runtime: Runtime, path: str, progress: Progress = lambda _done, _all: None, *, entry_logs: bool = True
) -> FolderSurvey:
    """FileLockedError while a Weir runs on it; ConfigError if it is no data folder. Nothing is written. Without
    `entry_logs` only what a start reads too, and no losses are listed."""
    async with stopped(runtime, path) as folder:
        meta = await survey_meta(runtime.disk, folder.meta)
        return await survey_folder(runtime, folder, meta, progress=progress, entry_logs=entry_logs)
