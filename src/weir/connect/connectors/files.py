"""Messages as files of a folder or a bucket, exactly once: a file's name says which offsets it has.

A file is there whole or not at all, and only then the position moves. A runner that died in between finds the
file, and goes on behind it. So files of the last range of a partition should stay until the next one is there.

Files of a folder or a bucket, each once: JSON lines, CSV, Parquet or plain lines; a record per message.

Of each file it is kept how many of its records were written, with those records themselves. A file is known by its
path: one that is changed after it was read is not read again.
"""

import csv
import gzip
import io
import json
import re
import time
import zlib
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import islice
from typing import IO, Any

from weir.client.kafka.cluster import Partition
from weir.connect.connectors.base import RowSource, Sink, message_by, now_ms
from weir.connect.reader import read_piece
from weir.connect.stores import Store, StoredFile
from weir.connect.task import Job, Message
from weir.connect.values import Decoder, Encoder, Row, json_value, key_of
from weir.model.errors import ConnectorError

_NAME = re.compile(r"(?P<topic>[^/]+)/partition=(?P<index>\d+)/(?P<first>\d{20})-(?P<last>\d{20})\.\w+$")
#: Beside the files of a topic: which one it is. Readers of files overlook such names.
_ID = "_weir_topic"
_SUFFIX = {"json": "jsonl", "csv": "csv", "parquet": "parquet"}
_LOOK_S = 0.2


@dataclass(slots=True)
class _Waiting:
    """What will be a file."""

    first: int
    next_offset: int
    since_s: float
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    size: int = 0


class FilesSink(Sink):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.store = Store(job)
        self._waiting: dict[Partition, _Waiting] = {}
        self.status.idle_s = _LOOK_S

    def open(self) -> None:
        self._waiting.clear()
        for topic in self._names:
            self.store.sweep(topic)
        super().open()

    def kept(self) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for topic in self._names:
            for one in self.store.list(topic):
                if name := _NAME.fullmatch(one.path):
                    place = Partition(name["topic"], int(name["index"]))
                    found[place] = max(found.get(place, 0), int(name["last"]) + 1)
        return found

    def kept_ids(self) -> dict[str, str]:
        return {topic: found for topic in self._names if (found := self.store.read(f"{topic}/{_ID}").decode())}

    def keep_ids(self, ids: Mapping[str, str]) -> None:
        for topic, found in ids.items():
            self.store.write(f"{topic}/{_ID}", found.encode())

    def step(self) -> int:
        piece = self.take()
        carried = 0
        if piece is not None:
            waiting = self._waiting.get(piece.partition)
            if waiting is None:
                at = self.inlet.positions[piece.partition]
                waiting = self._waiting[piece.partition] = _Waiting(at, at, time.monotonic())
            letters = []
            for offset, message in piece.messages:
                try:
                    waiting.rows.append(self._row(offset, message))
                    waiting.offsets.append(offset)
                except ConnectorError as wrong:
                    if not self.keeps_dead_letters:
                        raise ConnectorError(
                            f"{piece.partition} at offset {offset}: {wrong.what}",
                            hint='set on_error = "dead_letter"',
                        ) from None
                    letters.append((offset, message, wrong.what))
                waiting.size += len(message.value or b"") + len(message.key or b"")
            self.bury(letters)
            self.inlet.advance(piece)
            waiting.next_offset = piece.next_offset
        self.status.idle_s = _LOOK_S if piece is None else 0.0
        self.status.waiting = bool(self._waiting)
        due = [partition for partition, one in self._waiting.items() if self._due(one)]
        # All partitions together may not take much more memory than one does.
        if not due and sum(one.size for one in self._waiting.values()) > 2 * self.job.option("max_size"):
            due = [max(self._waiting, key=lambda each: self._waiting[each].size)]
        for partition in due:
            one = self._waiting[partition]
            carried += max(1, len(one.rows))
            self._write(partition, one)
        self.status.waiting = bool(self._waiting)
        return carried

    def _due(self, one: _Waiting) -> bool:
        return bool(
            one.size >= self.job.option("max_size")
            or len(one.rows) >= self.job.option("max_records")
            or (time.monotonic() - one.since_s) * 1000 >= self.job.option("max_age")
        )

    def _write(self, partition: Partition, one: _Waiting) -> None:
        """Offsets that have no message, as markers of transactions have none, belong to the file before them."""
        form = self.job.option("format")
        self.inlet.check_alone(partition)
        columns = self.decoder(partition.topic).columns
        if form == "parquet":
            self._sift(partition, one, columns)
        if one.rows:
            data = {"json": _json, "csv": _csv, "parquet": _parquet}[form](one.rows, columns)
            self.store.write(self.path_of(partition, one.first, one.next_offset), data)
        self.inlet.commit({partition: one.next_offset})
        self.status.position = f"{partition} at {one.next_offset}"
        del self._waiting[partition]

    def _sift(self, partition: Partition, one: _Waiting, columns: Sequence[tuple[str, Any]]) -> None:
        """Take out what has another type than the schema says, or than the rows before it."""
        while odd := _odd(one.rows, columns):
            wrong = {one.offsets[at]: why for at, why in odd.items()}
            if not self.keeps_dead_letters:
                offset, why = next(iter(wrong.items()))
                raise ConnectorError(
                    f"{partition} at offset {offset}: {why}",
                    hint='use format = "json", or on_error = "dead_letter"',
                )
            self._bury_at(partition, wrong)
            one.rows = [row for at, row in enumerate(one.rows) if at not in odd]
            one.offsets = [offset for offset in one.offsets if offset not in wrong]

    def _bury_at(self, partition: Partition, wrong: dict[int, str]) -> None:
        """Messages by their offsets, in order: they are read again, as they were."""
        left = dict(wrong)
        while left:
            first = next(iter(left))
            found = read_piece(self.inlet.cluster, partition, first).messages
            self.bury([(offset, message, left.pop(offset)) for offset, message in found if offset in left])
            left.pop(first, None)

    def path_of(self, partition: Partition, first: int, next_offset: int) -> str:
        suffix = _SUFFIX[self.job.option("format")]
        return f"{partition.topic}/partition={partition.index}/{first:020d}-{next_offset - 1:020d}.{suffix}"

    def _row(self, offset: int, message: Message) -> Mapping[str, Any]:
        decoder = self.decoder(message.topic) if message.value is not None else None
        return row_of(decoder, offset, message, self.job.option("columns"))


def row_of(decoder: Decoder | None, offset: int, message: Message, columns: str) -> Mapping[str, Any]:
    row = {} if message.value is None or decoder is None else decoder.row(message)
    if columns == "value" and message.value is not None:
        return row
    about = {
        "__key": None if message.key is None else bytes(message.key).decode(errors="replace"),
        "__partition": message.partition,
        "__offset": offset,
        "__timestamp": message.timestamp,
        "__headers": [
            {
                "key": name.decode(errors="replace"),
                "value": None if text is None else bytes(text).decode(errors="replace"),
            }
            for name, text in message.headers
        ],
    }
    if columns == "value":  # a deletion says at least of what
        return {"__key": about["__key"]}
    return {**row, **about}


def _odd(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> dict[int, str]:
    """Rows that make no table with those before them, by their number, and why."""
    import pyarrow as pa

    from weir.connect.values import odd_rows, table_of

    def wrong(count: int) -> str | None:
        try:
            table_of(rows[:count], columns)
        except (pa.ArrowException, OverflowError) as bad:
            return str(bad)
        return None

    if wrong(len(rows)) is None:
        return {}
    if odd := odd_rows(rows, columns):
        return odd
    # Something of the value itself, which only those before it show: the first such row.
    fine, count = 0, len(rows)
    while count - fine > 1:
        middle = (fine + count) // 2
        fine, count = (middle, count) if wrong(middle) is None else (fine, middle)
    return {count - 1: wrong(count) or ""}


def _json(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row, default=json_value, ensure_ascii=False)}\n" for row in rows).encode()


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> bytes:
    names = dict.fromkeys([*(name for name, _ in columns), *(name for row in rows for name in row)])
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(names), restval="")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, default=json_value, ensure_ascii=False)
    return value if value is None or isinstance(value, int | float | str) else json_value(value)


def _parquet(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> bytes:
    import pyarrow.parquet as pq

    from weir.connect.values import table_of

    out = io.BytesIO()
    pq.write_table(table_of(rows, columns), out, compression="zstd")
    return out.getvalue()


DONE = -1
#: Of one transaction, how long small files are gathered for it, and of one line: what is read is bounded, however
#: large a file is.
_MOST_BYTES, _GATHER_S, _LONGEST_LINE = 8 << 20, 1.0, 64 << 20
csv.field_size_limit(_LONGEST_LINE)  # Python allows 128 KiB, which a text in a column may well have
#: What records that cannot be read raise: bytes, texts, numbers and dates that are none, JSON without a bottom.
_BROKEN = (
    *(ValueError, OSError, EOFError, ArithmeticError, RecursionError, csv.Error, zlib.error),
    ConnectorError,
)
HINT = "mend the file, or take it away: what was not carried is read again"


class FilesSource(RowSource):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.store = Store(job)
        self.key = job.option("key") or ()
        self._records: Iterator[Any] | None = None
        self._file: StoredFile | None = None
        #: Files of the last listing that were not begun yet.
        self._listed: deque[StoredFile] = deque()
        self._read = 0
        self.status.idle_s = job.option("poll") / 1000

    def open(self) -> None:
        super().open()
        self._records = self._file = None
        self._listed.clear()

    def step(self) -> int:
        """One transaction: of a large file as much as fits, and of small ones as many."""
        messages: list[Message] = []
        done: dict[str, int] = {}
        size, until_s = 0, time.monotonic() + _GATHER_S
        while len(messages) < self.job.option("batch") and size < _MOST_BYTES:
            if done and time.monotonic() > until_s:
                break
            file = self._file or self._begin(listing=not done)
            if file is None:
                break
            try:
                more, whole = self._next(self.job.option("batch") - len(messages), _MOST_BYTES - size)
            except ConnectorError:
                self._put_back()
                if not done:
                    raise
                break  # those before it are written first; the next step tells what is wrong
            messages += more
            size += sum(len(one.value or b"") for one in more)
            self._read += len(more)
            done[file.path] = DONE if whole else self._read
            self.status.position = f"{file.path}: {'all' if whole else self._read} records"
            if whole:
                self._records = self._file = None
        if done:
            self.send(messages, done)
            self.status.lag = len(self._listed) + (self._file is not None)
        return len(messages) or min(1, len(done))  # an empty file is something that was done

    def _next(self, most: int, most_bytes: int) -> tuple[list[Message], bool]:
        """The next records as messages, and whether the file ends behind them. What is wrong with one is told: so
        that none is passed over, those before it come with it."""
        messages: list[Message] = []
        size = 0
        try:
            for record in self._records or ():
                messages.append(self._message(record))
                size += len(messages[-1].value or b"")
                if len(messages) >= most or size >= most_bytes:
                    return messages, False
            return messages, True
        except _BROKEN as bad:
            what = bad.what if isinstance(bad, ConnectorError) else str(bad)
            number = self._read + len(messages) + 1
            path = "" if self._file is None else self._file.path
            raise ConnectorError(f"{path}, record {number}: {what}", hint=HINT) from None

    def _begin(self, *, listing: bool) -> StoredFile | None:
        """Open the next file that was not read, or not to its end. All of them are listed once, and again when
        these were read; one that went, or changed, since then is left to the next listing."""
        if not self._listed and listing:
            self._listed.extend(self.waiting())
        while self._listed:
            file = self._listed.popleft()
            now = self.store.look(file)
            if now is None or now.changed_ms > self._settled_ms():
                continue
            self._file = now
            self._read = self._position_of(now.path)
            self._records = islice(self._open(now.path), self._read, None)
            return now
        return None

    def _position_of(self, path: str) -> int:
        """How many records of a file were written. Other roles may have written to the topic of positions."""
        found = self.positions.get(path, 0)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise ConnectorError(
                f"the position of {path} is {str(found)[:80]!r}, which is not a number of records",
                hint="remove the connector and add it again; it then reads all files from their start",
            )
        return found

    def _put_back(self) -> None:
        """A file of which the next record could not be read: it is begun again where it was."""
        if self._file is not None:
            self._listed.appendleft(self._file)
        self._records = self._file = None

    def _settled_ms(self) -> int:
        return now_ms() - int(self.job.option("settle"))

    def waiting(self) -> list[StoredFile]:
        """Files that were not read, or not to their end, and are not being written."""
        pattern, settled_ms = self.job.option("pattern"), self._settled_ms()
        found = [
            one
            for one in self.store.list()
            if self.positions.get(one.path) != DONE
            and (fnmatch(one.path, pattern) or fnmatch(one.path.rsplit("/", 1)[-1], pattern))
            and one.changed_ms <= settled_ms
        ]
        if not found:
            self.store.check_there()
        self.status.lag = len(found)
        return found

    def _open(self, path: str) -> Iterator[Any]:
        match self.job.option("format"):
            case "parquet":
                return self._parquet(path)
            case "csv":
                return self._csv(path)
            case _:
                return self._lines(path)

    def _lines(self, path: str) -> Iterator[bytes]:
        with self._plain(path) as file:
            while line := file.readline(_LONGEST_LINE + 1):
                if len(line) > _LONGEST_LINE:
                    raise ValueError(f"a line has more than {_LONGEST_LINE >> 20} MiB")
                if text := line.rstrip(b"\r\n"):
                    yield text

    def _plain(self, path: str) -> IO[bytes]:
        """Its bytes; of one whose name ends so, those that were compressed."""
        file = io.BufferedReader(self.store.open(path), 1 << 20)
        return gzip.open(file) if path.endswith(".gz") else file  # type: ignore[return-value]

    def text(self, path: str) -> IO[str]:
        return io.TextIOWrapper(self._plain(path), "utf-8-sig", newline="")

    def _csv(self, path: str) -> Iterator[Any]:
        with self.text(path) as file:
            yield from rows_of_csv(file, self.job.option("delimiter"))

    def _parquet(self, path: str) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with self.store.open(path) as file:
            found = pq.ParquetFile(file)
            from weir.connect.values import columns_of

            self.declare(columns_of(found.schema_arrow))
            for batch in found.iter_batches(self.job.option("batch")):
                yield from batch.to_pylist()

    def _message(self, record: Any) -> Message:
        return message_of(record, self.job.option("format"), self.name, self.encoder(), self.key)


def message_of(record: Any, form: str, topic: str, encoder: Encoder, key: Sequence[str]) -> Message:
    """A row, or a line's bytes, as a message; ValueError if the line is not what files of the format have. Where
    no schema says more of it, a line stays as it is, with all digits of its numbers."""
    if not isinstance(record, bytes):
        return message_by(encoder, topic, record, key)
    odd: list[str] = []
    row = json.loads(record, parse_constant=odd.append) if form == "json" else None
    if not isinstance(row, dict):
        return Message(topic, None, record, now_ms())
    if odd:  # NaN and Infinity, which JSON does not have
        row = json.loads(record)
    elif encoder.plain:
        return Message(topic, key_of(row, key), record.removeprefix(BOM_UTF8), now_ms())
    return message_by(encoder, topic, row, key)


def rows_of_csv(text: IO[str], delimiter: str) -> Iterator[Any]:
    """Rows by the names of the first line; what is empty is null."""
    reader = csv.DictReader(text, delimiter=delimiter, strict=True)
    check_names(reader.fieldnames or ())
    for row in reader:
        if None in row or None in row.values():
            raise ValueError("a row has more or fewer columns than the first line")
        yield cells(row)


def check_names(names: Sequence[str]) -> None:
    """ValueError if two columns have one name: of the values, one would be lost."""
    if len(set(names)) != len(names):
        raise ValueError("its first line names a column twice")


def cells(row: Row) -> Row:
    return {name: None if value == "" else value for name, value in row.items()}
