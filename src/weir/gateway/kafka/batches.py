"""A record batch on its way in: judged, copied once, and told to the broker in its own words."""

from weir.broker.api import Outgoing
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.settings import SessionLimits
from weir.model.batch import BatchFormat
from weir.model.errors import ChecksumError, UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.kafka.records import BatchHeader, Compression, produced_batch, with_append_time
from weir.wire.kafka.records_read import iter_records

#: Older clients could not have read it, so older requests may not carry it.
_ZSTD_SINCE = 7
_COPIED_BELOW_BYTES = 16 * 1024


def judged(records: Buffer | None, version: int, limits: SessionLimits) -> BatchHeader:
    """The header of a partition's records, if they may be stored; RefusedError."""
    try:
        header = produced_batch(records or b"")
    except ChecksumError as damaged:
        raise RefusedError(Code.CORRUPT_MESSAGE, str(damaged)) from damaged
    except UnknownVersionError as old:
        raise RefusedError(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(old)) from old
    except WireError as bad:
        raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad
    if header.size > limits.max_batch_bytes:
        raise RefusedError(
            Code.MESSAGE_TOO_LARGE, f"a batch has {header.size} bytes, {limits.max_batch_bytes} are allowed"
        )
    if header.count > limits.max_batch_records:
        raise RefusedError(Code.INVALID_RECORD, f"a batch has {header.count} records")
    if version < _ZSTD_SINCE and header.compression is Compression.ZSTD:
        raise RefusedError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of produce")
    return header


def check_keys(records: Buffer) -> None:
    """A topic that compacts itself could never forget a record without a key."""
    try:
        missing = any(record.key is None for record in iter_records(records))
    except WireError as bad:
        raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad
    if missing:
        raise RefusedError(Code.INVALID_RECORD, "a compacted topic takes no records without a key")


def outgoing_of(records: Buffer, header: BatchHeader, append_ms: int | None) -> Outgoing:
    """What the broker stores. `append_ms`: the time to stamp the records with, if they shall not keep their own.

    A small batch is copied out of the receive buffer, which it would pin until it is stored. A large one is most
    of what was received, and is copied once it is written to a ledger."""
    if append_ms is not None:
        payload: Buffer = with_append_time(records, append_ms)
    else:
        payload = records if len(records) >= _COPIED_BELOW_BYTES else bytes(records)
    return Outgoing(
        payload,
        header.count,
        BatchFormat.KAFKA,
        stamp=header.stamp,
        transactional=header.transactional,
    )
