"""OpenTelemetry: a collector that speaks OTLP gets spans of traced messages, and what is logged."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pulsar
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from weir.model.errors import ConfigError
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.server.config.tree import TelemetryConfig
from weir.server.telemetry import Telemetry
from weir.testing.loop_thread import LoopThread

TIMEOUT_S = 60.0
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """Takes OTLP over HTTP and keeps it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.logs: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
        elif path == "/v1/logs":
            for said in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.logs += [r.body.string_value for scope in said.scope_logs for r in scope.log_records]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def node(tmp_path: Path, collector: Collector) -> Iterator[BrokerNode]:
    loop = LoopThread()
    listeners = [f"listeners.{name}=127.0.0.1:0" for name in ("pulsar", "kafka", "http", "amqp", "rocketmq")]
    settings = [f"data={tmp_path / 'data'}", "storage.low_water_bytes=0", f"telemetry.endpoint={collector.url}"]
    found = BrokerNode(real_runtime(), load(assignments=[*listeners, *settings]).config)
    loop.call(found.start, TIMEOUT_S)
    yield found
    loop.call(found.close, TIMEOUT_S)  # again is fine
    loop.stop()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_traced_message_has_spans_where_it_is_stored_delivered_and_acknowledged(
    node: BrokerNode, collector: Collector, tmp_path: Path
) -> None:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
    client = pulsar.Client(f"pulsar://{node.addresses['pulsar']}", logger=quiet)
    consumer = client.subscribe("traced", "readers", pulsar.ConsumerType.Shared)
    producer = Producer({"bootstrap.servers": str(node.addresses["kafka"]), "linger.ms": 0})
    producer.produce("traced", b"no trace")
    producer.flush(TIMEOUT_S)
    producer.produce("traced", b"hello", key=b"k", headers={"traceparent": TRACEPARENT})
    producer.flush(TIMEOUT_S)
    for expected in (b"no trace", b"hello"):
        message = consumer.receive(60_000)
        assert message.data() == expected
        consumer.acknowledge(message)
    until(lambda: len(collector.spans) >= 3)
    client.close()
    spans = {span.name: span for span in collector.spans}
    parents = {
        "store traced": PARENT,
        "deliver traced": PARENT,
        "acknowledge traced": spans["deliver traced"].span_id.hex(),
    }
    assert {name: span.parent_span_id.hex() for name, span in spans.items()} == parents
    for span in spans.values():
        assert span.trace_id.hex() == TRACE
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    said = {each.key: each.value for each in spans["deliver traced"].attributes}
    assert said["messaging.destination.name"].string_value == "persistent://public/default/traced"
    assert said["messaging.message.id"].string_value == "1"
    assert said["messaging.consumer.group.name"].string_value == "readers"


@pytest.mark.slow
def test_what_is_compressed_is_looked_into_and_what_kafka_fetches_has_a_span(
    node: BrokerNode, collector: Collector
) -> None:
    servers = {"bootstrap.servers": str(node.addresses["kafka"])}
    producer = Producer({**servers, "compression.type": "lz4"})
    for _ in range(20):  # alike, or nothing is gained, and so nothing compressed
        producer.produce("packed", b"x" * 100)
    producer.produce("packed", b"hello", headers={"traceparent": TRACEPARENT})
    producer.flush(TIMEOUT_S)
    consumer = Consumer({**servers, "group.id": "g"})
    consumer.assign([TopicPartition("packed", 0, 20)])
    until(lambda: (message := consumer.poll(1)) is not None and message.value() == b"hello")
    consumer.close()
    until(lambda: {span.name for span in collector.spans} == {"store packed", "fetch packed"})
    for span in collector.spans:
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        said = {each.key: each.value.string_value for each in span.attributes}
        assert said["messaging.message.id"] == "20"
        assert "messaging.consumer.group.name" not in said


@pytest.mark.slow
def test_what_is_logged_is_exported(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "weir.somewhere")  # whatever other tests have set
    telemetry = Telemetry(TelemetryConfig(collector.url), real_runtime().clock, node="n")
    logging.getLogger("weir.somewhere").warning("the disk of %s is slow", "n")
    telemetry.close()
    logging.getLogger("weir.somewhere").warning("and nobody hears this")
    assert collector.logs == ["the disk of n is slow"]


def test_without_the_sdk_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError) as refused:
        Telemetry(TelemetryConfig("http://127.0.0.1:1"), real_runtime().clock, node="n")
    assert "[otel]" in str(refused.value.hint)
