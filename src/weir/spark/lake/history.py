"""What a topic's table has of offsets that brokers no longer have, for Python's tasks: streams read history so.

Batch queries of a session that has `weir.spark` loaded use Spark's own Parquet reader instead (`reading`).
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from weir.client.kafka.cluster import Cluster, admin_url
from weir.client.schemas import topic_of
from weir.model.errors import ConfigError, LakeError, NetworkError, NotAuthenticatedError, NotAuthorisedError
from weir.spark.columns import RAW_KEY, RAW_VALUE
from weir.spark.lake.catalog import namespace_lake
from weir.spark.options import SourceOptions
from weir.spark.source.planning import Range
from weir.spark.source.reading import access_by
from weir.spark.values.typed import ValueSchema

if TYPE_CHECKING:
    from weir.spark.lake.parquet import Source

log = logging.getLogger(__name__)

#: Offsets for which it is asked at a time which files have them.
_AT_ONCE = 200_000
#: How long a broker may be away that is asked where a table lies.
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class TopicHistory:
    """A snapshot of a topic's table. `first`: by partition the lowest offset in it; `offsets`: the first that is
    not in it. Travels to tasks."""

    topic: str
    metadata: str
    store: Mapping[str, str]
    first: Mapping[int, int]
    offsets: Mapping[int, int]

    def covers(self, partition: int, end: int) -> bool:
        """Whether every offset below this one that was exported is in it."""
        return self.offsets.get(partition, 0) >= end

    def part_of(self, wanted: Range) -> Range:
        """Where it has rows of a range, and up to where it has all that there were: an offset may be no message,
        or one that was erased. Of what it does not have, the beginning and nothing."""
        index = wanted.partition.index
        end = max(wanted.start, min(wanted.end, self.offsets.get(index, 0)))
        return Range(wanted.partition, min(end, max(wanted.start, self.first.get(index, end))), end)

    def read(
        self, wanted: Range, options: SourceOptions, values: Mapping[str, ValueSchema] | None
    ) -> Iterator[Any]:
        """Arrow batches of the range, in the order of their offsets, as `read_range` gives them."""
        at = max(wanted.start, self.first.get(wanted.partition.index, wanted.end))
        while at < wanted.end:
            end = min(wanted.end, at + _AT_ONCE)
            yield from self._rows(Range(wanted.partition, at, end), options, values)
            at = end

    def _rows(
        self, wanted: Range, options: SourceOptions, values: Mapping[str, ValueSchema] | None
    ) -> Iterator[Any]:
        from pyiceberg.table import StaticTable

        from weir.spark.lake.catalog import suit_store

        suit_store(self.store)
        table = StaticTable.from_metadata(self.metadata, dict(self.store))
        for rows in _files(table, wanted):
            if rows.num_rows:
                yield from _conformed(rows, wanted, options, values).combine_chunks().to_batches()


def _files(table: Any, wanted: Range) -> Iterator[Any]:
    """What the files have of the range, in order, with the columns that the table has now."""
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from weir.spark.lake.parquet import batches_of, conform, in_order
    from weir.spark.lake.upkeep import named, same_names

    now, index = schema_to_pyarrow(table.schema()), wanted.partition.index
    scan = table.scan(row_filter=f"partition = {index} and offset >= {wanted.start} and offset < {wanted.end}")

    def read(path: str) -> Iterator[Any]:
        with table.io.new_input(path).open() as source:
            for batch in batches_of(source, among=(wanted.start, wanted.end)):
                yield conform(named(batch, now), now)

    sources: list[Source] = []
    for task in scan.plan_files():
        path = task.file.file_path
        with table.io.new_input(path).open() as source:
            if not same_names(pq.read_schema(source), now):
                # Its own reader finds renamed fields of records by their ids; but lists of records that are null,
                # it takes for empty ones.
                yield scan.to_arrow().sort_by("offset")
                return
        sources.append((first_offset(task.file, table.schema()), partial(read, path)))
    yield from in_order(sources, now)


def _conformed(found: Any, wanted: Range, options: SourceOptions, values: Mapping[str, ValueSchema] | None) -> Any:
    """As `read_range` gives them."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    from weir.spark.lake.parquet import conform
    from weir.spark.records.decoder import SCHEMA, SCHEMA_WITH_HEADERS

    schema = SCHEMA_WITH_HEADERS if options.headers else SCHEMA
    typed = (values or {}).get(wanted.partition.topic)
    corrupt = None if options.registry is None else options.registry.corrupt
    found = _bytes_where_wanted(found, typed, options)
    fields = {field.name: field for field in schema}
    if typed is not None:
        fields["value"] = pa.field("value", to_arrow_type(typed.type, timezone="UTC"))
        if typed.key_type is not None:
            fields["key"] = pa.field("key", to_arrow_type(typed.key_type, timezone="UTC"))
        _check_corrupt(found, wanted, options)
        if corrupt is not None:
            bytes_ = found.column("corrupt") if "corrupt" in found.column_names else _nulls(found)
            found = found.append_column(corrupt, bytes_) if corrupt != "corrupt" else found
            fields[corrupt] = pa.field(corrupt, pa.binary())
    if options.raw:
        fields |= {name: pa.field(name, pa.binary()) for name in (RAW_KEY, RAW_VALUE)}
    for name in ("key", "value"):  # the topic has got a schema since: what was before has no values by it
        if _is_bytes(found.schema.field(name).type) and not _is_bytes(fields[name].type):
            nulls = pa.nulls(found.num_rows, fields[name].type)
            found = found.set_column(found.column_names.index(name), name, nulls)
    found = found.append_column("topic", pa.array([wanted.partition.topic] * found.num_rows))
    whole = pa.schema(list(fields.values()))
    return pa.Table.from_batches([conform(one, whole) for one in found.combine_chunks().to_batches()], whole)


def _bytes_where_wanted(found: Any, typed: ValueSchema | None, options: SourceOptions) -> Any:
    """Bytes are in columns of their own where the table has typed values; LakeError if they were not kept."""
    for name, raw, keeps in (
        ("key", RAW_KEY, typed is not None and typed.key_type is not None),
        ("value", RAW_VALUE, typed is not None),
    ):
        is_bytes = _is_bytes(found.schema.field(name).type)
        if is_bytes and raw not in found.column_names:
            found = found.append_column(raw, found.column(name))
        if not is_bytes and not keeps:
            if raw not in found.column_names:
                raise LakeError(
                    f"the table has typed {name}s, and not the bytes that were sent", hint="set lake=false"
                )
            found = found.set_column(found.column_names.index(name), name, found.column(raw))
    return found


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _nulls(found: Any) -> Any:
    import pyarrow as pa

    return pa.nulls(found.num_rows, pa.binary())


def _check_corrupt(found: Any, wanted: Range, options: SourceOptions) -> None:
    """WeirError where the query wants no value that does not fit."""
    permissive = options.registry is not None and options.registry.permissive
    if permissive or "corrupt" not in found.column_names:
        return
    wrong = found.num_rows - found.column("corrupt").null_count
    if wrong:
        raise LakeError(
            f"{wrong} values of {wanted.partition} from offset {wanted.start} on are not as the schema says",
            hint="set mode=PERMISSIVE",
        )


def find_topic_history(options: SourceOptions, topic: str) -> TopicHistory | None:
    """None if the topic is not in the lake, or this user may not see where its table lies. LakeError if the table
    is not to be had now: to read without it would be to leave messages out."""
    if not options.lake:
        return None
    try:
        url = options.admin_url
        if url is None:
            with Cluster(options.kafka) as cluster:
                url = admin_url(cluster)
        access = access_by(url, options.kafka, _PATIENCE_S)
        name = topic_of(topic)
        definition = namespace_lake(access, name.namespace).read(name)
        if definition is None:
            return None
        return _snapshot(options, topic, definition)
    except ConfigError:
        return None  # no Weir, or none that tells where its admin API is
    except (NotAuthorisedError, NotAuthenticatedError) as failure:
        log.warning("what the lake has of %s is not read: %s", topic, failure)
        return None
    except NetworkError as failure:
        raise LakeError(
            f"brokers no longer have all of {topic}, and whether the lake has cannot be asked: {failure}",
            hint="check adminUrl; lake=false reads what the brokers have",
        ) from None


def _snapshot(options: SourceOptions, topic: str, definition: Any) -> TopicHistory | None:
    from weir.spark.lake.catalog import store_options
    from weir.spark.lake.table import find_table, is_own

    found = find_table(topic_of(topic), definition)
    if found is None or not is_own(found, definition) or found.table.current_snapshot() is None:
        return None
    with Cluster(options.kafka) as cluster:
        if not found.is_of(cluster.topic_id(topic)):
            return None  # it is of a topic that was deleted
    return TopicHistory(
        topic, found.table.metadata_location, store_options(definition), _first(found.table), found.offsets()
    )


def _first(table: Any) -> dict[int, int]:
    """The lowest offset of each partition, by the statistics of files; each file has one partition's."""
    schema = table.schema()
    lowest: dict[int, int] = {}
    part_id, offset_id = schema.find_field("partition").field_id, schema.find_field("offset").field_id
    for task in table.scan().plan_files():
        bounds = task.file.lower_bounds or {}
        if part_id in bounds and offset_id in bounds:
            part, offset = _number(bounds[part_id]), _number(bounds[offset_id])
            lowest[part] = min(offset, lowest.get(part, offset))
    return lowest


def first_offset(file: Any, schema: Any) -> int:
    """Of a file's rows; the least that there is, if the file does not tell."""
    bound = (file.lower_bounds or {}).get(schema.find_field("offset").field_id)
    return -1 if bound is None else _number(bound)


def _number(bound: bytes) -> int:
    """As Iceberg writes a column's least and greatest."""
    return int.from_bytes(bound, "little", signed=True)
