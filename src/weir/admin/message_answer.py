"""One stored message as an HTTP answer: its payload, and what it says about itself in headers."""

import json
import re

from weir.admin.bodies import MessageIdBody
from weir.admin.http import Response
from weir.admin.routing import BYTES, RefusedError
from weir.admin.stats_map import moment
from weir.model.batch import Batch
from weir.model.errors import WireError
from weir.wire.pulsar.batch import open_payload
from weir.wire.pulsar.message import is_batch, parse_metadata, split_message
from weir.wire.pulsar.proto import api
from weir.wire.translation import pulsar_entry

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_PLAIN = re.compile(r"[ -~]*")


def message_answer(batch: Batch, at: MessageIdBody) -> Response:
    """The batch as Pulsar's admin clients read it: not compressed, and still a batch if it is one."""
    try:
        parts = split_message(memoryview(pulsar_entry(batch).payload))
        metadata = parse_metadata(parts)
        encrypted = bool(metadata.encryption_keys)
        payload = parts.payload if encrypted else open_payload(metadata, parts.payload)
    except WireError as bad:
        raise RefusedError(422, f"the message cannot be read: {bad}") from bad
    headers = _headers(metadata, batch, at)
    headers["X-Pulsar-Is-Encrypted"] = str(encrypted).lower()
    return Response(200, bytes(payload), BYTES, {name: text for name, text in headers.items() if _plain(text)})


def _headers(metadata: api.MessageMetadata, batch: Batch, at: MessageIdBody) -> dict[str, str]:
    headers = {
        "X-Pulsar-Message-ID": f"{at.ledgerId}:{at.entryId}",
        "X-Pulsar-publish-time": moment(metadata.publish_time),
        "X-Pulsar-producer-name": _text(metadata.producer_name),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-Broker-Entry-METADATA-timestamp": moment(batch.append_ms),
        "X-Pulsar-Broker-Entry-METADATA-index": str(batch.end_offset - 1),
    }
    if metadata.HasField("event_time") and metadata.event_time:
        headers["X-Pulsar-event-time"] = moment(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        headers["X-Pulsar-deliver-at-time"] = moment(metadata.deliver_at_time)
    if is_batch(metadata):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = _text(metadata.partition_key)
        headers["X-Pulsar-partition-key-b64-encoded"] = str(metadata.partition_key_b64_encoded).lower()
    properties = {_text(pair.key): _text(pair.value) for pair in metadata.properties}
    if properties:  # as newer clients read them, and as older ones do
        headers["X-Pulsar-PROPERTY"] = json.dumps(properties)
    for key, value in properties.items():
        if _TOKEN.fullmatch(key):
            headers[f"X-Pulsar-PROPERTY-{key}"] = value
    return headers


def _plain(text: str) -> bool:
    """Whether it can stand in a header; what cannot is left out (properties are in the JSON, too)."""
    return _PLAIN.fullmatch(text) is not None and text == text.strip()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
