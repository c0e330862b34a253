"""What one connection produces: record batches in, offsets out.

Every partition that the connection writes to has a producer of the broker's, opened when it is first named and
opened anew after the broker closed it. All requests of a receive buffer are published before anything is awaited.

Partitions become part of their producer's transaction by being produced to: Kafka's transactions, version 2.

What is part of it already costs a look at the batch's header and at the transaction, and waits for nothing.

What a producer is told of a batch that was not stored; and, if another broker leads the partition, who does.

Produce: record batches for any number of partitions.
"""

from collections.abc import Coroutine
from typing import Any

from weir.gateway.kafka.api_table import pipelined
from weir.gateway.kafka.produce.producers import Answer
from weir.gateway.kafka.session import Session
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey


# Advertised from 0: librdkafka compresses nothing for a broker that does not know the oldest versions.
@pipelined(ApiKey.PRODUCE, versions=(3, 13), advertised_first=0)
def produce(
    session: Session, request: m.ProduceRequest, version: int, answer: Answer
) -> Coroutine[Any, Any, None] | None:
    return session.publishing.take(request, version, answer)
