"""More questions: what may be sent, and what is answered to it."""

import time
from typing import Any

import grpc
from rocketmq.grpc_protocol import definition_pb2 as d
from rocketmq.grpc_protocol import service_pb2 as s
from tests.gateway.rocketmq.behaviour.questions import TYPES, Broker, message, question, queue


def sent(broker: Broker, *messages: Any) -> Any:
    return broker.ask("SendMessage", s.SendMessageRequest(messages=messages))


def _in(seconds: int) -> int:
    return int(time.time()) + seconds


@question
def types_and_topics(broker: Broker) -> Any:
    """Each type of messages to a topic of each type."""
    said: dict[str, dict[str, Any]] = {
        "NORMAL": {},
        "FIFO": {"message_group": "g"},
        "DELAY": {"delivery": _in(3600)},
        "TRANSACTION": {},
    }
    return {
        f"{kind} to {topic}": broker.send(message(topic, kind=kind, **fields))
        for kind, fields in said.items()
        for topic in TYPES
    }


@question
def newer_types(broker: Broker) -> Any:
    return {
        "lite": broker.send(message(kind="LITE", lite_topic="l")),
        "priority": broker.send(message(kind="PRIORITY", priority=1)),
    }


@question
def a_type_and_what_it_lacks(broker: Broker) -> Any:
    return {
        "fifo without a group": broker.send(message("b-fifo", kind="FIFO")),
        "delay without a moment": broker.send(message("b-delay", kind="DELAY")),
        "fifo and delay": broker.send(message("b-fifo", kind="FIFO", message_group="g", delivery=_in(60))),
        "a half message with a group": broker.send(
            message("b-transaction", kind="TRANSACTION", message_group="g")
        ),
        "a half message with a moment": broker.send(
            message("b-transaction", kind="TRANSACTION", delivery=_in(60))
        ),
    }


@question
def an_answer_to_a_send(broker: Broker) -> Any:
    first = message()
    (entry,) = sent(broker, first).entries
    return {
        "code": d.Code.Name(entry.status.code),
        "same id": entry.message_id == first.system_properties.message_id,
        "a transaction": bool(entry.transaction_id),
        "a recall handle": bool(entry.recall_handle),
    }


@question
def several_in_one_request(broker: Broker) -> Any:
    found = sent(broker, message(), message(), message())
    codes = [d.Code.Name(entry.status.code) for entry in found.entries]
    return {"code": d.Code.Name(found.status.code), "each": codes}


@question
def several_of_one_group(broker: Broker) -> Any:
    def fifo(group: str) -> Any:
        return message("b-fifo", kind="FIFO", message_group=group)

    return broker.send(fifo("g"), fifo("g"))


@question
def one_of_several_is_wrong(broker: Broker) -> Any:
    return broker.send(message(), message(body=b""))


@question
def groups_of_messages(broker: Broker) -> Any:
    def fifo(group: str) -> str:
        return broker.send(message("b-fifo", kind="FIFO", message_group=group))

    return {
        "of 64 characters": fifo("g" * 64),
        "blank": fifo(" "),
        "a control character": fifo("g\x01"),
        "not ASCII": fifo("größe"),
    }


@question
def keys_and_tags(broker: Broker) -> Any:
    return {
        "a blank key": broker.send(message(keys=[" "])),
        "a key with a space": broker.send(message(keys=["a b"])),
        "many keys": broker.send(message(keys=[f"k{n}" for n in range(20)])),
        "a long key": broker.send(message(keys=["k" * 1000])),
        "a long tag": broker.send(message(tag="t" * 1000)),
        "a tag that is not ASCII": broker.send(message(tag="größe")),
        "an empty tag": broker.send(message(tag="")),
    }


@question
def properties(broker: Broker) -> Any:
    return {
        "an empty value": broker.send(message(properties={"a": ""})),
        "not ASCII": broker.send(message(properties={"größe": "ü"})),
        "a control character in a name": broker.send(message(properties={"a\x01": "b"})),
        "a control character in a value": broker.send(message(properties={"a": "b\x01"})),
        "128 of them": broker.send(message(properties={f"p{n}": "v" for n in range(128)})),
        "TRACE_ON": broker.send(message(properties={"TRACE_ON": "x"})),
        "TAGS": broker.send(message(properties={"TAGS": "x"})),
        "UNIQ_KEY": broker.send(message(properties={"UNIQ_KEY": "x"})),
        "DELAY": broker.send(message(properties={"DELAY": "1"})),
    }


@question
def a_topic_that_cannot_be(broker: Broker) -> Any:
    return {
        "no topic": broker.send(message("")),
        "a space": broker.send(message("a b")),
        "too long": broker.send(message("t" * 128)),
        "a slash": broker.send(message("a/b")),
    }


@question
def bodies(broker: Broker) -> Any:
    return {
        "one byte": broker.send(message(body=b"x")),
        "4 MiB": broker.send(message(body=b"x" * (4 * 1024 * 1024))),
    }


@question
def a_moment_that_is_far(broker: Broker) -> Any:
    return {
        "two days": broker.send(message("b-delay", kind="DELAY", delivery=_in(2 * 86_400))),
        "a month": broker.send(message("b-delay", kind="DELAY", delivery=_in(30 * 86_400))),
    }


@question
def recalled_twice(broker: Broker) -> Any:
    (entry,) = sent(broker, message("b-delay", kind="DELAY", delivery=_in(3600))).entries

    def recall(topic: str) -> Any:
        request = s.RecallMessageRequest(topic=d.Resource(name=topic), recall_handle=entry.recall_handle)
        return broker.ask("RecallMessage", request)

    first = recall("b-delay")
    return {
        "code": d.Code.Name(first.status.code),
        "names the message": first.message_id == entry.message_id,
        "of another topic": d.Code.Name(recall("b-normal").status.code),
    }


def _end(broker: Broker, entry: Any, resolution: int, **said: Any) -> str:
    request = s.EndTransactionRequest(
        topic=d.Resource(name="b-transaction"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
        source=d.TransactionSource.SOURCE_CLIENT,
    )
    for name, value in said.items():
        setattr(request, name, value)
    return broker.code("EndTransaction", request)


@question
def a_half_message_rolled_back(broker: Broker) -> Any:
    (entry,) = sent(broker, message("b-transaction", kind="TRANSACTION")).entries
    return _end(broker, entry, d.TransactionResolution.ROLLBACK)


@question
def a_half_message_decided_twice(broker: Broker) -> Any:
    (entry,) = sent(broker, message("b-transaction", kind="TRANSACTION")).entries
    return {
        "first": _end(broker, entry, d.TransactionResolution.COMMIT),
        "the same again": _end(broker, entry, d.TransactionResolution.COMMIT),
        "otherwise": _end(broker, entry, d.TransactionResolution.ROLLBACK),
    }


@question
def a_decision_that_is_none(broker: Broker) -> Any:
    (entry,) = sent(broker, message("b-transaction", kind="TRANSACTION")).entries
    return {
        "neither": _end(broker, entry, d.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED),
        "a message id that is none": _end(broker, entry, d.TransactionResolution.COMMIT, message_id=""),
    }


# --- routes, clients and their end ----------------------------------------------------------------------------


@question
def assignments(broker: Broker) -> Any:
    def asked(topic: str, group: str) -> Any:
        request = s.QueryAssignmentRequest(topic=d.Resource(name=topic), group=d.Resource(name=group))
        request.endpoints.scheme = d.AddressScheme.IPv4
        request.endpoints.addresses.add(host="127.0.0.1", port=8081)
        return broker.ask("QueryAssignment", request)

    known = asked("b-normal", "b-settings")
    return {
        "known": d.Code.Name(known.status.code),
        "how many": len(known.assignments),
        "queue": known.assignments[0].message_queue.id,
        "no group": d.Code.Name(asked("b-normal", "").status.code),
        "no topic": d.Code.Name(asked("", "b-settings").status.code),
    }


@question
def a_route(broker: Broker) -> Any:
    request = s.QueryRouteRequest(topic=d.Resource(name="b-normal"))
    request.endpoints.scheme = d.AddressScheme.IPv4
    request.endpoints.addresses.add(host="127.0.0.1", port=8081)
    found = broker.ask("QueryRoute", request).message_queues
    return {
        "queues": sorted(one.id for one in found),
        "permissions": sorted({d.Permission.Name(one.permission) for one in found}),
        "broker ids": sorted({one.broker.id for one in found}),
        "scheme": sorted({d.AddressScheme.Name(one.broker.endpoints.scheme) for one in found}),
    }


@question
def a_topic_that_is_not_there(broker: Broker) -> Any:
    request = s.QueryRouteRequest(topic=d.Resource(name="b-none"))
    request.endpoints.scheme = d.AddressScheme.IPv4
    request.endpoints.addresses.add(host="127.0.0.1", port=8081)
    return broker.code("QueryRoute", request)


@question
def ends(broker: Broker) -> Any:
    unknown = broker.code("NotifyClientTermination", s.NotifyClientTerminationRequest())
    broker.settle("b-heart")
    group = s.NotifyClientTerminationRequest(group=d.Resource(name="b-heart"))
    return {
        "of nobody": unknown,
        "of a consumer": broker.code("NotifyClientTermination", group),
        "again": broker.code("NotifyClientTermination", group),
    }


@question
def wrong_heartbeats(broker: Broker) -> Any:
    return {
        "no type": broker.code("Heartbeat", s.HeartbeatRequest()),
        "a consumer without a group": broker.code(
            "Heartbeat", s.HeartbeatRequest(client_type=d.ClientType.SIMPLE_CONSUMER)
        ),
    }


@question
def settings_of_a_simple_consumer(broker: Broker) -> Any:
    said = d.Settings(client_type=d.ClientType.SIMPLE_CONSUMER)
    said.subscription.group.name = "b-settings"
    told = broker.telemetry(said)
    return {
        "code": d.Code.Name(told.status.code),
        "fifo": told.settings.subscription.fifo,
        "how often is received": told.settings.backoff_policy.max_attempts,
        "same type": told.settings.client_type == said.client_type,
    }


@question
def settings_of_a_fifo_group(broker: Broker) -> Any:
    said = d.Settings(client_type=d.ClientType.PUSH_CONSUMER)
    said.subscription.group.name = "b-ordered"
    return broker.telemetry(said).settings.subscription.fifo


@question
def wrong_settings(broker: Broker) -> Any:
    topic = d.Settings(client_type=d.ClientType.PRODUCER)
    topic.publishing.topics.add(name="a*")
    group = d.Settings(client_type=d.ClientType.PUSH_CONSUMER)
    group.subscription.group.name = "a*"
    return {"a topic with a star": broker.telemetry(topic), "a group with a star": broker.telemetry(group)}


@question
def a_call_that_is_none(broker: Broker) -> Any:
    ask = broker.channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/Nonsense",
        request_serializer=lambda said: said,
        response_deserializer=lambda said: said,
    )
    try:
        ask(b"", metadata=broker.metadata, timeout=60)
    except grpc.RpcError as failed:
        return failed.code().name
    return "OK"


@question
def offsets(broker: Broker) -> Any:
    where = {"group": d.Resource(name="b-offsets"), "message_queue": queue("b-normal")}
    return {
        "UpdateOffset": broker.code("UpdateOffset", s.UpdateOffsetRequest(**where, offset=0)),
        "GetOffset": broker.code("GetOffset", s.GetOffsetRequest(**where)),
    }
