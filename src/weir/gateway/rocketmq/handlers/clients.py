"""Client calls: Telemetry (settings and server commands), Heartbeat, NotifyClientTermination, and
SyncLiteSubscription (lite topics of a client, and their start offsets)."""

from functools import partial
from typing import TYPE_CHECKING, Any

from weir.broker.api.topics import Topic
from weir.gateway.rocketmq.call import Call, calls
from weir.gateway.rocketmq.clients import Client
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.forwarding import at_owner, tell_all
from weir.gateway.rocketmq.group_topic import GroupTopic
from weir.gateway.rocketmq.handlers.transactions import register_checks
from weir.gateway.rocketmq.message_validation import check_lite_topic
from weir.gateway.rocketmq.names import group_of, lite_topic_of, namespace_of, topic_of
from weir.model.errors import WeirError
from weir.model.registry import Action
from weir.model.retry import Backoff
from weir.model.subscriptions import GroupSettings
from weir.model.topics import TopicName
from weir.wire.http2.grpc import GrpcStatus
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.proto import set_ms

if TYPE_CHECKING:
    from weir.gateway.rocketmq.context import Services


def settings_of(services: "Services", resource: Any, group: str) -> GroupSettings:
    return services.groups.settings(namespace_of(str(resource.resource_namespace)), group)


def tell(settings: GroupSettings, policy: Any) -> None:
    """Fill RocketMQ's RetryPolicy from the group's settings."""
    policy.max_attempts = settings.max_attempts
    schedule = settings.schedule
    if isinstance(schedule, Backoff):
        exponential = policy.exponential_backoff
        set_ms(exponential.initial, schedule.first_ms)
        set_ms(exponential.max, schedule.most_ms)
        exponential.multiplier = schedule.factor
    else:
        for wait_ms in schedule.delays_ms or (0,):
            set_ms(policy.customized_backoff.next.add(), wait_ms)


_CONSUMERS = (
    api.ClientType.PUSH_CONSUMER,
    api.ClientType.SIMPLE_CONSUMER,
    api.ClientType.PULL_CONSUMER,
    api.ClientType.LITE_PUSH_CONSUMER,
    api.ClientType.LITE_SIMPLE_CONSUMER,
)
_LONG_POLLING_MS = 20_000
_RECEIVE_BATCH = 32
#: Maximum lite topics per client, and the maximum length of their names.
LITE_QUOTA = 2_000
LITE_NAME_CHARACTERS = 64
#: Retry policy for sends, as in RocketMQ's proxy.
_SEND_ATTEMPTS, _SEND_INITIAL_MS, _SEND_MAX_MS, _SEND_MULTIPLIER = 3, 10, 1_000, 2.0


@calls("Telemetry", api.TelemetryCommand, api.TelemetryCommand, streams=True, converses=True)
def telemetry(call: Call, command: Any) -> None:
    """Handle one command from the client."""
    match command.WhichOneof("command"):
        case "settings":
            try:
                answer = _settings(call, command.settings)
            except WeirError as refused:  # same text as RocketMQ's proxy
                call.fail(GrpcStatus.INVALID_ARGUMENT, f"process client telemetryCommand failed. {refused.what}")
                return
            call.send(api.TelemetryCommand(status=ok(), settings=answer))
        case "thread_stack_trace" | "verify_message_result":
            call.session.services.clients.answered(call, command)
        case _:
            pass


def _settings(call: Call, said: Any) -> Any:
    """Register the client; returns its settings as limited by the server."""
    answer = _answer(call, said)
    services = call.session.services
    client = services.clients.said(call, said)
    register_checks(call, client, said)
    if said.HasField("subscription"):
        resource = said.subscription.group
        services.announcing.watch(
            client, partial(settings_of, services, resource, group_of(resource)), partial(_answer, call, said)
        )
    return answer


def _answer(call: Call, said: Any) -> Any:
    answer = api.Settings()
    answer.CopyFrom(said)
    if said.HasField("publishing"):
        for topic in said.publishing.topics:
            topic_of(topic)
        answer.publishing.max_body_size = call.session.limits.max_body_bytes
        answer.publishing.validate_message_type = True
        policy = answer.backoff_policy
        policy.max_attempts = _SEND_ATTEMPTS
        set_ms(policy.exponential_backoff.initial, _SEND_INITIAL_MS)
        set_ms(policy.exponential_backoff.max, _SEND_MAX_MS)
        policy.exponential_backoff.multiplier = _SEND_MULTIPLIER
    elif said.HasField("subscription"):
        if said.client_type not in _CONSUMERS:
            raise Refused(api.Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {said.client_type} is not known")
        group = group_of(said.subscription.group)
        for entry in said.subscription.subscriptions:
            topic_of(entry.topic)
        _subscription(call, group, answer)
    else:
        raise Refused(api.Code.BAD_REQUEST, "the settings name neither topics to publish to nor a subscription")
    answer.metric.on = False
    return answer


def _subscription(call: Call, group: str, answer: Any) -> None:
    subscription = answer.subscription
    settings = settings_of(call.session.services, subscription.group, group)
    subscription.fifo = settings.fifo
    if not subscription.receive_batch_size:
        subscription.receive_batch_size = _RECEIVE_BATCH
    if not subscription.HasField("long_polling_timeout"):
        set_ms(subscription.long_polling_timeout, _LONG_POLLING_MS)
    if answer.client_type in (api.ClientType.LITE_PUSH_CONSUMER, api.ClientType.LITE_SIMPLE_CONSUMER):
        subscription.lite_subscription_quota = LITE_QUOTA
        subscription.max_lite_topic_size = LITE_NAME_CHARACTERS
    answer.ClearField("backoff_policy")
    tell(settings, answer.backoff_policy)


@calls("Heartbeat", api.HeartbeatRequest, api.HeartbeatResponse)
def heartbeat(call: Call, request: Any) -> Any:
    """Answer a heartbeat. UNRECOGNIZED_CLIENT_TYPE makes an unknown client send its settings again."""
    _check_known(call)
    if request.client_type in _CONSUMERS:
        group_of(request.group)
    elif request.client_type != api.ClientType.PRODUCER:
        raise Refused(api.Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {request.client_type} is not known")
    return api.HeartbeatResponse(status=ok())


def _check_known(call: Call) -> None:
    if call.session.services.clients.find(call.client_id) is None:
        raise Refused(api.Code.UNRECOGNIZED_CLIENT_TYPE, f"cannot find client settings for {call.client_id[:200]}")


@calls("NotifyClientTermination", api.NotifyClientTerminationRequest, api.NotifyClientTerminationResponse)
def notify_client_termination(call: Call, request: Any) -> Any:
    _check_known(call)
    call.session.services.clients.terminated(call.client_id)
    return api.NotifyClientTerminationResponse(status=ok())


__all__ = ["Client"]

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
        elif request.action == _ACTION.COMPLETE_ADD:  # it may have missed the notification
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
            api.Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            f"a client may subscribe to at most {LITE_QUOTA} lite topics",
        )
    clients.set_lite_topics(call.client_id, topic, group, wanted)
    clients.said_lite(call.client_id, topic, group, call.session.clock.monotonic())
    if request.action == _ACTION.PARTIAL_ADD and request.HasField("offset_option"):
        for name in sorted(said):
            await _place_there(call, request, lite_topic_of(topic, name), group, name)
    # The client may also receive from other brokers, to which it does not send the subscription.
    told = api.SyncLiteSubscriptionRequest()
    told.CopyFrom(request)
    told.ClearField("offset_option")
    await tell_all(call, told)
    return api.SyncLiteSubscriptionResponse(status=ok())


async def _place_there(call: Call, request: Any, lite_topic: TopicName, group: str, name: str) -> None:
    """Set the start offset of a lite topic at its owner."""
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
    """Move the group to the offset of the client's option; LAST keeps the current offset."""
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
                raise Refused(api.Code.ILLEGAL_OFFSET, "the offset option is missing or unknown")

    await group.seek(call.role, offset_in)
