"""The options of the data source: those of Spark's own Kafka source, and Weir's own on top.

An option that is in no list here is an error, which names the nearest one that is.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from weir.model.errors import ConfigError

#: As Spark's Kafka source has them, with the same meaning.
SOURCE = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "groupIdPrefix",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
)

#: Weir's own.
OWN = (
    "path",  # what load(...) is given: the topics, as in subscribe
    "subscription",
    "retain",
    "orderedTimestamps",
    "token",
    "valueFormat",
    "mode",  # what becomes of a value that does not fit, as in Spark's own readers
    "columnNameOfCorruptRecord",  # where its bytes go then, as in Spark's own readers
    "adminUrl",
    "lake",  # whether what the lake has of the topics is read, too
    "includeRaw",  # columns more: key and value as the bytes that they came as
    "seam",  # set by Weir itself: where the lake's part of a read ends, by partition
    "schemaTopic",  # whose schema the values have, if it is not their own topic's
)

#: Settings of Kafka's consumer that mean something here.
KAFKA = (
    "kafka.bootstrap.servers",
    "kafka.check.crcs",
    "kafka.client.id",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.max.partition.fetch.bytes",
    "kafka.request.timeout.ms",
    "kafka.sasl.jaas.config",
    "kafka.sasl.mechanism",
    "kafka.sasl.password",
    "kafka.sasl.username",
    "kafka.security.protocol",
    "kafka.socket.connection.setup.timeout.ms",
    "kafka.ssl.ca.location",
    "kafka.ssl.certificate.location",
    "kafka.ssl.endpoint.identification.algorithm",
    "kafka.ssl.key.location",
    "kafka.ssl.key.password",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.type",
    "kafka.ssl.truststore.location",
    "kafka.ssl.truststore.type",
)

#: Taken, so that a job may keep them, and without effect: they tune what is not in this client.
WITHOUT_EFFECT = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "kafka.allow.auto.create.topics",
    "kafka.auto.commit.interval.ms",
    "kafka.auto.include.jmx.reporter",
    "kafka.client.dns.lookup",
    "kafka.client.rack",
    "kafka.connections.max.idle.ms",
    "kafka.default.api.timeout.ms",
    "kafka.enable.metrics.push",
    "kafka.exclude.internal.topics",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.group.instance.id",
    "kafka.group.protocol",
    "kafka.group.remote.assignor",
    "kafka.heartbeat.interval.ms",
    "kafka.max.poll.interval.ms",
    "kafka.max.poll.records",
    "kafka.metadata.max.age.ms",
    "kafka.metadata.recovery.rebootstrap.trigger.ms",
    "kafka.metadata.recovery.strategy",
    "kafka.metric.reporters",
    "kafka.metrics.num.samples",
    "kafka.metrics.recording.level",
    "kafka.metrics.sample.window.ms",
    "kafka.partition.assignment.strategy",
    "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.max.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.retry.backoff.max.ms",
    "kafka.retry.backoff.ms",
    "kafka.security.providers",
    "kafka.send.buffer.bytes",
    "kafka.session.timeout.ms",
    "kafka.socket.connection.setup.timeout.max.ms",
    "kafka.ssl.protocol",
)

#: Spark's Kafka source refuses these, since it decides them itself; so does this one.
REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "give the query's positions a name with subscription",
    "kafka.interceptor.classes": "there are no interceptors here",
    "kafka.key.deserializer": "the key is a binary column; cast it",
    "kafka.key.serializer": "the key is a binary or string column; cast it",
    "kafka.value.deserializer": "the value is a binary column; cast it",
    "kafka.value.serializer": "the value is a binary or string column; cast it",
}

_KNOWN = {name.lower(): name for name in (*SOURCE, *OWN, *KAFKA, *WITHOUT_EFFECT)}
_REFUSED = {name.lower(): hint for name, hint in REFUSED.items()}


def known(options: Mapping[str, str], also: tuple[str, ...] = ()) -> dict[str, str]:
    """The options under the names as they are spelt here; ConfigError at the first that is none.

    `also` are names that a sink, or whoever builds on this, knows besides.
    """
    names = _KNOWN | {name.lower(): name for name in also}
    found: dict[str, str] = {}
    for given, value in options.items():
        name = names.get(given.lower())
        if name is None:
            raise _unknown(given, names)
        found[name] = value
    return found


def _unknown(given: str, names: Mapping[str, str]) -> ConfigError:
    if given.lower() in _REFUSED:
        return ConfigError(f"the option {given} cannot be set", hint=_REFUSED[given.lower()])
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}?" if near else "see docs/reference/spark.md for all of them"
    return ConfigError(f"there is no option {given}", hint=hint)
