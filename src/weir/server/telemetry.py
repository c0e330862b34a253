"""OpenTelemetry, if its SDK is installed and `telemetry.endpoint` is set: logs, and spans of traced messages.

A message with a producer's `traceparent` gets a span when it is stored and one for each delivery, as children of
the producer's span; each delivery has a child span for its outcome (acknowledged, retried, dropped). A message
dropped before its first delivery has a span for that, as a child of the producer's. The SDK exports in batches, in
its own threads, and drops what it cannot export.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from warnings import catch_warnings, simplefilter

from weir.broker.api.consumers import Delivery
from weir.broker.trace.spans import Fate, SpanParent, Tracing
from weir.model.batch import Batch
from weir.model.diagnosis import install_command
from weir.model.errors import ConfigError
from weir.model.messages import Message
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.server.config.tree import TelemetryConfig
from weir.wire.formats.table import messages_of

_HEADERS = ("traceparent", "tracestate")
_OF_THE_EXPORTER = ("opentelemetry", "urllib3", "requests")
#: The most messages of one batch that get spans; larger traced batches are not handmade.
_MOST_OF_A_BATCH = 100


class Telemetry:
    """Starts exporting; `close` sends the rest."""

    def __init__(self, settings: TelemetryConfig, clock: Clock, *, node: str) -> None:
        """ConfigError if the SDK is missing."""
        try:
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise ConfigError(
                "telemetry.endpoint is set, and OpenTelemetry is missing", hint=install_command("otel")
            ) from None
        self._endpoint = settings.endpoint.rstrip("/")
        self._resource = Resource.create(
            {"service.name": settings.service, "service.instance.id": node, "service.namespace": "weir"}
        )
        self._closers: list[Any] = []
        self._handler: logging.Handler | None = None
        self.tracing: Tracing | None = self._traces(clock) if settings.traces else None
        if settings.logs:
            self._logs()

    def _traces(self, clock: Clock) -> Tracing:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{self._endpoint}/v1/traces")))
        self._closers.append(provider)
        return MessageSpans(provider.get_tracer("weir"), clock)

    def _logs(self) -> None:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

        provider = LoggerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{self._endpoint}/v1/logs")))
        self._closers.append(provider)
        with catch_warnings():  # deprecated: it will move to another package
            simplefilter("ignore", DeprecationWarning)
            self._handler = LoggingHandler(logger_provider=provider)
        # Logs of the exporter and its transport must not be exported in turn.
        self._handler.addFilter(lambda record: not record.name.startswith(_OF_THE_EXPORTER))
        logging.getLogger().addHandler(self._handler)

    def close(self) -> None:
        """Send the rest; may block if the collector does not answer, so do not call it on the event loop."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
        for provider in self._closers:
            with suppress(Exception):
                provider.shutdown()


class MessageSpans:
    """Fills `Tracing`."""

    def __init__(self, tracer: Any, clock: Clock) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._clock = clock
        self._read = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER
        self._child_of = set_span_in_context

    def stored(
        self, topic: TopicName, batch: Batch, offset: int, seconds: float
    ) -> Sequence[tuple[int, SpanParent]]:
        now_ns = self._clock.wall_ms() * 1_000_000
        parents: list[tuple[int, SpanParent]] = []
        for place, message in self._traced(batch, None):
            parent = self._parent(message)
            span = self._begin("store", topic, offset + place, parent, now_ns - int(seconds * 1e9))
            span.set_attribute("messaging.message.body.size", _size(message))
            span.set_attribute("messaging.batch.message_count", batch.count)
            span.end(now_ns)
            if span.get_span_context().trace_flags.sampled:
                parents.append((offset + place, parent))
        return parents

    def delivered(
        self, topic: TopicName, subscription: str, delivery: Delivery
    ) -> Sequence[tuple[int, SpanParent]]:
        now_ns = self._clock.wall_ms() * 1_000_000
        batch = delivery.batch
        what = "deliver" if subscription else "fetch"
        parents: list[tuple[int, SpanParent]] = []
        for place, message in self._traced(batch, delivery.wanted):
            offset, began_ns = batch.base_offset + place, min(batch.append_ms * 1_000_000 or now_ns, now_ns)
            span = self._begin(what, topic, offset, self._parent(message), began_ns)
            span.set_attribute("messaging.message.body.size", _size(message))
            if subscription:
                span.set_attribute("messaging.consumer.group.name", subscription)
                span.set_attribute("weir.redelivered", delivery.redelivered)
            span.end(now_ns)
            if span.get_span_context().trace_flags.sampled:
                parents.append((offset, self._child_of(span)))
        return parents

    def parents(self, batch: Batch, wanted: int | None) -> Sequence[tuple[int, SpanParent]]:
        found = self._traced(batch, wanted)
        return [(batch.base_offset + place, self._parent(message)) for place, message in found]

    def became(self, topic: TopicName, offset: int, parent: SpanParent, fate: Fate) -> None:
        now_ns = self._clock.wall_ms() * 1_000_000
        span = self._begin(fate.what, topic, offset, parent, min(fate.since_ms * 1_000_000 or now_ns, now_ns))
        for name, text in (
            ("messaging.consumer.group.name", fate.subscription),
            ("messaging.client.id", fate.consumer),
            ("weir.reason", fate.reason),
        ):
            if text:
                span.set_attribute(name, text)
        span.end(now_ns)

    def _traced(self, batch: Batch, wanted: int | None) -> list[tuple[int, Message]]:
        messages: Sequence[Message] = messages_of(batch)
        return [
            (place, message)
            for place, message in enumerate(messages)
            if (wanted is None or wanted >> place & 1) and any(name == _HEADERS[0] for name, _ in message.headers)
        ][:_MOST_OF_A_BATCH]

    def _parent(self, message: Message) -> SpanParent:
        """The producer's span."""
        said = {
            name: value.decode("ascii", "replace")
            for name, value in message.headers
            if name in _HEADERS and value is not None
        }
        return self._read.extract(said)

    def _begin(self, what: str, topic: TopicName, offset: int, parent: SpanParent, start_ns: int) -> Any:
        attributes = {
            "messaging.system": "weir",
            "messaging.operation.name": what,
            "messaging.destination.name": str(topic),
            "messaging.message.id": str(offset),
        }
        return self._tracer.start_span(
            f"{what} {topic.local}", context=parent, kind=self._kind, attributes=attributes, start_time=start_ns
        )


def _size(message: Message) -> int:
    return 0 if message.value is None else len(message.value)
