"""How much passed through a topic since it was loaded, whatever the protocol."""

from collections.abc import Iterable
from typing import NamedTuple

from weir.broker.topic.meters import Meter


class Traffic(NamedTuple):
    """Totals. Those given out can fall, when a subscription goes and its count with it."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


def traffic_of(taken: Meter, given: Iterable[Meter]) -> Traffic:
    """`given`: of each subscription, and of those who read by offset."""
    messages = size = 0
    for meter in given:
        messages += meter.messages
        size += meter.bytes
    return Traffic(taken.messages, taken.bytes, messages, size)
