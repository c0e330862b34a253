"""Files of a folder or a bucket, each once: JSON lines, CSV, Parquet or plain lines; a record per message.

Of each file it is kept how many of its records were written, with those records themselves. A file is known by its
path: one that is changed after it was read is not read again.
"""

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from itertools import islice
from typing import IO, Any

from weir.connect.sources.base import RowSource, now_ms
from weir.connect.stores import Store, StoredFile
from weir.connect.task import Job, Message
from weir.connect.values import Row
from weir.model.errors import ConnectorError

DONE = -1
#: Of one transaction, and of one line: what is read is bounded, however large a file is.
_MOST_BYTES, _LONGEST_LINE = 8 << 20, 64 << 20
HINT = "mend the file, or take it away: what was not carried is read again"


class FilesSource(RowSource):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.store = Store(job)
        self.key = job.option("key") or ()
        self._records: Iterator[Any] | None = None
        self._file: StoredFile | None = None
        self._read = 0
        self.status.idle_s = job.option("poll") / 1000

    def open(self) -> None:
        super().open()
        self._records = None

    def step(self) -> int:
        if self._records is None and not self._begin():
            return 0
        if self._file is None or self._records is None:
            return 0
        path = self._file.path
        messages, whole = self._next(path)
        self._read += len(messages)
        self.send(messages, {path: DONE if whole else self._read})
        self.status.position = f"{path}: {'all' if whole else self._read} records"
        if whole:
            self._records = None
        return max(1, len(messages))  # an empty file is something that was done

    def _next(self, path: str) -> tuple[list[Message], bool]:
        """The next records as messages, and whether the file ends behind them. What is wrong with one is told: so
        that none is passed over, those before it come with it."""
        messages: list[Message] = []
        size = 0
        try:
            for record in self._records or ():
                messages.append(self._message(record))
                size += len(messages[-1].value or b"")
                if len(messages) >= self.job.option("batch") or size >= _MOST_BYTES:
                    return messages, False
            return messages, True
        except (ValueError, OSError, EOFError, csv.Error, zlib.error, ConnectorError) as bad:
            what = bad.what if isinstance(bad, ConnectorError) else str(bad)
            number = self._read + len(messages) + 1
            raise ConnectorError(f"{path}, record {number}: {what}", hint=HINT) from None

    def _begin(self) -> bool:
        """Open the next file that was not read, or not to its end."""
        waiting = self.waiting()
        if not waiting:
            return False
        self._file = waiting[0]
        self._read = self.positions.get(self._file.path, 0)
        self._records = islice(self._open(self._file.path), self._read, None)
        return True

    def waiting(self) -> list[StoredFile]:
        """Files that were not read, or not to their end, and are not being written."""
        if self.store.local and not os.path.isdir(self.store.root):
            raise ConnectorError(f"there is no folder {self.store.root}", hint="make it, or mend path")
        pattern, settled_ms = self.job.option("pattern"), now_ms() - self.job.option("settle")
        found = [
            one
            for one in self.store.list()
            if self.positions.get(one.path) != DONE
            and (fnmatch(one.path, pattern) or fnmatch(one.path.rsplit("/", 1)[-1], pattern))
            and one.changed_ms <= settled_ms
        ]
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
        return message_of(record, self.job.option("format"), self.name, lambda row: self.message(row, self.key))


def message_of(record: Any, form: str, topic: str, by_row: Callable[[Row], Message]) -> Message:
    """A row, or a line's bytes, as a message; ValueError if the line is not what files of the format have."""
    if not isinstance(record, bytes):
        return by_row(record)
    row = json.loads(record) if form == "json" else None
    return by_row(row) if isinstance(row, dict) else Message(topic, None, record, now_ms())


def rows_of_csv(text: IO[str], delimiter: str) -> Iterator[Any]:
    """Rows by the names of the first line; what is empty is null."""
    for row in csv.DictReader(text, delimiter=delimiter, strict=True):
        if None in row or None in row.values():
            raise ValueError("a row has more or fewer columns than the first line")
        yield cells(row)


def cells(row: Row) -> Row:
    return {name: None if value == "" else value for name, value in row.items()}
