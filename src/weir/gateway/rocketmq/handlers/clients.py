"""What clients are: Telemetry (their settings, and the server's commands to them), Heartbeat, and their end."""

from functools import partial
from typing import Any

from weir.gateway.rocketmq.clients import Client
from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.consume.policy import settings_of, tell
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.names import group_of, topic_of
from weir.gateway.rocketmq.registry import calls
from weir.gateway.rocketmq.transactions.checking import register_checks
from weir.model.errors import WeirError
from weir.wire.http2.grpc import GrpcStatus
from weir.wire.rocketmq.proto import api, set_ms

_CONSUMERS = (
    api.ClientType.PUSH_CONSUMER,
    api.ClientType.SIMPLE_CONSUMER,
    api.ClientType.PULL_CONSUMER,
    api.ClientType.LITE_PUSH_CONSUMER,
    api.ClientType.LITE_SIMPLE_CONSUMER,
)
_LONG_POLLING_MS = 20_000
_RECEIVE_BATCH = 32
#: Lite topics that one client may subscribe to, and the longest of their names.
LITE_QUOTA = 2_000
LITE_NAME_CHARACTERS = 64
#: How clients retry to send: as RocketMQ's proxy tells them.
_SEND_ATTEMPTS, _SEND_INITIAL_MS, _SEND_MAX_MS, _SEND_MULTIPLIER = 3, 10, 1_000, 2.0


@calls("Telemetry", api.TelemetryCommand, api.TelemetryCommand, streams=True, converses=True)
def telemetry(call: Call, command: Any) -> None:
    """One command of the client's."""
    match command.WhichOneof("command"):
        case "settings":
            try:
                answer = _settings(call, command.settings)
            except WeirError as refused:  # as RocketMQ's proxy refuses them
                call.fail(GrpcStatus.INVALID_ARGUMENT, f"process client telemetryCommand failed. {refused.what}")
                return
            call.send(api.TelemetryCommand(status=ok(), settings=answer))
        case "thread_stack_trace" | "verify_message_result":
            call.session.services.clients.answered(call, command)
        case _:
            pass


def _settings(call: Call, said: Any) -> Any:
    """What holds for the client, by what it wants and what the server allows."""
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
    """UNRECOGNIZED_CLIENT_TYPE makes a client send its settings again: the server does not know it."""
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
