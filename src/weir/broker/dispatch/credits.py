"""How much each consumer may be given: what it asked for, as far as limits on unacknowledged messages allow."""

from collections.abc import Sequence

from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.dispatch.dispatcher import UnackedLimits


def credits_of(served: Sequence[BrokerConsumer], unacked: int, limits: UnackedLimits) -> tuple[list[int], bool]:
    """Of each of `served`; and whether a limit held somebody back. `unacked`: messages that consumers have."""
    credit_of = [consumer.capacity if consumer.active else 0 for consumer in served]
    if not limits.subscription and not limits.consumer:
        return credit_of, False
    capped = False
    room = limits.subscription - unacked if limits.subscription else None
    for place, consumer in enumerate(served):
        wanted = credit = credit_of[place]
        if credit > 0 and limits.consumer:
            credit = min(credit, limits.consumer - consumer.unacked)
        if credit > 0 and room is not None:
            credit = min(credit, room)
            room -= max(0, credit)
        capped |= credit <= 0 < wanted
        credit_of[place] = max(0, credit)
    return credit_of, capped
