"""A record batch on its way in: judged, copied once, and told to the broker in its own words."""

from weir.broker.api import Outgoing
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.settings import SessionLimits
from weir.model.batch import BatchFormat
from weir.model.errors import ChecksumError, UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.kafka.records import BatchHeader, Compression, produced, with_append_time
from weir.wire.kafka.records_read import iter_records

#: Older clients could not have read it, so older requests may not carry it.
_ZSTD_SINCE = 7


def outgoing_of(
    records: Buffer | None, version: int, limits: SessionLimits, *, append_ms: int | None, keyed: bool
) -> Outgoing:
    """What the broker stores for a partition's records. `append_ms`: the time to stamp them with, if they shall
    not keep their own. `keyed`: whether each of them must have a key.

    The bytes are copied out of the receive buffer, once: kept as a slice, a small batch would pin a large buffer
    for as long as it stays in the tail cache."""
    header, batch = _judged(records, version, limits, keyed=keyed)
    payload = bytes(batch) if append_ms is None else with_append_time(batch, append_ms)
    return Outgoing(
        payload,
        header.count,
        BatchFormat.KAFKA,
        stamp=header.stamp,
        transactional=header.transactional,
    )


def _judged(
    records: Buffer | None, version: int, limits: SessionLimits, *, keyed: bool
) -> tuple[BatchHeader, memoryview]:
    try:
        batches = produced(records or b"")
        if len(batches) != 1:
            raise RefusedError(Code.INVALID_RECORD, f"a partition gets one batch per request, not {len(batches)}")
        header, batch = batches[0]
        if keyed and any(record.key is None for record in iter_records(batch)):
            raise RefusedError(Code.INVALID_RECORD, "a compacted topic takes no records without a key")
    except ChecksumError as damaged:
        raise RefusedError(Code.CORRUPT_MESSAGE, str(damaged)) from damaged
    except UnknownVersionError as old:
        raise RefusedError(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(old)) from old
    except WireError as bad:
        raise RefusedError(Code.INVALID_RECORD, str(bad)) from bad
    if len(batch) > limits.max_batch_bytes:
        raise RefusedError(
            Code.MESSAGE_TOO_LARGE, f"a batch has {len(batch)} bytes, {limits.max_batch_bytes} are allowed"
        )
    if header.count > limits.max_batch_records:
        raise RefusedError(Code.INVALID_RECORD, f"a batch has {header.count} records")
    if header.compression is Compression.ZSTD and version < _ZSTD_SINCE:
        raise RefusedError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of produce")
    return header, batch
