"""Messages of batches as sets of offsets, as runs and as bits: from one to the other."""

from collections.abc import Iterator, Sequence

from pyroaring import BitMap64

from weir.broker.api import Delivery
from weir.model.bits import Run, bits_at, indices_of


def wanted_bits(indices: Sequence[int], count: int) -> int | None:
    """Messages of a batch, in ascending order, as bits; None for all of them."""
    size = len(indices)
    if size == count:
        return None
    first = indices[0]
    if indices[-1] - first + 1 == size:
        return ((1 << size) - 1) << first
    return bits_at(indices, count)


def offsets_in(deliveries: Sequence[Delivery]) -> BitMap64:
    found = BitMap64()
    for delivery in deliveries:
        batch = delivery.batch
        if delivery.wanted is None:
            found.add_range(batch.base_offset, batch.end_offset)
        else:
            found.update([batch.base_offset + index for index in indices_of(delivery.wanted)])
    return found


def set_of(runs: Sequence[Run]) -> BitMap64:
    found = BitMap64()
    for first, end in runs:
        found.add_range(first, end)
    return found


def runs_in(offsets: BitMap64) -> Iterator[Run]:
    """Neighbours as [first, end), ascending."""
    first = end = -1
    for offset in offsets:
        if offset != end:
            if end >= 0:
                yield first, end
            first = offset
        end = offset + 1
    if end >= 0:
        yield first, end
