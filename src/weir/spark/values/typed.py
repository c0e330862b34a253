"""Values as typed columns, by the schemas that the registry has for the topic.

The column has the type of the latest schema. A value that does not fit is an error that names its offset, or null
with `mode=PERMISSIVE`. Avro's bytes do not say by which version they were written; a header does, where Pulsar's
producers wrote them, and they are read through the latest. A KEY_VALUE schema types the keys too.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from weir.client.schemas import TopicSchema
from weir.model.errors import ConfigError, WireError
from weir.spark.records.kernels import Ints
from weir.spark.values.avro import avro_decoder
from weir.spark.values.avro_types import record_type
from weir.spark.values.columns import Decode, Decoded, one_by_one
from weir.spark.values.plain import KIND as KEY_VALUE
from weir.spark.values.plain import PLAIN, json_decoder, plain_decoder, split_inline, split_schema
from weir.spark.values.protobuf import (
    descriptor_of,
    message_type,
    native_definition,
    numbered_definition,
    proto_decoder,
)
from weir.wire.pulsar.translation import SCHEMA_VERSION

KINDS = ("AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "STRING", "BYTES", *PLAIN, KEY_VALUE)
_PROTOBUF = ("PROTOBUF", "PROTOBUF_NATIVE")
#: Of a record without a version, as Kafka's producers write them: it is by the latest.
_LATEST = -1
#: Of a record whose version is no number.
_NO_VERSION = -2
#: More than this are not registered while one query runs.
_MANY_VERSIONS = 20


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """What a topic's values are; travels to the tasks."""

    topic: str
    kind: str
    definition: str = ""
    permissive: bool = False
    #: All definitions by version, the latest among them, where values have to be read by their own.
    versions: tuple[tuple[int, str], ...] = ()
    #: The column that this is of.
    column: str = "value"
    #: Of a KEY_VALUE schema: what the keys are, and whether they lie in the messages' values.
    key: "ValueSchema | None" = None
    inline: bool = False

    @property
    def type(self) -> t.DataType:
        """The column's type."""
        if self.kind == "STRING":
            return t.StringType()
        if self.kind == "BYTES":
            return t.BinaryType()
        if self.kind in PLAIN:
            return PLAIN[self.kind].spark
        if self.kind in _PROTOBUF:
            return message_type(descriptor_of(self.definition, self.topic), self.topic)
        return record_type(self.definition, self.topic).spark

    @property
    def key_type(self) -> t.DataType | None:
        """The key's, if the schema says it."""
        return None if self.key is None else self.key.type

    @property
    def by_version(self) -> bool:
        """Whether the batches that are decoded must have headers, which say each message's version."""
        return bool(self.versions) or (self.key is not None and self.key.by_version)

    def decoder(self, corrupt: str | None = None) -> Callable[[Any], Any]:
        """A function from an Arrow batch with binary values to one with typed values, and keys where the schema
        has them. If they are `by_version`, the batch must have headers. `corrupt`: a column more, which has the
        bytes of values that do not fit; one that is by a version that came later is an error then."""
        strict = corrupt is not None
        value = self._of_column(strict=strict)
        key = _as_it_is if self.key is None else self.key._of_column(strict=strict)
        split = self._split if self.inline else _as_it_is

        def typed(batch: Any) -> Any:
            raw, bad = batch.column("value"), _Bad()
            found = value(key(split(batch, bad), bad), bad)
            return found if corrupt is None else found.append_column(corrupt, _only(raw, bad))

        return typed

    def without_key(self) -> "ValueSchema":
        """The same, but for keys, which stay as they are."""
        return replace(self, key=None)

    def _split(self, batch: Any, wrong: "_Bad") -> Any:
        """With key and value where they belong, of a batch that has both in its values."""
        keys, values, bad = split_inline(batch.column("value"))
        if len(bad) and not self.permissive:
            raise self._unfit(batch, int(bad[0]))
        wrong.update(int(row) for row in bad)
        found = {"value": values} if self.key is None else {"value": values, "key": keys}
        for name, column in found.items():
            batch = batch.set_column(batch.schema.get_field_index(name), pa.field(name, pa.binary()), column)
        return batch

    def _of_column(self, *, strict: bool = False) -> "Callable[[Any, _Bad], Any]":
        """`strict`: a version that is not known is an error, though values may be wrong."""
        kind = to_arrow_type(self.type, timezone="UTC")
        latest = self._decode_by(kind)
        older = {
            version: self._decode_by(kind, definition)
            for version, definition in self.versions
            if json.loads(definition) != json.loads(self.definition)
        }
        same = [version for version, _ in self.versions if version not in older]
        decode = _ByVersion(latest, older, {_LATEST: latest} | dict.fromkeys(same, latest), kind)

        def typed(batch: Any, wrong: _Bad) -> Any:
            at = batch.schema.get_field_index(self.column)
            values = batch.column(at)
            column, bad = decode(values, batch.column("headers")) if self.versions else latest(values)
            if len(bad) and not self.permissive:
                raise self._unfit(batch, int(bad[0]))
            later = next((int(row) for row in bad if strict and self._is_later(batch, int(row))), None)
            if later is not None:
                raise self._unfit(batch, later)
            wrong.update(int(row) for row in bad)
            return batch.set_column(at, pa.field(self.column, kind), column)

        return typed

    def _decode_by(self, kind: Any, writer: str | None = None) -> Decode:
        match self.kind:
            case "STRING":
                return lambda values: _strings(values, kind)
            case "BYTES":
                return lambda values: (values, ())
            case plain if plain in PLAIN:
                return plain_decoder(plain, kind)
            case "AVRO":
                return avro_decoder(self.definition, self.topic, kind, writer)
            case "JSON":
                return json_decoder(self.definition, self.topic, kind)
            case _:
                return proto_decoder(self.definition, self.topic, kind)

    def _unfit(self, batch: Any, row: int) -> WireError:
        where = f"{self.topic}-{batch.column('partition')[0]} at offset {batch.column('offset')[row]}"
        version = _version_of(batch, row) if self.versions else _LATEST
        if version != _LATEST and version not in dict(self.versions):
            return WireError(
                f"the {self.column} of {where} is by version {version} of the topic's schema, which was not "
                "there when the query began",
                hint="restart the query, or set mode=PERMISSIVE to read such values as null",
            )
        return WireError(
            f"the {self.column} of {where} is not as the topic's schema says",
            hint="set mode=PERMISSIVE to read such values as null",
        )

    def _is_later(self, batch: Any, row: int) -> bool:
        """Whether a value says that it is by a version that was not there when the query began."""
        if not self.versions:
            return False
        version, known = _version_of(batch, row), dict(self.versions)
        # One far ahead of those that are known is not to be waited for: headers are the producer's.
        return version not in known and 0 <= version <= max(known) + _MANY_VERSIONS


@dataclass(frozen=True)
class _ByVersion:
    """Decodes each value by the version that its header says."""

    latest: Decode
    older: Mapping[int, Decode]
    current: Mapping[int, Decode]
    kind: Any

    def __call__(self, values: Any, headers: Any) -> Decoded:
        versions = versions_of(headers)
        found = np.unique(versions).tolist()
        if all(version in self.current for version in found):
            return self.latest(values)
        pieces, rows, bad = [], [], []
        for version in found:
            chosen = np.flatnonzero(versions == version)
            decode = self.current.get(version) or self.older.get(version) or self._unknown
            piece, wrong = decode(values.take(pa.array(chosen)))
            pieces.append(piece)
            rows.append(chosen)
            bad.extend(chosen[list(wrong)].tolist())
        order = np.argsort(np.concatenate(rows))
        return pa.concat_arrays(pieces).take(pa.array(order)), sorted(bad)

    def _unknown(self, values: Any) -> Decoded:
        return pa.nulls(len(values), self.kind), np.flatnonzero(np.asarray(values.is_valid())).tolist()


def versions_of(headers: Any) -> Ints:
    """By which version of its schema each record was written, by its last header that says so."""
    found = np.full(len(headers), _LATEST, np.int64)
    lists = headers.combine_chunks() if isinstance(headers, pa.ChunkedArray) else headers
    named = lists.values.field("key")
    places = np.flatnonzero(np.asarray(pc.equal(named, SCHEMA_VERSION)))
    if not len(places):
        return found
    offsets = np.asarray(lists.offsets)
    places = places[(places >= offsets[0]) & (places < offsets[-1])]
    texts = lists.values.field("value").take(pa.array(places))
    rows = np.searchsorted(offsets, places, side="right") - 1
    for row, text in zip(rows.tolist(), _numbers(texts), strict=True):
        found[row] = text
    return found


def _numbers(texts: Any) -> list[int]:
    try:
        return [
            _NO_VERSION if one is None else one for one in texts.cast(pa.string()).cast(pa.int64()).to_pylist()
        ]
    except pa.ArrowInvalid:
        return [_number(one) for one in texts.to_pylist()]


def _number(text: bytes | None) -> int:
    """Headers are the producer's: they may say anything."""
    return int(text) if text is not None and len(text) < 19 and text.isdigit() else _NO_VERSION


def value_schema(topic: str, versions: list[TopicSchema], *, permissive: bool) -> ValueSchema:
    """The schema of a topic's values, and of its keys if it says so, if these can be columns."""
    latest = versions[-1]
    if latest.kind != KEY_VALUE:
        return _one_schema(topic, versions, permissive=permissive)
    split = {one.version: split_schema(one, topic) for one in versions if one.kind == KEY_VALUE}
    keys, values = [one.key for one in split.values()], [one.value for one in split.values()]
    found = _one_schema(topic, values, permissive=permissive)
    key = replace(_one_schema(topic, keys, permissive=permissive), column="key")
    return replace(found, key=key, inline=split[latest.version].inline)


def _one_schema(topic: str, versions: list[TopicSchema], *, permissive: bool) -> ValueSchema:
    latest = versions[-1]
    kind, definition = latest.kind, latest.definition
    if kind == KEY_VALUE or kind not in KINDS:
        raise ConfigError(
            f"the schema of {topic} is {kind}; {', '.join(KINDS)} can be columns",
            hint="leave valueFormat out, and parse the value in the query",
        )
    if kind == "PROTOBUF_NATIVE":
        definition = native_definition(definition)
    elif kind == "PROTOBUF":
        definition = numbered_definition(latest.properties, topic)
    # JSON's values name their fields and protobuf's number them: the latest reads them all.
    avro = [one for one in versions if one.kind == "AVRO"] if kind == "AVRO" else []
    found = ValueSchema(topic, kind, definition, permissive, tuple((one.version, one.definition) for one in avro))
    found.decoder()  # what cannot be a column is told now, on the driver
    return found


def _strings(values: Any, kind: Any) -> Decoded:
    try:
        return values.cast(kind), []
    except pa.ArrowInvalid:
        return one_by_one(values, lambda raw: raw.decode(), kind, lambda array: array)


#: Rows of a batch whose values do not fit.
_Bad = set[int]


def _only(values: Any, rows: _Bad) -> Any:
    """These values, and null in place of the others."""
    chosen = np.zeros(len(values), bool)
    chosen[list(rows)] = True
    return pc.if_else(pa.array(chosen), values, pa.scalar(None, values.type))


def _version_of(batch: Any, row: int) -> int:
    return int(versions_of(batch.column("headers").slice(row, 1))[0])


def _as_it_is(batch: Any, wrong: _Bad) -> Any:
    return batch
