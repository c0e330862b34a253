"""A record batch on its way in: judged, copied once, and told to the broker in its own words.

Which times a topic's records have: its `message.timestamp.*`.
"""

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

#: Older clients could not have read it, so older requests may not carry it.
_ZSTD_SINCE = 7
_COPIED_BELOW_BYTES = 16 * 1024
#: What a message that is as large as any may be can say about itself in headers more, when it is copied.
_ABOUT_COPIES_BYTES = 16 * 1024


_Bad = m.ProduceResponse.BatchIndexAndErrorMessage
_ADDRESSEE = SUBSCRIPTION_HEADER.encode()
#: Bad records of a batch that its producer is told of one by one.
_TOLD = 100


class BadRecordsError(RefusedError):
    """Some records of a batch may not be stored, so none of it is."""

    def __init__(self, code: Code, what: str, records: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, what)
        #: The place of each in its batch, and what is wrong with it.
        self.told = [_Bad(batch_index=at, batch_index_error_message=text) for at, text in records[:_TOLD]]


def judged(records: Buffer | None, version: int, limits: SessionLimits) -> BatchHeader:
    """The header of a partition's records, if they may be stored; RefusedError."""
    records = records or b""
    try:
        header = produced_batch(records)
        check_sizes(records, header)
    except ChecksumError as damaged:
        raise RefusedError(Code.CORRUPT_MESSAGE, str(damaged)) from damaged
    except UnknownVersionError as other:
        # The same answer for what is too old and for what makes no sense, as in Kafka.
        code = Code.INVALID_RECORD if records[MAGIC_AT] < MAGIC else Code.CORRUPT_MESSAGE
        raise RefusedError(code, str(other)) from other
    except WireError as bad:
        raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad
    if header.base_offset:
        raise RefusedError(Code.INVALID_RECORD, f"a producer's batch begins at {header.base_offset}, not at 0")
    most_bytes = limits.max_batch_bytes + (_ABOUT_COPIES_BYTES if is_copy(header) else 0)
    if header.size > most_bytes:
        raise RefusedError(Code.MESSAGE_TOO_LARGE, f"a batch has {header.size} bytes, {most_bytes} are allowed")
    if header.count > limits.max_batch_records:
        # Clients that can, cut it in two and try again.
        raise RefusedError(Code.MESSAGE_TOO_LARGE, f"a batch has {header.count} records")
    if version < _ZSTD_SINCE and header.compression is Compression.ZSTD:
        raise RefusedError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of produce")
    return header


def is_copy(header: BatchHeader) -> bool:
    """Whether it may be a copy that says where it comes from: one message of an idempotent producer's."""
    return header.records == 1 and header.producer_id >= 0


def opened(records: Buffer) -> Iterator[Record]:
    """The records of a batch; RefusedError where they cannot be read."""
    try:
        yield from iter_records(records)
    except WireError as bad:
        raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad


def check_keys(records: Buffer, name: str) -> None:
    """A topic that compacts itself could never forget a record without a key."""
    missing = [number for number, record in enumerate(opened(records)) if record.key is None]
    if missing:
        raise BadRecordsError(
            Code.INVALID_RECORD,
            "One or more records have been rejected",
            [(number, f"Compacted topic {name} takes no record without a key") for number in missing],
        )


def outgoing_of(records: Buffer, header: BatchHeader, append_ms: int | None) -> Outgoing:
    """What the broker stores. `append_ms`: the time to stamp the records with, if they shall not keep their own.

    A small batch is copied out of the receive buffer, which it would pin until it is stored. A large one is most
    of what was received, and is copied once it is written to a ledger."""
    if append_ms is not None:
        payload: Buffer = with_append_time(records, append_ms)
    elif header.log_append_time:  # that is not its producer's to say
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
    """The subscription that a batch is for; RefusedError if its first record does not name one."""
    for record in opened(records):
        for name, content in record.headers:
            if name == _ADDRESSEE and content:
                try:
                    return bytes(content).decode()
                except UnicodeDecodeError:
                    break
        break
    raise RefusedError(Code.INVALID_RECORD, "a batch for one subscription does not name it")


_TYPE = "message.timestamp.type"
_BEFORE = "message.timestamp.before.max.ms"
_AFTER = "message.timestamp.after.max.ms"
_NO_BOUND = (1 << 63) - 1


@value
class RecordTimes:
    """Of one topic."""

    #: Whether records get the broker's time, rather than keeping their own.
    appended: bool = False
    #: How much older and younger than now their own times may be.
    before_ms: int = _NO_BOUND
    after_ms: int = _NO_BOUND


def times_of(properties: Mapping[str, str]) -> RecordTimes:
    """As a topic's properties say, or else as Kafka does it."""
    appended = properties.get(CONFIG_PREFIX + _TYPE) == "LogAppendTime"
    return RecordTimes(appended, _number(properties, _BEFORE), _number(properties, _AFTER))


def check_times(records: Buffer, header: BatchHeader, times: RecordTimes, now_ms: int) -> None:
    """BadRecordsError for records of another time. The batch is opened only if its header leaves a doubt."""
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
    except ConfigError:  # a property that was written by other means
        found = int(config.default)
    return found
