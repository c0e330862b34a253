"""Partitions become part of their producer's transaction by being produced to: Kafka's transactions, version 2.

What is part of it already costs a look at the batch's header and at the transaction, and waits for nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from weir.broker.api import ProducerIdentity, Transactions
from weir.gateway.kafka.errors import Code, RefusedError, text_of
from weir.gateway.kafka.transacting import join_code
from weir.model.errors import WeirError
from weir.model.ids import Buffer
from weir.wire.kafka.records import transactional_producer

if TYPE_CHECKING:
    from weir.gateway.kafka.produce.publishing import Key, PartitionLink

#: Clients that send older versions add partitions by a request of its own.
JOINS_SINCE = 12

#: Partitions with what they are sent, by who sends it.
Unjoined: TypeAlias = "dict[ProducerIdentity, list[tuple[PartitionLink, Buffer]]]"


def unjoined(
    transactions: Transactions,
    name: str,
    sent: "Sequence[tuple[Key, Buffer]]",
    links: "Mapping[Key, PartitionLink]",
) -> Unjoined:
    """Of the partitions that are sent something in a transaction, those that are not known to be part of it."""
    found: Unjoined = {}
    for key, records in sent:
        producer, link = transactional_producer(records), links.get(key)
        if producer is None or link is None:
            continue
        joined = transactions.joined(name, *producer)
        if link.joined is joined:
            continue
        if link.part in joined:
            link.joined = joined
        else:
            found.setdefault(ProducerIdentity(*producer), []).append((link, records))
    return found


async def join(
    transactions: Transactions, name: str, wanted: "Mapping[ProducerIdentity, Sequence[PartitionLink]]"
) -> "dict[Key, WeirError]":
    """Make them part of the transaction, which is begun if none is open; answers what went wrong."""
    failures: dict[Key, WeirError] = {}
    for identity, links in wanted.items():
        try:
            await transactions.add_partitions(name, identity, [link.part for link in links])
        except WeirError as failure:
            refused = RefusedError(Code(join_code(failure)), text_of(failure))
            failures.update(dict.fromkeys((link.key for link in links), refused))
    return failures
