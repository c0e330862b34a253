"""Files of a folder or a bucket, each once: JSON lines, CSV, Parquet or plain lines; a record per message.

Of each file it is kept how many of its records were written, with those records themselves. A file is known by its
path: one that is changed after it was read is not read again.
"""

import csv
import gzip
import io
import json
import time
import zlib
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import islice
from typing import IO, Any

from weir.connect.sources.base import RowSource, message_by, now_ms
from weir.connect.stores import Store, StoredFile
from weir.connect.task import Job, Message
from weir.connect.values import Encoder, Row, key_of
from weir.model.errors import ConnectorError

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
            from weir.connect.arrow import columns_of

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
