"""Messages of a batch into a consumer's hands, with how often each came before."""

from collections.abc import Sequence

from weir.broker.api import Delivery
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.offsets import wanted_bits
from weir.broker.dispatch.ready import hold
from weir.broker.dispatch.redeliveries import Redeliveries
from weir.model.batch import Batch


def give(consumer: BrokerConsumer, batch: Batch, indices: Sequence[int], counts: Redeliveries) -> None:
    """In ascending order; it has them from now on."""
    base = batch.base_offset
    hold(consumer.offsets, base, indices)
    if counts.any_in(base + indices[0], base + indices[-1] + 1):
        _give_counted(consumer, batch, indices, counts)
    else:
        consumer.give(Delivery(batch, wanted_bits(indices, batch.count)), len(indices), in_order=True)


def _give_counted(consumer: BrokerConsumer, batch: Batch, indices: Sequence[int], counts: Redeliveries) -> None:
    """Neighbours that came equally often before are one delivery."""
    run: list[int] = []
    times = 0
    for index in indices:
        count = counts.of(batch.base_offset + index)
        if run and count != times:
            consumer.give(Delivery(batch, wanted_bits(run, batch.count), times), len(run), in_order=True)
            run = []
        run.append(index)
        times = count
    consumer.give(Delivery(batch, wanted_bits(run, batch.count), times), len(run), in_order=True)
