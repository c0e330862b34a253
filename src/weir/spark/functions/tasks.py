"""What Spark's tasks do for a function: Arrow batches in and out, and state by key through transformWithState."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from weir.client.blocking import Access
from weir.client.registry import topic_of
from weir.functions.executing import States
from weir.functions.in_place import InPlace, OutRow
from weir.functions.options import from_text
from weir.functions.place import schemas_of_topic
from weir.functions.protocol import Item, SchemaVersion
from weir.functions.values import LaterVersions, Values
from weir.model.functions import Function
from weir.model.topics import TopicName

#: As the query gives them to tasks: times are milliseconds, which no time zone changes on the way.
READ = ("key", "value", "topic", "partition", "offset", "ms", "headers")
HEADERS = "array<struct<key: string, value: binary>>"
WRITTEN = f"kind string, topic string, key binary, value binary, ms bigint, headers {HEADERS}"
_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("ms", pa.int64()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True, slots=True)
class TaskFunction:
    """A function as it travels to tasks. `names`: the full names of its inputs, by those of Kafka. `access`: whom
    to ask for versions of schemas that come later."""

    function: Function
    schemas: Mapping[str, Sequence[SchemaVersion]]
    names: Mapping[str, str]
    partitioned: tuple[str, ...]
    access: Access

    @property
    def inline(self) -> list[str]:
        """Inputs, by Kafka's names, whose keys lie in the values (KEY_VALUE, INLINE)."""
        return [name for name, topic in self.names.items() if Values(topic, self.schemas.get(topic, ())).inline]

    def run(self, items: Sequence[Item], states: States) -> tuple[list[OutRow], States]:
        """All rows that come of them, and the states that have changed."""
        key = (self.function.id, self.function.version)
        if key not in _LOADED:
            _forget()
            _LOADED[key] = self._load(self.schemas)
        if _LATER.wanted(items, _LOADED[key].values):
            found = {topic: schemas_of_topic(self.access, TopicName.parse(topic)) for topic in self.schemas}
            _forget()
            _LOADED[key] = self._load(found)
        return _LOADED[key].run(items, states)

    def _load(self, schemas: Mapping[str, Sequence[SchemaVersion]]) -> InPlace:
        return InPlace(self.function, from_text(self.function.options), schemas, self.partitioned)

    def item(self, row: Mapping[str, Any]) -> Item:
        headers = [
            (one["key"], None if one["value"] is None else bytes(one["value"])) for one in row["headers"] or ()
        ]
        known = self.names.get(row["topic"])
        return Item(
            str(topic_of(row["topic"])) if known is None else known,  # an input that was dropped meanwhile
            row["partition"],
            row["offset"],
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            headers,
            row["ms"],
        )


#: One for each process, function and version.
_LOADED: dict[tuple[str, int], InPlace] = {}
_LATER = LaterVersions()


def _forget() -> None:
    for one in _LOADED.values():
        one.close()
    _LOADED.clear()


def mapper(task: TaskFunction) -> Any:
    """For `mapInArrow`."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            rows, _ = task.run([task.item(row) for row in batch.to_pylist()], {})
            if rows:
                yield _batch(rows)

    return run


def _batch(rows: Sequence[OutRow]) -> Any:
    found = [
        {
            "kind": row.kind,
            "topic": row.topic,
            "key": row.key,
            "value": row.value,
            "ms": row.timestamp,
            "headers": [{"key": name, "value": value} for name, value in row.headers],
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(found, schema=_ARROW)


class KeyedFunction(StatefulProcessor):
    """For `transformWithState`: the messages of a key in the order of their offsets, and its state as bytes."""

    def __init__(self, task: TaskFunction) -> None:
        self._task = task
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "stored binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        items = [self._task.item(row.asDict()) for row in rows]
        items.sort(key=lambda item: (item.topic, item.partition, item.offset))
        whose = bytes(key[0])
        before = bytes(self._state.get()[0]) if self._state.exists() else None
        found, changed = self._task.run(items, {whose: before})
        if whose in changed:
            after = changed[whose]
            if after is None:
                self._state.clear()
            else:
                self._state.update((after,))
        for one in found:
            headers = [Row(key=name, value=value) for name, value in one.headers]
            yield Row(
                kind=one.kind, topic=one.topic, key=one.key, value=one.value, ms=one.timestamp, headers=headers
            )

    def close(self) -> None:
        """Nothing is open."""
