"""More questions: what is received of what was sent, and what becomes of it.

Each asks for messages of a tag or property of its own, so that what others sent does not matter.
"""

import time
from typing import Any
from uuid import uuid4

from rocketmq.grpc_protocol import definition_pb2 as d
from rocketmq.grpc_protocol import service_pb2 as s
from tests.gateway.rocketmq.behaviour.questions import ONE_QUEUE, Broker, message, question

_MINE = "b-asking"
_ROUNDS = 12


def tag() -> str:
    return f"t{uuid4().hex}"


def received(
    broker: Broker, topic: str, expression: str, count: int, group: str = _MINE, at_once: int = 32
) -> list[Any]:
    """So many messages, in the order in which they came."""
    found: list[Any] = []
    for _ in range(_ROUNDS):
        came = broker.receive(topic, group, expression=expression, count=at_once)
        found += [one.message for one in came if one.HasField("message")]
        if len(found) >= count:
            break
    return found


def code_of_receiving(broker: Broker, expression: str, kind: int) -> str:
    came = broker.receive("b-normal", _MINE, expression=expression, kind=kind, poll_s=1)
    return str(d.Code.Name(next(one for one in came if one.HasField("status")).status.code))


def entry(said: Any, handle: str | None = None) -> Any:
    return s.AckMessageEntry(
        message_id=said.message_id, receipt_handle=said.receipt_handle if handle is None else handle
    )


def ack(broker: Broker, *entries: Any, topic: str = "b-normal", group: str = _MINE) -> Any:
    request = s.AckMessageRequest(group=d.Resource(name=group), topic=d.Resource(name=topic), entries=entries)
    return broker.ask("AckMessage", request)


def change(broker: Broker, said: Any, handle: str, seconds: int, topic: str = "b-normal") -> Any:
    request = s.ChangeInvisibleDurationRequest(
        group=d.Resource(name=_MINE),
        topic=d.Resource(name=topic),
        receipt_handle=handle,
        message_id=said.message_id,
    )
    request.invisible_duration.seconds = seconds
    return broker.ask("ChangeInvisibleDuration", request)


def one_received(broker: Broker, topic: str = "b-normal", **said: Any) -> Any:
    broker.settle(_MINE)
    mine = tag()
    broker.send(message(topic, tag=mine, **said))
    return received(broker, topic, mine, 1)[0].system_properties


# --- filters --------------------------------------------------------------------------------------------------


@question
def tags(broker: Broker) -> Any:
    broker.settle(_MINE)
    first, second, third = tag(), tag(), tag()
    for mine in (first, second, third):
        broker.send(message(tag=mine, body=str((first, second, third).index(mine)).encode()))
    found = received(broker, "b-normal", f"{first} || {third}", 2)
    return sorted(one.body.decode() for one in found)


@question
def sql(broker: Broker) -> Any:
    """Which of five messages an expression lets through."""
    broker.settle(_MINE)
    run = uuid4().hex
    rows: list[dict[str, str]] = [
        {"n": "1", "c": "red"},
        {"n": "2", "c": "blue"},
        {"n": "3", "c": "red"},
        {"c": "green"},
        {"n": "2.5"},
    ]
    expressions = {
        "n > 1": "n > 1",
        "between": "n BETWEEN 2 AND 3",
        "in": "c IN ('red', 'green')",
        "not in": "c NOT IN ('red', 'green')",
        "is null": "n IS NULL",
        "is not null": "c IS NOT NULL AND n IS NOT NULL",
        "not of what is missing": "NOT (n > 1)",
        "or": "n > 2 OR c = 'green'",
        "unequal": "c <> 'red'",
    }
    found = {}
    for name, expression in expressions.items():
        mine = f"{run}{len(found)}"
        for number, row in enumerate(rows):
            broker.send(message(ONE_QUEUE, str(number).encode(), properties=row | {"r": mine}))
        broker.send(message(ONE_QUEUE, b"end", properties={"r": f"{mine}end"}))
        came: list[str] = []
        for _ in range(_ROUNDS):
            wanted = f"(r = '{mine}' AND ({expression})) OR r = '{mine}end'"
            answers = broker.receive(ONE_QUEUE, _MINE, expression=wanted, kind=d.FilterType.SQL)
            came += [one.message.body.decode() for one in answers if one.HasField("message")]
            if "end" in came:
                break
        found[name] = sorted(one for one in came if one != "end")
    return found


@question
def wrong_filters(broker: Broker) -> Any:
    broker.settle(_MINE)
    return {
        "sql without an end": code_of_receiving(broker, "n >", d.FilterType.SQL),
        "sql of nothing": code_of_receiving(broker, "", d.FilterType.SQL),
        "sql that is a number": code_of_receiving(broker, "1 + 1", d.FilterType.SQL),
        "like": code_of_receiving(broker, "c LIKE 'r%'", d.FilterType.SQL),
        "bars without tags": code_of_receiving(broker, "||", d.FilterType.TAG),
    }


# --- what is received -----------------------------------------------------------------------------------------


@question
def what_is_said_of_a_message(broker: Broker) -> Any:
    said = one_received(broker, keys=["k1", "k2"])
    return {
        "keys": sorted(said.keys),
        "type": d.MessageType.Name(said.message_type),
        "encoding": d.Encoding.Name(said.body_encoding),
        "born host": said.born_host,
        "is born": said.born_timestamp.seconds > 0,
        "is stored": said.store_timestamp.seconds > 0,
        "group": said.message_group,
        "delivery": said.HasField("delivery_timestamp"),
    }


@question
def what_is_said_of_an_ordered_message(broker: Broker) -> Any:
    said = one_received(broker, "b-fifo", kind="FIFO", message_group="g")
    return {"group": said.message_group, "type": d.MessageType.Name(said.message_type)}


@question
def what_is_said_of_a_delayed_message(broker: Broker) -> Any:
    moment = int(time.time()) + 1
    said = one_received(broker, "b-delay", kind="DELAY", delivery=moment)
    return {
        "came in time": time.time() >= moment,
        "type": d.MessageType.Name(said.message_type),
        "moment": said.delivery_timestamp.seconds == moment,
    }


@question
def of_two_half_messages_the_committed_one_comes(broker: Broker) -> Any:
    broker.settle(_MINE)
    mine = tag()
    for body, resolution in ((b"no", "ROLLBACK"), (b"yes", "COMMIT")):
        half = message("b-transaction", body, kind="TRANSACTION", tag=mine)
        (sent,) = broker.ask("SendMessage", s.SendMessageRequest(messages=[half])).entries
        broker.code(
            "EndTransaction",
            s.EndTransactionRequest(
                topic=d.Resource(name="b-transaction"),
                message_id=sent.message_id,
                transaction_id=sent.transaction_id,
                resolution=d.TransactionResolution.Value(resolution),
                source=d.TransactionSource.SOURCE_CLIENT,
            ),
        )
    found = received(broker, "b-transaction", mine, 1)
    return [(one.body.decode(), d.MessageType.Name(one.system_properties.message_type)) for one in found]


@question
def an_ordered_group(broker: Broker) -> Any:
    """The second message of a message group comes when the first is acknowledged."""
    group = "b-ordered"
    broker.settle(group)
    mine, other = tag(), f"g{uuid4().hex}"
    for body in (b"1", b"2"):
        broker.send(message("b-fifo", body, kind="FIFO", message_group=other, tag=mine))
    first = received(broker, "b-fifo", mine, 1, group=group, at_once=1)
    ack(broker, *(entry(one.system_properties) for one in first), topic="b-fifo", group=group)
    second = received(broker, "b-fifo", mine, 1, group=group, at_once=1)
    ack(broker, *(entry(one.system_properties) for one in second), topic="b-fifo", group=group)
    return [one.body.decode() for one in (*first, *second)]


@question
def a_message_that_comes_again(broker: Broker) -> Any:
    broker.settle(_MINE)
    mine = tag()
    broker.send(message(tag=mine))
    (first,) = received(broker, "b-normal", mine, 1)
    said = first.system_properties
    change(broker, said, said.receipt_handle, 1)
    (second,) = received(broker, "b-normal", mine, 1)
    again = second.system_properties
    return {
        "attempts": [said.delivery_attempt, again.delivery_attempt],
        "same id": said.message_id == again.message_id,
        "same handle": said.receipt_handle == again.receipt_handle,
    }


@question
def how_many_are_wanted(broker: Broker) -> Any:
    broker.settle(_MINE)
    mine = tag()
    broker.send(message(tag=mine))
    return len(received(broker, "b-normal", mine, 1, at_once=1))


# --- what becomes of it ---------------------------------------------------------------------------------------


@question
def acknowledged_twice(broker: Broker) -> Any:
    said = one_received(broker)
    first, second = ack(broker, entry(said)), ack(broker, entry(said))
    return [d.Code.Name(one.status.code) for one in (first, second)]


@question
def acknowledged_together(broker: Broker) -> Any:
    broker.settle(_MINE)
    mine = tag()
    for _ in range(2):
        broker.send(message(tag=mine))
    found = received(broker, "b-normal", mine, 2)
    answer = ack(broker, *(entry(one.system_properties) for one in found))
    return {
        "code": d.Code.Name(answer.status.code),
        "each": [d.Code.Name(one.status.code) for one in answer.entries],
    }


@question
def an_old_handle(broker: Broker) -> Any:
    said = one_received(broker)
    changed = change(broker, said, said.receipt_handle, 60)
    old = ack(broker, entry(said))
    new = ack(broker, entry(said, changed.receipt_handle))
    return {"old": d.Code.Name(old.status.code), "new": d.Code.Name(new.status.code)}


@question
def changed_by_too_much(broker: Broker) -> Any:
    said = one_received(broker)
    found = {
        "a day": d.Code.Name(change(broker, said, said.receipt_handle, 86_400).status.code),
        "nonsense": d.Code.Name(change(broker, said, "nonsense", 30).status.code),
    }
    ack(broker, entry(said))
    return found


@question
def acknowledged_for_nobody(broker: Broker) -> Any:
    said = one_received(broker)
    found = {
        "no group": d.Code.Name(ack(broker, entry(said), group="").status.code),
        "no topic": d.Code.Name(ack(broker, entry(said), topic="").status.code),
        "a group with a star": d.Code.Name(ack(broker, entry(said), group="a*").status.code),
    }
    ack(broker, entry(said))
    return found


@question
def forwarded_to_dead_letters(broker: Broker) -> Any:
    said = one_received(broker)

    def forward(handle: str, group: str = _MINE, topic: str = "b-normal") -> str:
        request = s.ForwardMessageToDeadLetterQueueRequest(
            group=d.Resource(name=group),
            topic=d.Resource(name=topic),
            receipt_handle=handle,
            message_id=said.message_id,
            delivery_attempt=1,
            max_delivery_attempts=1,
        )
        return broker.code("ForwardMessageToDeadLetterQueue", request)

    return {
        "no group": forward(said.receipt_handle, group=""),
        "no topic": forward(said.receipt_handle, topic=""),
        "forwarded": forward(said.receipt_handle),
        "nonsense": forward("nonsense"),
    }


@question
def wrong_counts(broker: Broker) -> Any:
    broker.settle(_MINE)

    def code(**how: Any) -> str:
        came = broker.receive("b-normal", _MINE, poll_s=1, **how)
        if isinstance(came, str):
            return came
        return str(d.Code.Name(next(one for one in came if one.HasField("status")).status.code))

    return {"none": code(count=0, expression=tag()), "fewer than none": code(count=-1, expression=tag())}
