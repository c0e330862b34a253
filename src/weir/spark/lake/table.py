"""The Iceberg table of one topic: made, given the columns of the topic's latest schema, and asked how far it is.

How far it is stands in the summaries of its snapshots, in the same commit as the files: `weir.ranges` has what
that commit added, `weir.offsets` the first offset of each partition that is not in the table. Commits of others
do not have it, so the nearest ancestor that does is asked; and a property of the table, if all are expired.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import DayTransform, IdentityTransform

from weir.model.errors import InvalidNameError, LakeError
from weir.model.topics import NamespaceName, TopicName
from weir.spark.columns import RAW_KEY, RAW_VALUE
from weir.spark.lake.catalog import Definition, folder_in, open_catalog, store_options
from weir.spark.lake.parquet import fits

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

OFFSETS, RANGES, LOST = "weir.offsets", "weir.ranges", "weir.lost"
TOPIC, TOPIC_ID, OWNER = "weir.topic", "weir.topic-id", "weir.owner"
DAY = "day"
#: A hundred manifests become one: each commit adds one, and names all that there are.
MERGED = "commit.manifest-merge.enabled"
#: Where the bytes are of a column that is typed.
_RAW = {"key": RAW_KEY, "value": RAW_VALUE}
_PROPERTIES = {
    # A commit that another one came before must not be repeated over it: both may have the same offsets.
    "commit.retry.num-retries": "0",
    "write.parquet.compression-codec": "zstd",
    MERGED: "true",
    # Old metadata files go with the commits that replace them.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}

#: All but those of Kafka's names.
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
#: What catalogs and file systems take; a few letters may come behind the name of a folder.
_CATALOG_BYTES, _FOLDER_BYTES = 249, 240

Offsets = dict[int, int]


def table_name(topic: TopicName) -> tuple[str, str]:
    """In the catalog: catalogs know one level of namespaces."""
    return _namespace(topic.namespace), _plain(topic.local, _CATALOG_BYTES)


def _namespace(name: NamespaceName) -> str:
    return f"{name.tenant}__{name.name}"


def location_of(topic: TopicName, definition: Definition) -> str:
    namespace = topic.namespace
    return f"{definition.to}/{namespace.tenant}/{namespace.name}/{_plain(topic.local, _FOLDER_BYTES)}"


def _plain(name: str, most_bytes: int) -> str:
    """The name in letters that every store, catalog and reader takes as they are: others are written as `~` and
    two hexadecimal digits for each byte. As a URL `a#1` would be a part of `a`."""
    plain = _ODD.sub(lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), name)
    return plain if len(plain) <= most_bytes else f"topic~{sha256(name.encode()).hexdigest()}"


def tables_in(namespace: NamespaceName, definition: Definition) -> list[TopicName]:
    """The topics that have tables in the catalog, be they this Weir's or not."""
    catalog, place = open_catalog(definition), (_namespace(namespace),)
    try:
        names = [one[-1] for one in catalog.list_tables(place)]
    except NoSuchNamespaceError:
        return []
    found = []
    for name in names:
        about = catalog.load_table((*place, name)).properties if "~" in name else {}
        topic = about.get(TOPIC, f"{namespace}/{name}")
        with suppress(InvalidNameError):  # no table of a Weir's
            found.append(TopicName.parse(topic))
    return [one for one in found if one.namespace == namespace]


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A topic's table, as it was when it was loaded."""

    topic: TopicName
    table: "Table"

    @property
    def location(self) -> str:
        return self.table.location()

    @property
    def arrow_schema(self) -> Any:
        """Of the files that are written next, with the ids of their fields."""
        return schema_to_pyarrow(self.table.schema())

    def is_of(self, topic_id: str) -> bool:
        """Whether it is the table of this topic, and not of one of the same name that was deleted."""
        return bool(self.table.properties.get(TOPIC_ID, topic_id) == topic_id)

    def offsets(self) -> Offsets:
        """By partition the first offset that is not in the table."""
        said = self._said(OFFSETS)
        return {int(partition): int(offset) for partition, offset in json.loads(said or "{}").items()}

    def lost(self) -> int:
        """How many offsets had been trimmed before they were exported."""
        return int(self._said(LOST) or 0)

    def _said(self, name: str) -> str | None:
        at: Snapshot | None = self.table.current_snapshot()
        while at is not None:
            told = at.summary.additional_properties if at.summary is not None else {}
            if OFFSETS in told:  # what it leaves out, nobody before it has said either
                return told.get(name)
            at = None if at.parent_snapshot_id is None else self.table.snapshot_by_id(at.parent_snapshot_id)
        return self.table.properties.get(name)


def find_table(topic: TopicName, definition: Definition) -> LakeTable | None:
    try:
        return LakeTable(topic, open_catalog(definition).load_table(table_name(topic)))
    except NoSuchTableError:
        return None


def open_table(topic: TopicName, definition: Definition, schema: Any, topic_id: str) -> LakeTable:
    """With columns for this Arrow schema. A table of a topic of the same name that was deleted goes first."""
    catalog, found = open_catalog(definition), find_table(topic, definition)
    if found is not None:
        _check_owner(found, definition)
    if found is not None and not found.is_of(topic_id):
        drop_table(found, definition)
        found = None
    if found is None:
        about = {TOPIC: str(topic), TOPIC_ID: topic_id, OWNER: definition.owner}
        _create(catalog, topic, _free(location_of(topic, definition), definition), schema, about)
        found = find_table(topic, definition)
    if found is None:
        raise LakeError(f"the table of {topic} was dropped as soon as it was made", hint="who else drops tables?")
    _check_owner(found, definition)
    _evolve(found, schema)
    return found


def is_own(found: LakeTable, definition: Definition) -> bool:
    """Whether it is this Weir's table of this topic."""
    about = found.table.properties
    return about.get(TOPIC) == str(found.topic) and about.get(OWNER, "") == definition.owner


def _check_owner(found: LakeTable, definition: Definition) -> None:
    if not is_own(found, definition):
        raise LakeError(
            f"table {'.'.join(table_name(found.topic))} of the catalog is another Weir's, or nobody's",
            hint="name another catalog or folder: weir lake on --to, --catalog",
        )


def _create(catalog: "Catalog", topic: TopicName, location: str, schema: Any, about: Mapping[str, str]) -> None:
    name = table_name(topic)
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(name[:1])
    try:
        made = catalog.create_table_transaction(
            name, schema, location=location, properties={**_PROPERTIES, **about}
        )
        with made as transaction:
            with transaction.update_spec() as spec:
                spec.add_field("timestamp", DayTransform(), DAY)
            with transaction.update_sort_order() as order:
                order.asc("partition", IdentityTransform()).asc("offset", IdentityTransform())
    except TableAlreadyExistsError:
        pass  # by another process, a moment ago


def _free(location: str, definition: Definition) -> str:
    """This place, or one beside it if something lies there: a table of a catalog that is lost, or of another Weir
    that has the same bucket. What shares a table's folder would be taken for its orphans one day."""
    from pyarrow.fs import FileSelector, FileType

    store, path = folder_in(load_file_io(store_options(definition), location), location)
    there = store.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return f"{location}-{uuid4().hex[:8]}" if any(one.type is FileType.File for one in there) else location


def drop_table(found: LakeTable, definition: Definition) -> None:
    """With all that lies in its folder, orphans too. Rows go first: whoever dies then finds the table again. The
    catalog only forgets it: it would look for files that are gone, or lie elsewhere and are another's."""
    store, path = folder_in(found.table.io, found.location)
    with suppress(FileNotFoundError):
        store.delete_dir(f"{path}/data")
    open_catalog(definition).drop_table(table_name(found.topic))
    with suppress(FileNotFoundError):
        store.delete_dir(path)


def _evolve(found: LakeTable, schema: Any) -> None:
    """Give the table what the topic's schema has more. A column whose type cannot become the new one is kept under
    another name with what is in it, and a new one begins; but bytes stay one column: who asks for what was sent
    finds it, whether the topic had a schema then or not."""
    table = found.table
    if _holds(table, schema):
        return
    _rename(table, [one for field in _unfit(table, schema) for one in _bytes_renamed(table, field)])
    try:
        with table.update_schema() as update:
            update.union_by_name(schema)
        if _holds(table, schema):
            return
    except (ValidationError, ValueError):
        pass
    _rename(table, [_aside(table, field.name) for field in _unfit(table, schema)])
    with table.update_schema() as update:
        update.union_by_name(schema)
    if not _holds(table, schema):
        raise LakeError(
            f"the table of {found.topic} cannot have the columns of the topic's schema",
            hint="turn the lake off for the topic, rename the table, and turn it on again",
        )


def _unfit(table: "Table", schema: Any) -> list[Any]:
    """What has a column of a type that it cannot be in."""
    there = _columns(table)
    return [field for field in schema if field.name in there and not fits(field.type, there[field.name])]


def _bytes_renamed(table: "Table", field: Any) -> list[tuple[str, str]]:
    """Where bytes become typed, or typed values bytes: what columns are called, and will be."""
    import pyarrow as pa

    there, name, raw = _columns(table), field.name, _RAW.get(field.name)
    if raw is not None and raw not in there and there[name] == pa.binary():
        return [(name, raw)]
    if raw is not None and raw in there and small(field.type) == pa.binary():
        return [_aside(table, name), (raw, name)]
    return []


def _aside(table: "Table", name: str) -> tuple[str, str]:
    return name, f"{name}_until_{table.schema().schema_id}"


def _rename(table: "Table", names: Sequence[tuple[str, str]]) -> None:
    """All of them, or none."""
    if names:
        with table.update_schema() as update:
            for before, now in names:
                update.rename_column(before, now)


def _columns(table: "Table") -> dict[str, Any]:
    return {field.name: small(field.type) for field in schema_to_pyarrow(table.schema())}


def _holds(table: "Table", schema: Any) -> bool:
    there = _columns(table)
    return all(field.name in there and fits(field.type, there[field.name]) for field in schema)


def small(kind: Any) -> Any:
    """Without Arrow's distinction of large types."""
    import pyarrow as pa

    if kind == pa.large_string():
        return pa.string()
    if kind == pa.large_binary():
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, small(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", small(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(small(kind.key_type), small(kind.item_type))
    return kind


def summary_of(offsets: Mapping[int, int], lost: int) -> dict[str, str]:
    """What every commit of Weir's says, so that the next one knows where to go on."""
    said = {OFFSETS: json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})}
    return said | ({LOST: str(lost)} if lost else {})
