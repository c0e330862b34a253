"""Reading by offset, where groups are, batches, and lite topics from an offset: calls that few clients make."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from rocketmq.grpc_protocol import definition_pb2 as d
from rocketmq.grpc_protocol import service_pb2 as s
from tests.gateway.rocketmq.behaviour.questions import Broker, message, queue

from weir.testing.processes.up import UpProcess
from weir.wire.rocketmq import rocketmq_pb2 as api

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker(weir: UpProcess) -> Iterator[Broker]:
    made = Broker(weir.rocketmq)
    yield made
    made.close()


def sent(broker: Broker, topic: str, *bodies: bytes, **said: Any) -> Any:
    request = s.SendMessageRequest(messages=[message(topic, body, **said) for body in bodies])
    found = broker.ask("SendMessage", request)
    assert found.status.code == d.Code.OK, found
    return found


def pulled(broker: Broker, topic: str, offset: int, count: int = 10) -> tuple[list[bytes], int]:
    request = s.PullMessageRequest(
        group=d.Resource(name="g"), message_queue=queue(topic), offset=offset, batch_size=count
    )
    answers = broker.ask("PullMessage", request)
    assert answers[0].status.code in (d.Code.OK, d.Code.MESSAGE_NOT_FOUND), answers
    return [one.message.body for one in answers if one.HasField("message")], answers[-1].next_offset


def test_messages_of_one_request_are_all_stored_in_their_order(broker: Broker, name: str) -> None:
    answer = sent(broker, name, b"1", b"2", b"3")
    assert [entry.status.code for entry in answer.entries] == [d.Code.OK] * 3
    assert [entry.offset for entry in answer.entries] == [0, 1, 2]
    found = [one.message.body for one in broker.receive(name, "g") if one.HasField("message")]
    assert found == [b"1", b"2", b"3"]


def test_a_queue_is_read_by_offset(broker: Broker, name: str) -> None:
    sent(broker, name, *(b"%d" % number for number in range(5)))
    assert pulled(broker, name, 1, 2) == ([b"1", b"2"], 3)
    assert pulled(broker, name, 3) == ([b"3", b"4"], 5)
    assert pulled(broker, name, 5) == ([], 5)
    beyond = s.PullMessageRequest(group=d.Resource(name="g"), message_queue=queue(name), offset=6, batch_size=1)
    assert broker.code("PullMessage", beyond) == "ILLEGAL_OFFSET"


def test_a_pull_gets_what_its_filter_takes_and_goes_on_behind_what_it_leaves_out(
    broker: Broker, name: str
) -> None:
    for number, color in enumerate(("red", "blue", "red", "blue")):
        said = message(name, b"%d" % number)
        said.user_properties["color"], said.system_properties.tag = color, f"t{number % 2}"
        broker.ask("SendMessage", s.SendMessageRequest(messages=[said]))

    def pull(kind: int, expression: str, count: int = 10) -> Any:
        request = s.PullMessageRequest(
            group=d.Resource(name="g"), message_queue=queue(name), offset=0, batch_size=count
        )
        request.filter_expression.type, request.filter_expression.expression = kind, expression
        return request

    for asked, bodies, after in (
        (pull(d.FilterType.SQL, "color = 'blue'"), [b"1", b"3"], 4),
        (pull(d.FilterType.SQL, "color = 'blue'", 1), [b"1"], 2),
        (pull(d.FilterType.TAG, "t0"), [b"0", b"2"], 4),
        (pull(d.FilterType.TAG, "t2 || t3"), [], 4),
        (pull(d.FilterType.TAG, "*"), [b"0", b"1", b"2", b"3"], 4),
    ):
        answers = broker.ask("PullMessage", asked)
        assert [one.message.body for one in answers if one.HasField("message")] == bodies
        assert answers[-1].next_offset == after
    for wrong in ("color =", " "):
        assert broker.code("PullMessage", pull(d.FilterType.SQL, wrong)) == "ILLEGAL_FILTER_EXPRESSION"


def test_a_pull_passes_by_what_was_aborted(broker: Broker, weir: UpProcess, name: str) -> None:
    producer = Producer({"bootstrap.servers": weir.kafka, "transactional.id": name, "log_level": 0})
    producer.init_transactions(60)
    for body, ended in ((b"kept", producer.commit_transaction), (b"gone", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, body, partition=0)
        producer.flush(60)
        ended(60)
    sent(broker, name, b"last")
    found: list[bytes] = []
    at = 0
    while b"last" not in found:
        some, at = pulled(broker, name, at)
        found += some
    assert found == [b"kept", b"last"]


def test_a_pull_at_the_end_waits_for_the_next_message(broker: Broker, name: str) -> None:
    sent(broker, name, b"0")
    request = s.PullMessageRequest(group=d.Resource(name="g"), message_queue=queue(name), offset=1, batch_size=1)
    request.long_polling_timeout.seconds = 15
    waiting = broker.stub.PullMessage(request, metadata=broker.metadata, timeout=60)
    sent(broker, name, b"1")
    assert [one.message.body for one in waiting if one.HasField("message")] == [b"1"]


def test_the_first_the_last_and_the_offset_of_a_moment_are_told(broker: Broker, name: str) -> None:
    sent(broker, name, b"1", b"2")
    store = next(
        one.message.system_properties.store_timestamp
        for one in broker.receive(name, "g")
        if one.HasField("message")
    )

    def offset(policy: int, **said: Any) -> int:
        request = s.QueryOffsetRequest(message_queue=queue(name), query_offset_policy=policy, **said)
        return int(broker.ask("QueryOffset", request).offset)

    assert offset(d.QueryOffsetPolicy.BEGINNING) == 0
    assert offset(d.QueryOffsetPolicy.END) == 2
    assert offset(d.QueryOffsetPolicy.TIMESTAMP, timestamp=store) == 0
    store.seconds += 3600
    assert offset(d.QueryOffsetPolicy.TIMESTAMP, timestamp=store) == 2
    no_moment = s.QueryOffsetRequest(message_queue=queue(name), query_offset_policy=d.QueryOffsetPolicy.TIMESTAMP)
    assert broker.code("QueryOffset", no_moment) == "BAD_REQUEST"


def test_a_group_is_where_it_said_that_it_is(broker: Broker, name: str) -> None:
    sent(broker, name, b"0", b"1", b"2")
    where = {"group": d.Resource(name=f"{name}-g"), "message_queue": queue(name)}
    assert broker.code("GetOffset", s.GetOffsetRequest(**where)) == "OFFSET_NOT_FOUND"
    assert broker.code("UpdateOffset", s.UpdateOffsetRequest(**where, offset=2)) == "OK"
    assert broker.ask("GetOffset", s.GetOffsetRequest(**where)).offset == 2
    assert broker.code("UpdateOffset", s.UpdateOffsetRequest(**where, offset=-1)) == "ILLEGAL_OFFSET"


# --- lite topics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "first"),
    [
        ({"policy": api.OffsetOption.Policy.MIN}, b"0"),
        ({"policy": api.OffsetOption.Policy.LAST}, b"2"),
        ({"policy": api.OffsetOption.Policy.MAX}, b"new"),
        ({"offset": 1}, b"1"),
        ({"tail_n": 2}, b"2"),
        ({"tail_n": 99}, b"0"),
        ({"timestamp": 0}, b"0"),
    ],
)
def test_a_group_goes_on_in_a_lite_topic_from_where_its_client_says(
    weir: UpProcess, name: str, option: dict[str, Any], first: bytes
) -> None:
    broker = Broker(weir.rocketmq)
    settings = d.Settings(client_type=d.ClientType.LITE_PUSH_CONSUMER)
    settings.subscription.group.name = "g"
    broker.telemetry(settings)
    sent(broker, name, b"0", b"1", b"2", b"3", kind="LITE", lite_topic="chat")

    def subscribed(action: int, **said: Any) -> None:
        request = api.SyncLiteSubscriptionRequest(
            action=action,
            topic=api.Resource(name=name),
            group=api.Resource(name="g"),
            lite_topic_set=["chat"],
            **said,
        )
        request = s.SyncLiteSubscriptionRequest.FromString(request.SerializeToString())
        assert broker.code("SyncLiteSubscription", request) == "OK"

    def received(count: int) -> list[Any]:
        return [one.message for one in broker.receive(name, "g", count=count) if one.HasField("message")]

    subscribed(api.LiteSubscriptionAction.PARTIAL_ADD)
    ack = s.AckMessageRequest(group=d.Resource(name="g"), topic=d.Resource(name=name))
    for one in received(2):
        said = one.system_properties
        ack.entries.add(message_id=said.message_id, receipt_handle=said.receipt_handle, lite_topic="chat")
    assert broker.code("AckMessage", ack) == "OK"
    subscribed(api.LiteSubscriptionAction.PARTIAL_ADD, offset_option=api.OffsetOption(**option))
    sent(broker, name, b"new", kind="LITE", lite_topic="chat")
    assert [one.body for one in received(1)] == [first]
    broker.close()
