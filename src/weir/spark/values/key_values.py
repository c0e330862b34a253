"""Topics whose schema is KEY_VALUE: where key and value are, and by which schemas.

With INLINE both are in the message's value, each behind its length; with SEPARATED the key is the message's own.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from weir.client.registry import TopicSchema
from weir.model.errors import WireError
from weir.spark.source.decode import binary_array
from weir.spark.source.kernels import Ints, bytes_of
from weir.spark.values.columns_of import spans_of
from weir.wire import key_values as wire

KIND = wire.KIND
_LENGTH_BYTES = wire.LENGTH.size


@dataclass(frozen=True, slots=True)
class KeyValue:
    """The two schemas of one version, and whether both lie in the value."""

    key: TopicSchema
    value: TopicSchema
    inline: bool


def split_schema(schema: TopicSchema, topic: str) -> KeyValue:
    """The registry tells the two definitions one behind the other, each behind its length, in base64."""
    try:
        both = wire.split_schema(b64decode(schema.definition, validate=True), schema.properties)
        key, value = (
            replace(schema, kind=part.kind, definition=_definition(part), properties=dict(part.properties))
            for part in (both.key, both.value)
        )
    except (Base64Error, ValueError, TypeError, WireError):
        raise WireError(f"the registry's schema of {topic} is no KEY_VALUE") from None
    return KeyValue(key, value, both.inline)


def _definition(part: wire.PartSchema) -> str:
    """As the registry tells it of a topic that has this schema alone."""
    encoded = part.kind == "PROTOBUF_NATIVE"
    return b64encode(part.definition).decode() if encoded else part.definition.decode()


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
    there = there & (ends - at >= _LENGTH_BYTES)
    sizes = np.full(len(at), -1, np.int64)
    if there.any():
        raw = view[at[there, None] + np.arange(_LENGTH_BYTES)]
        sizes[there] = np.ascontiguousarray(raw).view(">i4")[:, 0]
    begins = at + _LENGTH_BYTES
    after = begins + np.maximum(sizes, 0)
    after[~there | (sizes < -1) | (after > ends)] = -1
    return (begins, sizes), after
