"""CONSUMER_STATS."""

from weir.broker.api import SubscriptionType
from weir.gateway.pulsar.registry import at_once
from weir.gateway.pulsar.session import Session
from weir.wire.pulsar.proto import api

_TYPES = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}


@at_once(api.CommandConsumerStats)
def consumer_stats(session: Session, command: api.CommandConsumerStats) -> api.CommandConsumerStatsResponse:
    link = session.consumers.live(command.consumer_id)
    now_ms = session.clock.wall_ms()
    seconds = max((now_ms - link.connected_ms) / 1000, 1.0)
    return api.CommandConsumerStatsResponse(
        request_id=command.request_id,
        msgRateOut=link.messages_out / seconds,
        msgThroughputOut=link.bytes_out / seconds,
        consumerName=link.consumer.name,
        availablePermits=max(link.credit, 0),
        unackedMessages=link.unacked.messages,
        address=session.peer,
        connectedSince=str(link.connected_ms),
        type=_TYPES[link.kind],
        msgBacklog=link.consumer.backlog,
    )
