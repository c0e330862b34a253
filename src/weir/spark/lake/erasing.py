"""Keys that are to be gone from a table: found by the tombstones of a compacted topic, looked for in its files.

All of it works on columns: a table has many more rows than there are tombstones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.spark.lake.files import batches_of
from weir.spark.source.columns import RAW_KEY, RAW_VALUE

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

_FOUND = pa.schema([("key", pa.binary()), ("offset", pa.int64())])


@dataclass(frozen=True, slots=True)
class ErasedKeys:
    """Keys of one partition, each once, and for each the offset of its last tombstone: what is older is to go.
    Travels to tasks."""

    keys: Any
    offsets: Any

    @classmethod
    def of(cls, tombstones: Iterable[Any]) -> "ErasedKeys":
        """Of what `tombstones_in` found in files of one partition."""
        rows = pa.concat_tables([_FOUND.empty_table(), *tombstones])
        last = rows.group_by("key").aggregate([("offset", "max")]).combine_chunks()
        offsets = last["offset_max"].to_numpy()
        return cls(last["key"].combine_chunks(), offsets)

    def __len__(self) -> int:
        return len(self.keys)

    def hits(self, batch: Any) -> Any:
        """Which rows of a batch are to be gone, as an array of truth; None if none is."""
        keys = sent_keys(batch)
        if keys is None or not len(self):
            return None
        at = pc.fill_null(pc.index_in(keys, value_set=self.keys.cast(keys.type)), -1).to_numpy(
            zero_copy_only=False
        )
        if not (at >= 0).any():
            return None
        found = (at >= 0) & (batch.column("offset").to_numpy(zero_copy_only=False) < self.offsets[at])
        return found if found.any() else None

    def left(self, batch: Any) -> Any:
        """The rows of a batch that stay."""
        gone = self.hits(batch)
        return batch if gone is None else batch.filter(pa.array(~gone))

    def may_be_in(self, file: "DataFile", schema: "Schema") -> bool:
        """By the file's own word of its least and greatest key and offset."""
        number = _id(schema, RAW_KEY) or _id(schema, "key")
        offset = schema.find_field("offset").field_id
        low, high = file.lower_bounds or {}, file.upper_bounds or {}
        if offset in low and int.from_bytes(low[offset], "little", signed=True) >= int(self.offsets.max()):
            return False
        if number not in low or number not in high or not pa.types.is_binary(self.keys.type):
            return True
        # Bounds are cut: the upper one is made larger then, the lower one is a beginning.
        within = pc.and_(
            pc.greater_equal(self.keys, pa.scalar(low[number], pa.binary())),
            pc.less_equal(self.keys, pa.scalar(high[number], pa.binary())),
        )
        return bool(pc.any(within).as_py())


def may_have_tombstones(file: "DataFile", schema: "Schema") -> bool:
    """By the file's own count of values that are null; where it has none, they must be looked for."""
    nulls = file.null_value_counts or {}
    number = _id(schema, RAW_VALUE) or _id(schema, "value")
    return nulls.get(number or 0, 1) > 0


def tombstones_in(source: Any) -> Any:
    """Keys and offsets of the messages without a value in a file; not of those whose value does not fit."""
    whole = pq.ParquetFile(source)
    there = whole.schema_arrow.names
    wanted = [name for name in ("key", RAW_KEY, "value", RAW_VALUE, "offset", "corrupt") if name in there]
    if RAW_VALUE in there:
        wanted.remove("value")
    if RAW_KEY in there:
        wanted.remove("key")
    found = [tombstones(batch) for batch in batches_of(source, wanted)]
    return pa.concat_tables([_FOUND.empty_table(), *found])


def tombstones(rows: Any) -> Any:
    """The same of a batch."""
    keys = sent_keys(rows)
    if keys is None:
        return _FOUND.empty_table()
    gone = rows.column(RAW_VALUE if RAW_VALUE in rows.schema.names else "value").is_null()
    if "corrupt" in rows.schema.names:
        gone = pc.and_(gone, rows.column("corrupt").is_null())
    gone = pc.and_(gone, pc.is_valid(keys))
    found = [keys.filter(gone).cast(pa.binary()), rows.column("offset").filter(gone)]
    return pa.table(found, schema=_FOUND)


def has_any(source: Any, erased: ErasedKeys) -> bool:
    """Whether a file has rows that are to be gone; only its keys are read."""
    there = pq.read_schema(source).names
    wanted = [RAW_KEY if RAW_KEY in there else "key", "offset"]
    return any(erased.hits(batch) is not None for batch in batches_of(source, wanted))


def sent_keys(rows: Any) -> Any:
    """Keys as they were sent, of a batch; None if they are not known: typed ones have their bytes in a column of
    their own, but for files of before tables had it."""
    found = rows.column(RAW_KEY if RAW_KEY in rows.schema.names else "key")
    return found if pa.types.is_binary(found.type) or pa.types.is_large_binary(found.type) else None


def _id(schema: "Schema", name: str) -> int | None:
    return next((field.field_id for field in schema.fields if field.name == name), None)


#: By partition.
Erased = Mapping[int, ErasedKeys]
