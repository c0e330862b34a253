"""What messages say, by the schema of their topic: every kind that the registry keeps; else text or bytes."""

import io
import json
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from weir.wire.schema_values import PartSchema, native_class, numbered_class, split, split_schema

_SHOWN_HEX = 4096
#: How Pulsar's clients write plain values: big-endian numbers.
_NUMBERS = {"INT8": ">b", "INT16": ">h", "INT32": ">i", "INT64": ">q", "FLOAT": ">f", "DOUBLE": ">d"}


@dataclass(frozen=True, slots=True)
class Shown:
    """`kind`: what it was read as. `problem`: why it is shown as bytes though there is a schema."""

    text: str
    kind: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A version of a topic's schema: type, definition and properties as the registry has them."""

    type: str
    data: bytes
    properties: Mapping[str, str]

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any]) -> "ValueSchema":
        """As the admin API tells it."""
        data, kind = answer["data"], answer["type"]
        raw = b64decode(data) if kind in ("PROTOBUF_NATIVE", "KEY_VALUE") else data.encode()
        return cls(kind, raw, answer.get("properties") or {})


def show(value: bytes | None, schema: ValueSchema | None, key: bytes | None = None) -> Shown:
    """A value as text for people."""
    if value is None:
        return Shown("null", "null")
    if schema is None or schema.type in ("BYTES", "NONE", "AUTO_CONSUME"):
        return plain(value)
    try:
        decoded = decode(value, schema, key)
    except Exception as bad:  # whatever codecs raise on bytes that are something else
        raw = plain(value)
        return Shown(raw.text, raw.kind, f"not {schema.type}: {str(bad)[:200] or type(bad).__name__}")
    if isinstance(decoded, str):
        return Shown(decoded, schema.type)
    return Shown(json.dumps(decoded, indent=2, ensure_ascii=False, default=_text), schema.type)


def plain(value: bytes) -> Shown:
    """JSON laid out, text as it is, everything else in hexadecimal digits."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return Shown(hexadecimal(value), "bytes")
    if text[:1] in ("{", "["):
        try:
            return Shown(json.dumps(json.loads(text), indent=2, ensure_ascii=False), "JSON")
        except (ValueError, RecursionError):
            pass
    if any(ord(letter) < 32 and letter not in "\n\r\t" for letter in text):
        return Shown(hexadecimal(value), "bytes")
    return Shown(text, "text")


def hexadecimal(data: bytes) -> str:
    """Sixteen bytes a line, with their letters."""
    lines = []
    for at in range(0, min(len(data), _SHOWN_HEX), 16):
        row = data[at : at + 16]
        letters = "".join(chr(one) if 32 <= one < 127 else "·" for one in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {letters}")
    if len(data) > _SHOWN_HEX:
        lines.append(f"… {len(data) - _SHOWN_HEX} more bytes")
    return "\n".join(lines)


def decode(value: bytes, schema: ValueSchema, key: bytes | None = None) -> Any:
    """By the schema, as plain values; raises whatever its codec does."""
    if schema.type in _NUMBERS:
        return struct.unpack(_NUMBERS[schema.type], value)[0]
    if schema.type == "KEY_VALUE":
        return _key_value(value, schema, key)
    by = _DECODERS.get(schema.type)
    if by is None:
        raise ValueError(f"the console knows no {schema.type}")
    return by(value, schema)


def encode(text: str, schema: ValueSchema | None) -> bytes:
    """What somebody typed, by the schema; ValueError if it does not fit."""
    kind = "BYTES" if schema is None else schema.type
    match kind:
        case "AVRO" if schema is not None:
            import fastavro

            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema.data)), json.loads(text))
            return out.getvalue()
        case "PROTOBUF_NATIVE" | "PROTOBUF" if schema is not None:
            from google.protobuf import json_format  # type: ignore[import-untyped]

            message = native_class(schema.data) if kind == "PROTOBUF_NATIVE" else numbered_class(schema.properties)
            found: bytes = json_format.Parse(text, message()).SerializeToString()
            return found
        case "JSON":
            json.loads(text)
            return text.encode()
        case "BOOLEAN":
            return b"\x01" if text.strip().lower() in ("true", "1", "yes") else b"\x00"
        case kind if kind in _NUMBERS:
            number = float(text) if kind in ("FLOAT", "DOUBLE") else int(text)
            return struct.pack(_NUMBERS[kind], number)
        case "BYTES" | "STRING" | "NONE":
            return text.encode()
        case kind:
            raise ValueError(f"values of the schema {kind} cannot be typed here; send them with a client")


# --- kinds ------------------------------------------------------------------------------------------------------


def _avro(value: bytes, definition: bytes) -> Any:
    import fastavro

    stream = io.BytesIO(value)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(definition)), None)
    if stream.read(1):
        raise ValueError("there are bytes behind the value")
    return found


def _protobuf(value: bytes, message: Any) -> Any:
    from google.protobuf import json_format

    return json_format.MessageToDict(message.FromString(value), preserving_proto_field_name=True)


def _key_value(value: bytes, schema: ValueSchema, key: bytes | None) -> Any:
    both = split_schema(schema.data, schema.properties)
    said: bytes | None = value
    if both.inline:
        key, said = split(value)
    return {"key": _part(key, both.key), "value": _part(said, both.value)}


def _part(data: bytes | None, part: PartSchema) -> Any:
    if data is None:
        return None
    if part.kind in ("BYTES", "NONE"):
        return plain(data).text
    return decode(data, ValueSchema(part.kind, part.definition, part.properties))


def _moment(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()


def _time(nanos: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanos // 1000)).time().isoformat()


def _text(value: object) -> str:
    return hexadecimal(value) if isinstance(value, bytes) else str(value)


def _instant(value: bytes) -> str:
    seconds, nanos = struct.unpack(">qi", value)
    return _moment(seconds * 1_000_000 + nanos // 1000)


def _date(value: bytes) -> str:
    return (date(1970, 1, 1) + timedelta(days=struct.unpack(">q", value[:8])[0])).isoformat()


def _millis(value: bytes, schema: ValueSchema) -> str:
    return _moment(struct.unpack(">q", value)[0] * 1000)


_DECODERS: dict[str, Callable[[bytes, ValueSchema], Any]] = {
    "STRING": lambda value, schema: value.decode(),
    "JSON": lambda value, schema: json.loads(value),
    "AVRO": lambda value, schema: _avro(value, schema.data),
    "PROTOBUF_NATIVE": lambda value, schema: _protobuf(value, native_class(schema.data)),
    "PROTOBUF": lambda value, schema: _protobuf(value, numbered_class(schema.properties)),
    "BOOLEAN": lambda value, schema: bool(struct.unpack(">?", value)[0]),
    "DATE": _millis,
    "TIME": _millis,
    "TIMESTAMP": _millis,
    "INSTANT": lambda value, schema: _instant(value),
    "LOCAL_DATE": lambda value, schema: _date(value),
    "LOCAL_TIME": lambda value, schema: _time(struct.unpack(">q", value)[0]),
    "LOCAL_DATE_TIME": lambda value, schema: f"{_date(value)}T{_time(struct.unpack('>q', value[8:])[0])}",
}
