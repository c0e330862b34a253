"""Handler of Produce; the session's `Publishing` does the work."""

from collections.abc import Coroutine
from typing import Any

from weir.gateway.kafka.api_table import pipelined
from weir.gateway.kafka.produce.producers import Answer
from weir.gateway.kafka.session import Session
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey


# Advertised from 0: librdkafka disables compression for a broker that does not advertise the oldest versions.
@pipelined(ApiKey.PRODUCE, versions=(3, 13), advertised_first=0)
def produce(
    session: Session, request: m.ProduceRequest, version: int, answer: Answer
) -> Coroutine[Any, Any, None] | None:
    return session.publishing.take(request, version, answer)
