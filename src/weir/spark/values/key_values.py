"""Topics whose schema is KEY_VALUE: where key and value are, and by which schemas.

With INLINE both are in the message's value, each behind its length; with SEPARATED the key is the message's own.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, replace
from struct import Struct, error
from typing import Any

import numpy as np
import pyarrow as pa

from weir.client.registry import TopicSchema
from weir.model.errors import WireError
from weir.spark.source.decode import binary_array
from weir.spark.source.kernels import Ints, bytes_of
from weir.spark.values.columns_of import spans_of

KIND = "KEY_VALUE"
_LENGTH = Struct(">i")
#: As Pulsar's clients name the way in which key and value are written; INLINE unless said.
_ENCODING = "kv.encoding.type"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """The two schemas of one version, and whether both lie in the value."""

    key: TopicSchema
    value: TopicSchema
    inline: bool


def split_schema(schema: TopicSchema, topic: str) -> KeyValue:
    """The registry tells the two definitions one behind the other, each behind its length, in base64."""
    try:
        data, place = b64decode(schema.definition, validate=True), 0
        parts = []
        for name in ("key", "value"):
            (length,) = _LENGTH.unpack_from(data, place)
            begin = place + _LENGTH.size
            place = begin + max(0, length)
            kind = schema.properties.get(f"{name}.schema.type", "BYTES")
            told = json.loads(schema.properties.get(f"{name}.schema.properties") or "{}") or {}
            text = _definition(kind, data[begin:place])
            parts.append(replace(schema, kind=kind, definition=text, properties=dict(told)))
    except (Base64Error, ValueError, error, TypeError):
        raise WireError(f"the registry's schema of {topic} is no KEY_VALUE") from None
    inline = schema.properties.get(_ENCODING, "INLINE").upper() != "SEPARATED"
    return KeyValue(parts[0], parts[1], inline)


def _definition(kind: str, data: bytes) -> str:
    """As the registry tells it of a topic that has this schema alone."""
    return b64encode(data).decode() if kind == "PROTOBUF_NATIVE" else data.decode()


def split_inline(values: Any) -> tuple[Any, Any, list[int]]:
    """Keys and values that lie one behind the other, and the rows where they do not."""
    spans = spans_of(values)
    data = values.buffers()[2] or b""
    view = np.frombuffer(data, np.uint8)
    begins = spans[:, 0].copy()
    ends = spans[:, 1]
    there = begins >= 0
    keys, after = _part(view, begins, ends, there)
    found, after = _part(view, after, ends, there & (after >= 0))
    whole = there & (after == ends)
    bad = np.flatnonzero(there & ~whole).tolist()
    arrays = []
    for starts, sizes in (keys, found):
        sizes[~whole] = -1
        arrays.append(binary_array(pa.binary(), bytes_of(data), starts, sizes))
    return arrays[0], arrays[1], bad


def _part(view: Any, at: Ints, ends: Ints, there: Any) -> tuple[tuple[Ints, Ints], Ints]:
    """Where the parts behind their lengths begin, their sizes (-1: null), and where each ends (-1: beyond all)."""
    there = there & (ends - at >= _LENGTH.size)
    sizes = np.full(len(at), -1, np.int64)
    if there.any():
        raw = view[at[there, None] + np.arange(_LENGTH.size)]
        sizes[there] = np.ascontiguousarray(raw).view(">i4")[:, 0]
    begins = at + _LENGTH.size
    after = begins + np.maximum(sizes, 0)
    after[~there | (sizes < -1) | (after > ends)] = -1
    return (begins, sizes), after
