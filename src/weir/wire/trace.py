"""Traces as messages: an event is a JSON object, and the words by which it is found are its header `KEYS`."""

from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from weir.model.errors import WireError
from weir.model.messages import Message, TraceEvent
from weir.model.subscriptions import KEYS_HEADER
from weir.wire.formats.messages import encode_message

#: Offsets that share a word.
BUCKET = 64
_MOST_BUCKETS = 256
_decoder = msgspec.json.Decoder(TraceEvent)
_encoder = msgspec.json.Encoder()

#: As Pulsar's JSON schemas are written, in Avro's words: so Spark has columns.
SCHEMA = {
    "type": "record",
    "name": "TraceEvent",
    "fields": [
        *({"name": name, "type": ["null", "string"], "default": None} for name in ("event", "topic")),
        {"name": "ms", "type": ["null", "long"], "default": None},
        {"name": "broker", "type": ["null", "string"], "default": None},
        *({"name": name, "type": ["null", "long"], "default": None} for name in ("first", "end")),
        {"name": "took_ms", "type": ["null", "double"], "default": None},
        *(
            {"name": name, "type": ["null", "string"], "default": None}
            for name in ("producer", "subscription", "consumer", "address")
        ),
        {"name": "times", "type": ["null", "long"], "default": None},
        *({"name": name, "type": ["null", "string"], "default": None} for name in ("reason", "held")),
        *({"name": name, "type": ["null", "long"], "default": None} for name in ("due_ms", "ledger", "entry")),
        *(
            {"name": name, "type": ["null", {"type": "array", "items": "string"}], "default": None}
            for name in ("keys", "traces")
        ),
    ],
}


def encode_event(event: TraceEvent) -> bytes:
    """As a message for `wire.messages.join_messages`."""
    words = " ".join(_words(event)).encode()
    return encode_message(
        Message(event.topic.encode(), _encoder.encode(event), [(KEYS_HEADER, words)], publish_ms=event.ms)
    )


def decode_event(value: bytes | bytearray | memoryview) -> TraceEvent:
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as bad:
        raise WireError(f"what became of a message cannot be read: {bad}") from bad


def _words(event: TraceEvent) -> Iterator[str]:
    if event.first >= 0:
        buckets = range(event.first // BUCKET, (event.end - 1) // BUCKET + 1)
        for bucket in buckets[:_MOST_BUCKETS]:
            yield f"@{event.topic}/{bucket}"
    if event.ledger >= 0:
        count = event.end - event.first
        for bucket in range(event.entry // BUCKET, (event.entry + count - 1) // BUCKET + 1)[:_MOST_BUCKETS]:
            yield f"#{event.topic}/{event.ledger}:{bucket}"
    for key in dict.fromkeys(event.keys):
        if key:
            yield key_word(event.topic, key)
    for trace in dict.fromkeys(event.traces):
        if trace:
            yield trace_word(trace)


def offset_word(topic: str, offset: int) -> str:
    return f"@{topic}/{offset // BUCKET}"


def position_word(topic: str, ledger: int, entry: int) -> str:
    return f"#{topic}/{ledger}:{entry // BUCKET}"


def key_word(topic: str, key: str) -> str:
    return f"key:{topic}/{quote(key, safe='')}"


def trace_word(trace: str) -> str:
    return f"trace:{trace.lower()}"
