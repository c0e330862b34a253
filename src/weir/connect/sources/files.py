"""Files of a folder or a bucket, each once: JSON lines, CSV, Parquet or plain lines; a record per message.

Of each file it is kept how many of its records were written, with those records themselves. A file is known by its
path: one that is changed after it was read is not read again.
"""

import csv
import io
import json
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import islice
from typing import Any

from weir.connect.sources.base import RowSource, now_ms
from weir.connect.stores import Store, StoredFile
from weir.connect.task import Job, Message
from weir.model.errors import ConnectorError

_DONE = -1


class FilesSource(RowSource):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._store = Store(job)
        self._key = job.option("key") or ()
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
        path, limit = self._file.path, self.job.option("batch")
        try:
            found = list(islice(self._records, limit))
            messages = [self._message(one) for one in found]
        except (ValueError, OSError, ConnectorError) as bad:
            what = bad.what if isinstance(bad, ConnectorError) else str(bad)
            raise ConnectorError(f"{path}, behind record {self._read}: {what}") from None
        self._read += len(found)
        whole = len(found) < limit
        self.send(messages, {path: _DONE if whole else self._read})
        self.status.position = f"{path}: {'all' if whole else self._read} records"
        if whole:
            self._records = None
        return max(1, len(found))  # an empty file is something that was done

    def _begin(self) -> bool:
        """Open the next file that was not read, or not to its end."""
        pattern, settled_ms = self.job.option("pattern"), now_ms() - self.job.option("settle")
        waiting = [
            one
            for one in self._store.list()
            if self.positions.get(one.path) != _DONE
            and (fnmatch(one.path, pattern) or fnmatch(one.path.rsplit("/", 1)[-1], pattern))
            and one.changed_ms <= settled_ms
        ]
        self.status.lag = len(waiting)
        if not waiting:
            return False
        self._file = waiting[0]
        self._read = self.positions.get(self._file.path, 0)
        self._records = islice(self._open(self._file.path), self._read, None)
        return True

    def _open(self, path: str) -> Iterator[Any]:
        match self.job.option("format"):
            case "parquet":
                return self._parquet(path)
            case "csv":
                return self._csv(path)
            case _:
                return self._lines(path)

    def _lines(self, path: str) -> Iterator[bytes]:
        with io.BufferedReader(self._store.open(path), 1 << 20) as file:
            for line in file:
                if text := line.rstrip(b"\r\n"):
                    yield text

    def _csv(self, path: str) -> Iterator[Any]:
        with io.TextIOWrapper(io.BufferedReader(self._store.open(path), 1 << 20), "utf-8-sig", newline="") as file:
            for row in csv.DictReader(file, delimiter=self.job.option("delimiter"), strict=True):
                if None in row or None in row.values():
                    raise ValueError("a row has more or fewer columns than the first line")
                yield {name: None if value == "" else value for name, value in row.items()}

    def _parquet(self, path: str) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with self._store.open(path) as file:
            found = pq.ParquetFile(file)
            if not self.known():
                from weir.connect.arrow import avro_of

                self.declare(avro_of(self.topic.local, found.schema_arrow))
            for batch in found.iter_batches(self.job.option("batch")):
                yield from batch.to_pylist()

    def _message(self, record: Any) -> Message:
        if not isinstance(record, bytes):
            return self.message(record, self._key)
        if self.job.option("format") == "text":
            return Message(self.name, None, record, now_ms())
        row = json.loads(record)
        if isinstance(row, dict):
            return self.message(row, self._key)
        return Message(self.name, None, record, now_ms())
