"""Validates produced record batches, applies `message.timestamp.*`, and converts them for the broker."""

from collections.abc import Iterator, Mapping, Sequence

from weir.broker.api.producers import Outgoing
from weir.gateway.kafka.config_table import CONFIGS
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.metadata import CONFIG_PREFIX
from weir.gateway.kafka.settings import SessionLimits
from weir.model.batch import BatchFormat
from weir.model.definitions import SUBSCRIPTION_HEADER
from weir.model.errors import ChecksumError, ConfigError, UnknownVersionError, WireError
from weir.model.ids import Buffer, value
from weir.wire.kafka import messages as m
from weir.wire.kafka.record_batch import (
    MAGIC,
    MAGIC_AT,
    NO_TIMESTAMP,
    BatchHeader,
    Compression,
    produced_batch,
    with_append_time,
    with_own_times,
)
from weir.wire.kafka.records import Record, check_sizes, iter_records

#: Consumers of older versions cannot read zstd, so older produce requests may not carry it.
_ZSTD_SINCE = 7
_COPIED_BELOW_BYTES = 16 * 1024
#: Extra bytes for the headers that describe the origin of a copied message of maximum size.
_ABOUT_COPIES_BYTES = 16 * 1024


_Bad = m.ProduceResponse.BatchIndexAndErrorMessage
_ADDRESSEE = SUBSCRIPTION_HEADER.encode()
#: Invalid records of a batch that the response lists.
_TOLD = 100


class BadRecordsError(RefusedError):
    """A batch was refused as a whole because some of its records are invalid."""

    def __init__(self, code: Code, what: str, records: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, what)
        #: The index of each invalid record in its batch, and the reason.
        self.told = [_Bad(batch_index=at, batch_index_error_message=text) for at, text in records[:_TOLD]]


def judged(records: Buffer | None, version: int, limits: SessionLimits) -> BatchHeader:
    """Validate a partition's record batch and return its header; RefusedError."""
    records = records or b""
    try:
        header = produced_batch(records)
        check_sizes(records, header)
    except ChecksumError as damaged:
        raise RefusedError(Code.CORRUPT_MESSAGE, str(damaged)) from damaged
    except UnknownVersionError as other:
        # As in Kafka: one code for an outdated format, another for an unknown one.
        code = Code.INVALID_RECORD if records[MAGIC_AT] < MAGIC else Code.CORRUPT_MESSAGE
        raise RefusedError(code, str(other)) from other
    except WireError as bad:
        raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad
    if header.base_offset:
        raise RefusedError(Code.INVALID_RECORD, f"a produced batch has base offset {header.base_offset}, not 0")
    most_bytes = limits.max_batch_bytes + (_ABOUT_COPIES_BYTES if is_copy(header) else 0)
    if header.size > most_bytes:
        raise RefusedError(Code.MESSAGE_TOO_LARGE, f"a batch has {header.size} bytes, {most_bytes} are allowed")
    if header.count > limits.max_batch_records:
        # Some clients split the batch and retry.
        raise RefusedError(Code.MESSAGE_TOO_LARGE, f"a batch has {header.count} records")
    if version < _ZSTD_SINCE and header.compression is Compression.ZSTD:
        raise RefusedError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of produce")
    return header


def is_copy(header: BatchHeader) -> bool:
    """Whether the batch may be a copied message with origin headers: one record of an idempotent producer."""
    return header.records == 1 and header.producer_id >= 0


def opened(records: Buffer) -> Iterator[Record]:
    """The records of a batch; RefusedError if they cannot be decoded."""
    try:
        yield from iter_records(records)
    except WireError as bad:
        raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad


def check_keys(records: Buffer, name: str) -> None:
    """Refuse records without a key: compaction could never remove them."""
    missing = [number for number, record in enumerate(opened(records)) if record.key is None]
    if missing:
        raise BadRecordsError(
            Code.INVALID_RECORD,
            "One or more records have been rejected",
            [(number, f"Compacted topic {name} accepts only records with a key") for number in missing],
        )


def outgoing_of(records: Buffer, header: BatchHeader, append_ms: int | None) -> Outgoing:
    """Convert a batch for the broker. `append_ms`: the append time for the records; None: they keep their own.

    A small batch is copied: otherwise it would pin the receive buffer until it is stored. A large batch fills most
    of the buffer, so the only copy of it is the write to the ledger."""
    if append_ms is not None:
        payload: Buffer = with_append_time(records, append_ms)
    elif header.log_append_time:  # the topic decides this, not the producer
        payload = with_own_times(records)
    else:
        payload = records if len(records) >= _COPIED_BELOW_BYTES else bytes(records)
    return Outgoing(
        payload,
        header.count,
        BatchFormat.KAFKA,
        stamp=header.stamp,
        transactional=header.transactional,
        subscription=_addressee(records) if header.addressed else None,
    )


def _addressee(records: Buffer) -> str:
    """The subscription that a batch addresses; RefusedError if its first record does not name one."""
    for record in opened(records):
        for name, content in record.headers:
            if name == _ADDRESSEE and content:
                try:
                    return bytes(content).decode()
                except UnicodeDecodeError:
                    break
        break
    raise RefusedError(Code.INVALID_RECORD, "a batch that addresses one subscription does not name it")


_TYPE = "message.timestamp.type"
_BEFORE = "message.timestamp.before.max.ms"
_AFTER = "message.timestamp.after.max.ms"
_NO_BOUND = (1 << 63) - 1


@value
class RecordTimes:
    """The timestamp rules of one topic."""

    #: Whether records get the broker's append time instead of their own.
    appended: bool = False
    #: How far before and after now their own times may be.
    before_ms: int = _NO_BOUND
    after_ms: int = _NO_BOUND


def times_of(properties: Mapping[str, str]) -> RecordTimes:
    """Read the rules from a topic's properties; Kafka's defaults apply where they are not set."""
    appended = properties.get(CONFIG_PREFIX + _TYPE) == "LogAppendTime"
    return RecordTimes(appended, _number(properties, _BEFORE), _number(properties, _AFTER))


def check_times(records: Buffer, header: BatchHeader, times: RecordTimes, now_ms: int) -> None:
    """Raise BadRecordsError for records outside the allowed times. The function decodes the batch only if its
    header does not suffice."""
    latest = now_ms + times.after_ms
    if times.appended or (header.max_timestamp <= latest and times.before_ms == _NO_BOUND):
        return
    earliest = now_ms - times.before_ms
    bad = [
        (number, record.timestamp)
        for number, record in enumerate(opened(records))
        if record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest
    ]
    if bad:
        raise BadRecordsError(
            Code.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            [
                (number, f"Timestamp {time_ms} is out of range: it should be within [{earliest}, {latest}]")
                for number, time_ms in bad
            ],
        )


def _number(properties: Mapping[str, str], name: str) -> int:
    config = CONFIGS[name]
    try:
        found: int = config.parse(properties.get(CONFIG_PREFIX + name, config.default))
    except ConfigError:  # the property was not set through a Kafka config
        found = int(config.default)
    return found
