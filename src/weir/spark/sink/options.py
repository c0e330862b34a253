"""What a write asked for, checked once and as a value, which travels to the tasks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.client.kafka.settings import KafkaSettings
from weir.model.errors import ConfigError
from weir.spark.source.option_table import known
from weir.spark.source.options import connection
from weir.wire.kafka.records import Compression

#: Besides those of the connection: Spark's own for every sink, Kafka's for its producer, and Weir's.
SINK = (
    "topic",
    "sinkId",
    "sinkEpoch",
    "sinkTakeOver",
    "checkpointLocation",
    "queryName",
    "kafka.compression.type",
    "kafka.transaction.timeout.ms",
)
#: Of Kafka's producer, taken so that a job may keep them: what they tune is decided here.
_WITHOUT_EFFECT = (
    "kafka.acks",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.compression.gzip.level",
    "kafka.compression.lz4.level",
    "kafka.compression.zstd.level",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.linger.ms",
    "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.max.request.size",
    "kafka.metadata.max.idle.ms",
    "kafka.partitioner.adaptive.partitioning.enable",
    "kafka.partitioner.availability.timeout.ms",
    "kafka.retries",
)
#: Transactions of tasks wait for the slowest task, and then for the driver: they may take as long as an epoch may.
_DEFAULT_TIMEOUT_MS = 15 * 60_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    kafka: KafkaSettings
    topic: str | None
    compression: Compression
    timeout_ms: int
    admin_url: str | None
    sink_id: str | None
    #: Of a batch write: which epoch of `sink_id` it is, so that writing it again writes nothing.
    sink_epoch: int | None
    checkpoint: str | None
    #: The id of the query whose sink this one continues.
    take_over: str


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """ConfigError says which option is wrong, and what to write."""
    options = known(given, (*SINK, *_WITHOUT_EFFECT))
    compression = options.get("kafka.compression.type", "none").upper()
    if compression not in Compression.__members__:
        names = ", ".join(one.name.lower() for one in Compression)
        raise ConfigError(f"kafka.compression.type is {compression.lower()!r}", hint=f"write one of {names}")
    timeout = options.get("kafka.transaction.timeout.ms", str(_DEFAULT_TIMEOUT_MS))
    if not timeout.isdigit() or not int(timeout):
        raise ConfigError(f"kafka.transaction.timeout.ms is {timeout!r}", hint="write milliseconds")
    epoch = options.get("sinkEpoch")
    if epoch is not None and (not epoch.isdigit() or "sinkId" not in options):
        raise ConfigError(f"sinkEpoch is {epoch!r}", hint="write the number of an epoch, and give sinkId")
    take_over = options.get("sinkTakeOver", "")
    if take_over and "sinkId" not in options:
        raise ConfigError("sinkTakeOver is set without sinkId", hint="give the sinkId of the query to continue")
    return SinkOptions(
        kafka=connection(options),
        topic=options.get("topic") or options.get("path"),
        compression=Compression[compression],
        timeout_ms=int(timeout),
        admin_url=options.get("adminUrl"),
        sink_id=options.get("sinkId"),
        sink_epoch=None if epoch is None else int(epoch),
        checkpoint=options.get("checkpointLocation"),
        take_over=take_over,
    )


def stream_identity(options: SinkOptions) -> str:
    """Which stream this is, the same after a restart: what was named, else the query of the checkpoint, else its
    place."""
    if options.sink_id is not None:
        return options.sink_id
    if options.checkpoint is None:
        raise ConfigError("the stream has no name that outlives it", hint="give checkpointLocation, or sinkId")
    place = options.checkpoint.removeprefix("file:")
    try:
        found = json.loads(Path(place, "metadata").read_text(encoding="utf-8").splitlines()[-1])
        return f"spark-{found['id']}"
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return f"spark-{options.checkpoint}"
