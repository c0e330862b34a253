"""Produce: record batches for any number of partitions."""

from collections.abc import Coroutine
from typing import Any

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.produce.publishing import Answer
from weir.gateway.kafka.registry import pipelined
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey


# Advertised from 0: librdkafka compresses nothing for a broker that does not know the oldest versions.
@pipelined(ApiKey.PRODUCE, versions=(3, 13), advertised_first=0)
def produce(
    session: Session, request: m.ProduceRequest, version: int, answer: Answer
) -> Coroutine[Any, Any, None] | None:
    return session.publishing.take(request, version, answer)
