"""Kafka Connect, Kafka Streams and MirrorMaker 2 from Maven's central repository, as they are."""

from bench.kafka_peer import VERSION
from bench.maven import Artifacts

_PARTS = ("connect-runtime", "connect-file", "connect-mirror", "connect-json", "kafka-streams", "kafka-clients")
ARTIFACTS = Artifacts(
    f"kafka-connect-{VERSION}",
    # The logger says on standard error what they do.
    (*(f"org.apache.kafka:{part}:{VERSION}" for part in _PARTS), "org.slf4j:slf4j-simple:1.7.36"),
)
