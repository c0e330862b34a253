"""Kafka's record batches as a stored format.

An empty value is a value like any other in Kafka: compaction goes by each protocol's own word.
"""

from collections.abc import Iterable, Sequence

from weir.model.batch import Batch, BatchFormat
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.message import DELAY_ID, Message, delay_id_in
from weir.model.steps import Steps
from weir.wire.formats.form import Keyed, Translated, unkeyed
from weir.wire.kafka import records
from weir.wire.kafka.records_build import build_batch
from weir.wire.kafka.records_drop import keep_records
from weir.wire.kafka.records_read import iter_records
from weir.wire.kafka.translation import messages_of_records, records_of_messages, sticky_keys


class KafkaFormat:
    tag = BatchFormat.KAFKA

    def split(self, batch: Batch) -> Iterable[Message]:
        return messages_of_records(batch.payload, batch.append_ms)

    def keys(self, batch: Batch) -> Sequence[bytes | None] | None:
        """One key for each record: Kafka's producers batch by partition, not by key."""
        try:
            keys = sticky_keys(batch.payload)
        except WireError:
            return None
        return keys if len(keys) == batch.count else None

    def keyed(self, batch: Batch) -> list[Keyed]:
        try:
            found = [
                (None if record.key is None else bytes(record.key), record.value is not None)
                for record in iter_records(batch.payload)
            ]
        except WireError:
            found = []
        return found if len(found) == batch.count else unkeyed(batch)

    def delay_id(self, batch: Batch) -> str | None:
        payload = bytes(batch.payload)
        if DELAY_ID not in payload:  # nearly every batch; one with this header is stored uncompressed
            return None
        try:
            found = list(iter_records(payload))
        except WireError:
            return None
        return delay_id_in(found[0].headers) if len(found) == 1 else None

    def opened_size(self, batch: Batch) -> int:
        return len(batch.payload)

    def own(self, batch: Batch, wanted: int | None) -> Translated:
        """At its offset. The offsets of what is not wanted stay empty."""
        return Translated(_own_records(batch, wanted), batch.count)

    def join(self, batch: Batch, messages: list[Message], wanted: int | None) -> Steps[Translated]:
        if wanted == 0:
            return Translated([empty_records(batch)], 0)
        if len(messages) != batch.count:
            wanted = None  # it stands for all of them
        made = yield from records_of_messages(
            messages,
            base_offset=batch.base_offset,
            count=batch.count,
            wanted=wanted,
            origin=_origin(batch, messages),
        )
        return Translated([made], len(messages))


def _origin(batch: Batch, messages: Sequence[Message]) -> int:
    """By which protocol it was written. Messages one at a time are AMQP's, unless they say otherwise."""
    if batch.format is not BatchFormat.MESSAGES:
        return records.ORIGINS.index("pulsar") if batch.format is BatchFormat.PULSAR else 0
    native = messages[0].native if messages else None
    name = "amqp" if native is None else native[0]
    return records.ORIGINS.index(name) if name in records.ORIGINS else 0


def _own_records(batch: Batch, wanted: int | None) -> list[Buffer]:
    if wanted is None or wanted == (1 << batch.count) - 1:
        return records.patched(batch.payload, batch.base_offset)
    if wanted == 0:
        return [empty_records(batch)]
    try:
        return [keep_records(batch.payload, wanted, batch.base_offset)]
    except WireError:
        return records.patched(batch.payload, batch.base_offset)  # nobody can tell its records apart


def empty_records(batch: Batch) -> bytes:
    """Its offsets without a record: a consumer goes on behind them."""
    return build_batch([], base_offset=batch.base_offset, last_offset_delta=batch.count - 1)
