"""Messages as files of a folder or a bucket, exactly once: a file's name says which offsets it has.

A file is there whole or not at all, and only then the position moves. A runner that died in between finds the
file, and goes on behind it. So files of the last range of a partition should stay until the next one is there.
"""

import csv
import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir.client.kafka.cluster import Partition
from weir.connect.inlet import read_piece
from weir.connect.sinks.base import Sink
from weir.connect.stores import Store
from weir.connect.task import Job, Message
from weir.connect.values import Decoder, json_value
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

    from weir.connect.arrow import odd_rows, table_of

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

    from weir.connect.arrow import table_of

    out = io.BytesIO()
    pq.write_table(table_of(rows, columns), out, compression="zstd")
    return out.getvalue()
