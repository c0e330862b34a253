"""SyncLiteSubscription: which lite topics of a topic a client wants, and from where on."""

from typing import Any

from weir.broker.api import Topic
from weir.gateway.rocketmq.cluster.routing import at_owner, tell_all
from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.consume.policy import settings_of
from weir.gateway.rocketmq.consume.receiving import GroupTopic
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.handlers.clients import LITE_QUOTA
from weir.gateway.rocketmq.names import group_of, lite_topic_of, topic_of
from weir.gateway.rocketmq.publish.checks import check_lite_topic
from weir.gateway.rocketmq.registry import calls
from weir.model.registry import Action
from weir.model.topics import TopicName
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
    clients = services.clients
    known = clients.lite_topics(call.client_id, topic, group)
    said = set(request.lite_topic_set)
    if settings_of(services, request.group, group).lite_exclusive:
        if request.action == _ACTION.PARTIAL_ADD:
            clients.take_lite_topics(call.client_id, topic, group, said)
        elif request.action == _ACTION.COMPLETE_ADD:  # what it lost it may not have heard of
            for name in clients.lite_topics_of_others(call.client_id, topic, group) & said:
                clients.lose_lite_topic(call.client_id, topic, group, name)
                said.discard(name)
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
    clients.set_lite_topics(call.client_id, topic, group, wanted)
    clients.said_lite(call.client_id, topic, group, call.session.clock.monotonic())
    if request.action == _ACTION.PARTIAL_ADD and request.HasField("offset_option"):
        for name in sorted(said):
            await _place_there(call, request, lite_topic_of(topic, name), group, name)
    # The client receives from another broker perhaps, which it does not tell.
    told = api.SyncLiteSubscriptionRequest()
    told.CopyFrom(request)
    told.ClearField("offset_option")
    await tell_all(call, told)
    return api.SyncLiteSubscriptionResponse(status=ok())


async def _place_there(call: Call, request: Any, lite_topic: TopicName, group: str, name: str) -> None:
    """Where the lite topic is."""
    one = api.SyncLiteSubscriptionRequest()
    one.CopyFrom(request)
    del one.lite_topic_set[:]
    one.lite_topic_set.append(name)

    async def here() -> Any:
        await _place(call, call.session.services.groups.of(lite_topic, group), request.offset_option)
        return api.SyncLiteSubscriptionResponse(status=ok())

    answer = await at_owner(call, lite_topic, one, here)
    if answer.status.code != api.Code.OK:
        raise Refused(answer.status.code, answer.status.message)


async def _place(call: Call, group: GroupTopic, option: Any) -> None:
    """The group goes on from where the client says; from where it was, if that is what it says."""
    if option.WhichOneof("offset_type") == "policy" and option.policy == api.OffsetOption.Policy.LAST:
        return

    async def offset_in(topic: Topic) -> int:
        match option.WhichOneof("offset_type"):
            case "offset":
                return int(option.offset)
            case "tail_n":
                return max(0, topic.end_offset - int(option.tail_n))
            case "timestamp":
                return await topic.offset_at(int(option.timestamp))
            case "policy" if option.policy == api.OffsetOption.Policy.MIN:
                return topic.start_offset
            case "policy" if option.policy == api.OffsetOption.Policy.MAX:
                return topic.end_offset
            case _:
                raise Refused(api.Code.ILLEGAL_OFFSET, "the offset option says nothing that is known")

    await group.seek(call.role, offset_in)
