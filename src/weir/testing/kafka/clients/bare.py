"""One bare request to a broker, and its answer: where clients hide what the wire says."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weir.testing.kafka.stage import batch_of
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.frames import RequestHeader, decode_response_header, request_frame

_TIMEOUT_S = 60
_NUMBER = 7


class Bare:
    """Asks, on a connection for each request unless it is told otherwise."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._address = host, int(port)

    def ask(self, key: ApiKey, version: int, request: m.Message) -> Any:
        with self.connected() as ask:
            return ask(key, version, request)

    @contextmanager
    def connected(self) -> Iterator[Callable[[ApiKey, int, m.Message], Any]]:
        """What asks on one connection, one request after the other."""
        with (
            socket.create_connection(self._address, _TIMEOUT_S) as connection,
            connection.makefile("rb") as answers,
        ):

            def ask(key: ApiKey, version: int, request: m.Message) -> Any:
                header = RequestHeader(key, version, _NUMBER, "bare")
                connection.sendall(b"".join(bytes(piece) for piece in request_frame(header, request)))
                (size,) = struct.unpack(">i", answers.read(4))
                told, body = decode_response_header(key, version, answers.read(size))
                assert told.correlation_id == _NUMBER
                return codec.decode_response(key, version, body)

            yield ask

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """A topic that there was not, with configs in Kafka's words (`_` for `.`); its id."""
        said = [
            m.CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=said
        )
        request = m.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        (made,) = self.ask(ApiKey.CREATE_TOPICS, 7, request).topics
        assert made.error_code == 0, made.error_message
        return bytes(made.topic_id)

    def produce(self, name: str, *values: bytes, batch: bytes | None = None, **more: Any) -> Any:
        """Values, or a batch, to partition 0; what is said of it."""
        records = batch_of(*values, **more) if batch is None else batch
        data = m.ProduceRequest.PartitionProduceData(index=0, records=records)
        topic = m.ProduceRequest.TopicProduceData(name=name, partition_data=[data])
        request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
        ((part,),) = [each.partition_responses for each in self.ask(ApiKey.PRODUCE, 9, request).responses]
        return part
