"""Which times a topic's records have: its `message.timestamp.*`."""

from collections.abc import Mapping

from weir.gateway.kafka.admin.config_table import CONFIGS
from weir.gateway.kafka.catalog import CONFIG_PREFIX
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.produce.batches import BadRecordsError, opened
from weir.model.errors import ConfigError
from weir.model.ids import Buffer
from weir.model.value import value
from weir.wire.kafka.records import NO_TIMESTAMP, BatchHeader

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
