"""Who hears what becomes of a topic's messages, of those whom its broker has."""

from weir.broker.context import BrokerContext
from weir.broker.trace.message_trace import BothTraces, MessageTrace
from weir.broker.trace.spans import TopicSpans
from weir.broker.trace.topic import TopicTrace
from weir.model.topics import TopicName
from weir.stream.log import Stream


def trace_of(context: BrokerContext, name: TopicName, stream: Stream) -> MessageTrace | None:
    clock = context.runtime.clock
    spans = None if context.tracing is None else TopicSpans(name, context.tracing, context.span_memory, clock)
    if context.trace is None:
        return spans
    written = TopicTrace(name, context.trace, clock, position_of=stream.position_of, follow=stream.on_stored)
    return written if spans is None else BothTraces(written, spans)
