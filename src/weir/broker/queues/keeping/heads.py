"""The oldest messages of a queue that no consumer has."""

from pyroaring import BitMap64

from weir.broker.dispatch.subscription import Subscription
from weir.model.bits import indices_of

#: Offsets that are looked at together.
_WINDOW = 1024


def oldest_ready(subscription: Subscription, most: int, end: int | None = None) -> BitMap64:
    """So many of them, of those before `end`, by their offsets."""
    found = BitMap64()
    dispatcher = subscription.per_message()
    if dispatcher is None or most <= 0:
        return found
    source, cursor = subscription.source, subscription.cursor
    end = source.end_offset if end is None else min(end, source.end_offset)
    unready, hidden = dispatcher.unready(), source.hidden
    offset = max(cursor.next_unacked(0), source.start_offset)
    while offset < end and len(found) < most:
        count = min(_WINDOW, end - offset)
        some = BitMap64([offset + index for index in indices_of(cursor.unacked_mask(offset, count))])
        some -= unready
        if hidden:
            some -= hidden
        if len(found) + len(some) > most:
            some = some[: most - len(found)]
        found |= some
        offset = cursor.next_unacked(offset + count)
    return found
