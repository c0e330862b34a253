"""SyncLiteSubscription: which lite topics of a topic a client wants."""

from typing import Any

from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.handlers.clients import LITE_QUOTA
from weir.gateway.rocketmq.names import group_of, topic_of
from weir.gateway.rocketmq.publish.checks import check_lite_topic
from weir.gateway.rocketmq.registry import calls
from weir.model.registry import Action
from weir.wire.rocketmq.proto import api

_ACTION = api.LiteSubscriptionAction


@calls("SyncLiteSubscription", api.SyncLiteSubscriptionRequest, api.SyncLiteSubscriptionResponse)
async def sync_lite_subscription(call: Call, request: Any) -> Any:
    topic, group = topic_of(request.topic), group_of(request.group)
    services = call.session.services
    services.guard.check(call.role, topic, Action.CONSUME, subscription=group)
    await services.broker.partitions(topic, role=call.role)
    for name in request.lite_topic_set:
        check_lite_topic(name)
    known = services.clients.lite_topics(call.client_id, topic, group)
    said = set(request.lite_topic_set)
    match request.action:
        case _ACTION.PARTIAL_ADD:
            wanted = known | said
        case _ACTION.PARTIAL_REMOVE:
            wanted = known - said
        case _ACTION.COMPLETE_ADD:
            wanted = said
        case _:
            wanted = set()
    if len(wanted) > LITE_QUOTA:
        raise Refused(
            api.Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"a client subscribes to {LITE_QUOTA} lite topics at most"
        )
    services.clients.set_lite_topics(call.client_id, topic, group, wanted)
    return api.SyncLiteSubscriptionResponse(status=ok())
