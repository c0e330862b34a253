"""What is asked: plain calls of apache.rocketmq.v2, each answered by a code, or by what was received.

The topics are made by whoever asks: `b-normal`, `b-fifo`, `b-delay`, `b-transaction`, each for messages of a type;
and the groups.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import grpc
from rocketmq.grpc_protocol import definition_pb2 as d
from rocketmq.grpc_protocol import service_pb2 as s
from rocketmq.grpc_protocol.service_pb2_grpc import MessagingServiceStub

TYPES = {"b-normal": "NORMAL", "b-fifo": "FIFO", "b-delay": "DELAY", "b-transaction": "TRANSACTION"}
#: A topic with one queue, so that what is sent to it comes in order.
ONE_QUEUE = "b-one"
GROUPS = ("b-sending", "b-receiving", "b-nothing", "b-wrong", "b-settling", "b-heart", "b-settings", "b-asking")
#: Groups that receive in order.
FIFO_GROUPS = ("b-ordered",)
QUESTIONS: dict[str, Callable[["Broker"], Any]] = {}
_WAIT_S = 60


def question(asked: Callable[["Broker"], Any]) -> Callable[["Broker"], Any]:
    QUESTIONS[asked.__name__] = asked
    return asked


class Broker:
    """One that is asked."""

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.insecure_channel(
            endpoint, [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        )
        self.stub = MessagingServiceStub(self.channel)
        self.client_id = f"client-{uuid4().hex}"
        self._over = threading.Event()
        self._streams: list[Any] = []

    def close(self) -> None:
        self._over.set()
        for stream in self._streams:
            stream.cancel()
        self.channel.close()

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.0.8"),
            ("x-mq-protocol", "GRPC_V2"),
            ("x-mq-date-time", "20261116T150000Z"),
            ("x-mq-request-id", uuid4().hex),
        ]

    def ask(self, method: str, request: Any, **how: Any) -> Any:
        """The response; or the status of gRPC, if there is none."""
        how = {"metadata": self.metadata, "timeout": _WAIT_S} | how
        try:
            found = getattr(self.stub, method)(request, **how)
            return found if hasattr(found, "status") else list(found)
        except grpc.RpcError as failed:
            return failed.code().name

    def code(self, method: str, request: Any, **how: Any) -> str:
        found = self.ask(method, request, **how)
        if isinstance(found, str):
            return found
        if isinstance(found, list):
            found = next(one for one in found if one.HasField("status"))
        return str(d.Code.Name(found.status.code))

    def send(self, *messages: Any) -> str:
        return self.code("SendMessage", s.SendMessageRequest(messages=messages))

    def receive(
        self,
        topic: str,
        group: str,
        *,
        invisible_s: int = 30,
        poll_s: int = 5,
        count: int = 32,
        expression: str = "*",
        kind: int = d.FilterType.TAG,
    ) -> Any:
        request = s.ReceiveMessageRequest(
            group=d.Resource(name=group), message_queue=queue(topic), batch_size=count, auto_renew=False
        )
        request.invisible_duration.seconds = invisible_s
        request.long_polling_timeout.seconds = poll_s
        request.filter_expression.type, request.filter_expression.expression = kind, expression
        return self.ask("ReceiveMessage", request)

    def settle(self, group: str) -> None:
        """The broker knows the consumer by its settings."""
        settings = d.Settings(client_type=d.ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.name = group
        settings.access_point.scheme = d.AddressScheme.IPv4
        settings.access_point.addresses.add(host="127.0.0.1", port=8081)
        settings.request_timeout.seconds = 3
        for topic in (*TYPES, ONE_QUEUE):
            entry = settings.subscription.subscriptions.add()
            entry.topic.name = topic
            entry.expression.type, entry.expression.expression = d.FilterType.TAG, "*"
        settings.subscription.long_polling_timeout.seconds = 5
        settings.user_agent.language = d.Language.JAVA
        settings.user_agent.version = "5.0.8"
        self.telemetry(settings)

    def telemetry(self, settings: Any) -> Any:
        def said() -> Iterator[Any]:
            yield s.TelemetryCommand(settings=settings)
            self._over.wait()  # a broker forgets a client whose stream ends

        try:
            self._streams.append(self.stub.Telemetry(said(), metadata=self.metadata, timeout=_WAIT_S))
            return next(self._streams[-1])
        except grpc.RpcError as failed:
            return failed.code().name
        except StopIteration:
            return "nothing"


def queue(topic: str) -> Any:
    return d.MessageQueue(topic=d.Resource(name=topic), id=0, broker=d.Broker(name="broker-a"))


def message(topic: str = "b-normal", body: bytes = b"hello", kind: str = "NORMAL", **said: Any) -> Any:
    made = d.Message(topic=d.Resource(name=topic), body=body)
    properties = made.system_properties
    properties.message_id = uuid4().hex.upper()
    properties.message_type = d.MessageType.Value(kind)
    properties.body_encoding = d.Encoding.IDENTITY
    properties.born_timestamp.FromSeconds(int(time.time()))
    properties.born_host = "127.0.0.1"
    for name, value in said.items():
        if name == "keys":
            properties.keys.extend(value)
        elif name == "properties":
            made.user_properties.update(value)
        elif name == "delivery":
            properties.delivery_timestamp.FromSeconds(value)
        else:
            setattr(properties, name, value)
    return made


# --- routes ---------------------------------------------------------------------------------------------------


@question
def routes(broker: Broker) -> Any:
    def asked(name: str) -> str:
        request = s.QueryRouteRequest(topic=d.Resource(name=name))
        request.endpoints.scheme = d.AddressScheme.IPv4
        request.endpoints.addresses.add(host="127.0.0.1", port=8081)
        return broker.code("QueryRoute", request)

    return {
        "known": asked("b-normal"),
        "blank": asked(""),
        "a space": asked("a b"),
        "too long": asked("t" * 128),
        "a star": asked("a*"),
    }


@question
def types_in_a_route(broker: Broker) -> Any:
    found = {}
    for topic in TYPES:
        request = s.QueryRouteRequest(topic=d.Resource(name=topic))
        request.endpoints.scheme = d.AddressScheme.IPv4
        request.endpoints.addresses.add(host="127.0.0.1", port=8081)
        response = broker.ask("QueryRoute", request)
        types = {d.MessageType.Name(kind) for one in response.message_queues for kind in one.accept_message_types}
        found[topic] = sorted(types)
    return found


@question
def no_client_id(broker: Broker) -> Any:
    request = s.HeartbeatRequest(client_type=d.ClientType.PRODUCER)
    return broker.code("Heartbeat", request, metadata=[])


@question
def heartbeats(broker: Broker) -> Any:
    unknown = Broker.code(broker, "Heartbeat", s.HeartbeatRequest(client_type=d.ClientType.PRODUCER))
    broker.settle("b-heart")
    known = s.HeartbeatRequest(client_type=d.ClientType.SIMPLE_CONSUMER, group=d.Resource(name="b-heart"))
    return {"of a producer without settings": unknown, "of a consumer": broker.code("Heartbeat", known)}


# --- sending --------------------------------------------------------------------------------------------------


@question
def sending(broker: Broker) -> Any:
    broker.settle("b-sending")
    later = int(time.time()) + 3600
    many = {f"p{n}": "v" for n in range(129)}
    return {
        "normal": broker.send(message()),
        "no body": broker.send(message(body=b"")),
        "no message": broker.send(),
        "no id": broker.send(message(message_id="")),
        "two": broker.send(message(), message()),
        "two topics": broker.send(message(), message("b-fifo")),
        "a body that is too large": broker.send(message(body=b"x" * (4 * 1024 * 1024 + 1))),
        "tag": broker.send(message(tag="a")),
        "blank tag": broker.send(message(tag=" ")),
        "tag with a bar": broker.send(message(tag="a|b")),
        "tag with a control character": broker.send(message(tag="a\x01")),
        "keys": broker.send(message(keys=["a", "b"])),
        "key with a control character": broker.send(message(keys=["a\x01"])),
        "a reserved property": broker.send(message(properties={"KEYS": "x"})),
        "too many properties": broker.send(message(properties=many)),
        "properties that are too large": broker.send(message(properties={"p": "v" * 20_000})),
        "fifo": broker.send(message("b-fifo", kind="FIFO", message_group="g")),
        "a group that is too long": broker.send(message("b-fifo", kind="FIFO", message_group="g" * 65)),
        "delay": broker.send(message("b-delay", kind="DELAY", delivery=later)),
        "a moment in the past": broker.send(message("b-delay", kind="DELAY", delivery=1)),
        "a normal one where fifo is wanted": broker.send(message("b-fifo")),
        "fifo where normal is wanted": broker.send(message(kind="FIFO", message_group="g")),
    }


@question
def a_half_message(broker: Broker) -> Any:
    sent = broker.ask("SendMessage", s.SendMessageRequest(messages=[message("b-transaction", kind="TRANSACTION")]))
    (entry,) = sent.entries

    def end(transaction_id: str, resolution: int = d.TransactionResolution.COMMIT) -> str:
        request = s.EndTransactionRequest(
            topic=d.Resource(name="b-transaction"),
            message_id=entry.message_id,
            transaction_id=transaction_id,
            resolution=resolution,
            source=d.TransactionSource.SOURCE_CLIENT,
        )
        return broker.code("EndTransaction", request)

    return {
        "prepared": d.Code.Name(sent.status.code),
        "has an id": bool(entry.transaction_id),
        "no id": end(""),
        "committed": end(entry.transaction_id),
    }


@question
def recalling(broker: Broker) -> Any:
    later = int(time.time()) + 3600
    request = s.SendMessageRequest(messages=[message("b-delay", kind="DELAY", delivery=later)])
    (entry,) = broker.ask("SendMessage", request).entries

    def recall(handle: str) -> str:
        return broker.code(
            "RecallMessage", s.RecallMessageRequest(topic=d.Resource(name="b-delay"), recall_handle=handle)
        )

    return {
        "has a handle": bool(entry.recall_handle),
        "recalled": recall(entry.recall_handle),
        "no handle": recall(""),
        "a handle that is none": recall("nonsense"),
    }


# --- receiving ------------------------------------------------------------------------------------------------


@question
def receiving(broker: Broker) -> Any:
    mine = "b-receiving"
    broker.settle(mine)
    broker.receive("b-normal", mine)  # the group begins here, whatever lies before
    body = uuid4().hex.encode()
    sent = message(body=body, tag="t", keys=["k"], properties={"a": "b"})
    broker.send(sent)
    found: list[Any] = []
    for _ in range(12):
        came = broker.receive("b-normal", mine)
        found = [one.message for one in came if one.HasField("message") and one.message.body == body]
        if found:
            break
    (got,) = found
    said = got.system_properties
    return {
        "kinds of answers": list(dict.fromkeys(str(one.WhichOneof("content")) for one in came)),
        "same id": said.message_id == sent.system_properties.message_id,
        "tag": said.tag,
        "keys": list(said.keys),
        "properties": dict(got.user_properties),
        "type": d.MessageType.Name(said.message_type),
        "attempt": said.delivery_attempt,
        "digest": d.DigestType.Name(said.body_digest.type),
        "has": [
            name
            for name in ("receipt_handle", "store_timestamp", "queue_offset", "invisible_duration")
            if said.HasField(name)
        ],
    }


@question
def nothing_to_receive(broker: Broker) -> Any:
    mine = "b-nothing"
    broker.settle(mine)
    for _ in range(20):
        came = broker.receive("b-fifo", mine, poll_s=1)
        if not any(one.HasField("message") for one in came):
            return [d.Code.Name(one.status.code) if one.HasField("status") else "moment" for one in came]
    return "never"


@question
def wrong_receives(broker: Broker) -> Any:
    mine = "b-wrong"
    broker.settle(mine)

    def code(topic: str, name: str, **how: Any) -> str:
        came = broker.receive(topic, name, **how)
        if isinstance(came, str):
            return came
        return str(d.Code.Name(next(one for one in came if one.HasField("status")).status.code))

    return {
        "no group": code("b-normal", ""),
        "a group with a star": code("b-normal", "a*"),
        "no topic": code("", mine),
        "an invisible time of nothing": code("b-normal", mine, invisible_s=0),
        "an invisible time of a day": code("b-normal", mine, invisible_s=86_400),
    }


@question
def settling(broker: Broker) -> Any:
    mine = "b-settling"
    broker.settle(mine)
    broker.receive("b-normal", mine)
    broker.send(message())
    found: list[Any] = []
    while not found:
        found = [one.message for one in broker.receive("b-normal", mine, count=1) if one.HasField("message")]
    said = found[0].system_properties

    def entry(handle: str) -> Any:
        return s.AckMessageEntry(message_id=said.message_id, receipt_handle=handle)

    def ack(*handles: str) -> str:
        request = s.AckMessageRequest(
            group=d.Resource(name=mine), topic=d.Resource(name="b-normal"), entries=[entry(one) for one in handles]
        )
        return broker.code("AckMessage", request)

    def change(handle: str, seconds: int) -> Any:
        request = s.ChangeInvisibleDurationRequest(
            group=d.Resource(name=mine),
            topic=d.Resource(name="b-normal"),
            receipt_handle=handle,
            message_id=said.message_id,
        )
        request.invisible_duration.seconds = seconds
        return broker.ask("ChangeInvisibleDuration", request)

    changed = change(said.receipt_handle, 60)
    return {
        "changed": d.Code.Name(changed.status.code),
        "another handle": changed.receipt_handle != said.receipt_handle,
        "changed to nothing": d.Code.Name(change(changed.receipt_handle, 0).status.code),
        "acknowledged": ack(changed.receipt_handle),
        "nonsense acknowledged": ack("nonsense"),
        "nothing acknowledged": ack(),
    }


@question
def settings(broker: Broker) -> Any:
    producer = d.Settings(client_type=d.ClientType.PRODUCER)
    producer.publishing.topics.add(name="b-normal")
    neither = d.Settings(client_type=d.ClientType.PRODUCER)
    consumer = d.Settings(client_type=d.ClientType.PUSH_CONSUMER)
    consumer.subscription.group.name = "b-settings"
    told = broker.telemetry(producer)
    pushed = broker.telemetry(consumer)
    return {
        "producer": d.Code.Name(told.status.code),
        "largest body": told.settings.publishing.max_body_size,
        "types are checked": told.settings.publishing.validate_message_type,
        "how often is sent": told.settings.backoff_policy.max_attempts,
        "consumer": d.Code.Name(pushed.status.code),
        "fifo": pushed.settings.subscription.fifo,
        "how often is received": pushed.settings.backoff_policy.max_attempts,
        "waits": [one.seconds for one in pushed.settings.backoff_policy.customized_backoff.next],
        "neither": getattr(broker.telemetry(neither), "status", None) is not None,
    }


@question
def pulling(broker: Broker) -> Any:
    where = queue("b-normal")
    request = s.PullMessageRequest(group=d.Resource(name="b-g"), message_queue=where, batch_size=1)
    pulled = broker.code("PullMessage", request)
    return {
        "PullMessage": "OK" if pulled == "MESSAGE_NOT_FOUND" else pulled,
        "QueryOffset": broker.code("QueryOffset", s.QueryOffsetRequest(message_queue=where)),
    }
