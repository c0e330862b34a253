"""RocketMQ's own client on a cluster of three brokers, pointed at any of them; calls that reach the wrong one."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import grpc
import pytest
from rocketmq import LiteSimpleConsumer, Message, TransactionChecker
from rocketmq.grpc_protocol import Code, MessagingServiceStub
from rocketmq.grpc_protocol import definition_pb2 as said
from rocketmq.grpc_protocol import service_pb2 as asked
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

from weir.model.topics import TopicName
from weir.testing.many_brokers import ManyBrokers

PARTITIONS = 4
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def brokers() -> Iterator[ManyBrokers]:
    found = ManyBrokers(spread=True).start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def weir(brokers: ManyBrokers) -> Any:
    """Where the clients of the fixture `clients` come to: to all brokers."""
    return SimpleNamespace(rocketmq=brokers.endpoints)


def partitioned(brokers: ManyBrokers, count: int = PARTITIONS) -> str:
    name = f"parts-{uuid4().hex[:12]}"
    brokers["broker0"].do("PUT", f"persistent/public/default/{name}/partitions", count)
    return name


class Asking:
    """Calls to one broker, whoever has the queue."""

    def __init__(self, address: str, client: str = "a client") -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = MessagingServiceStub(self._channel)
        self.metadata = (("x-mq-client-id", client), ("x-mq-language", "JAVA"))

    def __call__(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request, metadata=self.metadata, timeout=TIMEOUT_S)

    def telemetry(self, commands: Any) -> Any:
        return self._stub.Telemetry(commands, metadata=self.metadata)

    def send(self, topic: str, body: bytes, **properties: Any) -> Any:
        properties = {"message_type": said.MessageType.NORMAL, **properties}
        system = said.SystemProperties(message_id=uuid4().hex, **properties)
        message = said.Message(topic=said.Resource(name=topic), body=body, system_properties=system)
        return self("SendMessage", asked.SendMessageRequest(messages=[message]))

    def receive(self, topic: str, queue: int = 0, wait_s: int = 20, **fields: Any) -> list[Any]:
        request = asked.ReceiveMessageRequest(group=said.Resource(name="g"), batch_size=16, **fields)
        request.message_queue.topic.name, request.message_queue.id = topic, queue
        request.long_polling_timeout.seconds = wait_s
        if not request.auto_renew:
            request.invisible_duration.seconds = 60
        return [one.message for one in self("ReceiveMessage", request) if one.HasField("message")]

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def wrong(brokers: ManyBrokers, name: str) -> Iterator[Asking]:
    """A broker that does not have the topic `name`."""
    asking = Asking(brokers[not_the_owner(brokers, name)].listeners["rocketmq"])
    yield asking
    asking.close()


def not_the_owner(brokers: ManyBrokers, name: str) -> str:
    topic = TopicName.parse(name)
    brokers["broker0"].ask("PUT", f"persistent/public/default/{name}")
    owner = brokers.owner(topic)
    return next(other for other in brokers.running if other != owner)


def status(response: Any) -> int:
    return int(response.status.code)


def queue_of(topic: str) -> Any:
    return said.MessageQueue(topic=said.Resource(name=topic), id=0)


# --- routes ---------------------------------------------------------------------------------------------------


def test_every_broker_names_the_same_brokers_for_the_queues(brokers: ManyBrokers) -> None:
    topic = partitioned(brokers)
    wanted = {
        at: brokers[brokers.owner(TopicName.parse(topic).at(at))].listeners["rocketmq"] for at in range(PARTITIONS)
    }
    assert len(set(wanted.values())) == 3
    for one in brokers.running.values():
        asking = Asking(one.listeners["rocketmq"])
        route = asking("QueryRoute", asked.QueryRouteRequest(topic=said.Resource(name=topic)))
        told = {queue.id: queue.broker.endpoints.addresses[0] for queue in route.message_queues}
        assert {at: f"{where.host}:{where.port}" for at, where in told.items()} == wanted
        assignment = asking(
            "QueryAssignment",
            asked.QueryAssignmentRequest(topic=said.Resource(name=topic), group=said.Resource(name="g")),
        )
        places = [one.message_queue.broker.endpoints.addresses[0] for one in assignment.assignments]
        assert {f"{where.host}:{where.port}" for where in places} == set(wanted.values())
        asking.close()


@pytest.mark.parametrize("start", ["broker0", "broker1", "all"])
def test_a_client_that_is_pointed_at_any_broker_uses_all_queues(
    brokers: ManyBrokers, clients: Any, make: Any, start: str
) -> None:
    topic = partitioned(brokers)
    clients.endpoint = brokers.endpoints if start == "all" else brokers[start].listeners["rocketmq"]
    producer = clients.producer(topic)
    sent = [producer.send(make(topic, b"%d" % n)) for n in range(24)]
    consumer = clients.consumer("g", topic, wait_s=1)
    assert sorted(one.body for one in all_of(consumer, 24)) == sorted(b"%d" % n for n in range(24))
    assert len({receipt.message_queue.endpoints.facade for receipt in sent}) == 3
    clients.stop(producer)
    clients.stop(consumer)


def all_of(consumer: Any, count: int) -> list[Any]:
    """So many messages, acknowledged. Which queue is asked is a matter of chance, so many are at once."""
    found: list[Any] = []
    under_way = {consumer.receive_async(16, 60) for _ in range(8)}
    while len(found) < count:
        done, under_way = wait(under_way, timeout=TIMEOUT_S, return_when=FIRST_COMPLETED)
        for receive in done:
            for one in receive.result():
                consumer.ack(one)
                found.append(one)
        under_way |= {consumer.receive_async(16, 60) for _ in done}
    wait(under_way, timeout=TIMEOUT_S)
    return found


def test_messages_of_a_group_are_in_one_queue_and_in_order(brokers: ManyBrokers, clients: Any, make: Any) -> None:
    topic = partitioned(brokers)
    clients.endpoint = brokers.endpoints
    producer = clients.producer(topic)
    groups = [f"group-{at}" for at in range(5)]
    for n in range(3):
        for group in groups:
            producer.send(make(topic, b"%d" % n, message_group=group))
    consumer = clients.consumer("g", topic, wait_s=1)
    found: dict[str, list[bytes]] = {}
    for one in all_of(consumer, 15):
        found.setdefault(one.message_group, []).append(one.body)
    assert found == {group: [b"0", b"1", b"2"] for group in groups}
    clients.stop(producer)
    clients.stop(consumer)


# --- the wrong broker -----------------------------------------------------------------------------------------


def test_the_wrong_broker_sends_receives_and_settles(wrong: Asking, name: str) -> None:
    for n in range(3):
        assert status(wrong.send(name, b"%d" % n)) == Code.OK
    found: list[Any] = []
    while len(found) < 3:
        found += wrong.receive(name)
    assert [one.body for one in found] == [b"0", b"1", b"2"]
    handles = [one.system_properties.receipt_handle for one in found]
    group, topic = said.Resource(name="g"), said.Resource(name=name)
    change = asked.ChangeInvisibleDurationRequest(group=group, topic=topic, receipt_handle=handles[0])
    change.invisible_duration.seconds = 0
    assert status(wrong("ChangeInvisibleDuration", change)) == Code.OK
    (again,) = wrong.receive(name)
    assert (again.body, again.system_properties.delivery_attempt) == (b"0", 2)
    acks = asked.AckMessageRequest(group=group, topic=topic)
    acks.entries.add(message_id="1", receipt_handle=handles[1])
    acks.entries.add(message_id="2", receipt_handle=handles[0])
    response = wrong("AckMessage", acks)
    assert status(response) == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
    dead = asked.ForwardMessageToDeadLetterQueueRequest(group=group, topic=topic, receipt_handle=handles[2])
    assert status(wrong("ForwardMessageToDeadLetterQueue", dead)) == Code.OK
    (letter,) = wrong.receive("%DLQ%g")
    assert letter.body == b"2"


def test_what_is_handed_on_is_counted_once_at_the_broker_that_the_client_talks_to(
    brokers: ManyBrokers, name: str
) -> None:
    elsewhere = not_the_owner(brokers, name)
    wrong = Asking(brokers[elsewhere].listeners["rocketmq"])

    def counted() -> dict[str, tuple[int, int]]:
        found = {at: one.rocketmq.services.metrics for at, one in brokers.running.items()}
        return {at: (metrics.sent, metrics.received) for at, metrics in found.items()}

    before, calls = counted(), brokers[elsewhere].rocketmq.services.metrics.handed_on
    for n in range(3):
        assert status(wrong.send(name, b"%d" % n)) == Code.OK
    got: list[Any] = []
    while len(got) < 3:
        got += wrong.receive(name)
    pull = asked.PullMessageRequest(
        group=said.Resource(name="g"), message_queue=queue_of(name), offset=1, batch_size=10
    )
    assert len([one for one in wrong("PullMessage", pull) if one.HasField("message")]) == 2
    wrong.close()
    sent, received = before[elsewhere]
    assert counted() == {**before, elsewhere: (sent + 3, received + 5)}
    assert brokers[elsewhere].rocketmq.services.metrics.handed_on >= calls + 5


def test_the_wrong_broker_decides_transactions(wrong: Asking, name: str) -> None:
    for decision in (said.TransactionResolution.ROLLBACK, said.TransactionResolution.COMMIT):
        (entry,) = wrong.send(name, b"half", message_type=said.MessageType.TRANSACTION).entries
        end = asked.EndTransactionRequest(
            topic=said.Resource(name=name), transaction_id=entry.transaction_id, resolution=decision
        )
        assert status(wrong("EndTransaction", end)) == Code.OK
    assert [one.body for one in wrong.receive(name)] == [b"half"]


def test_the_wrong_broker_recalls(wrong: Asking, name: str) -> None:
    properties = said.SystemProperties()
    properties.delivery_timestamp.seconds = 4_000_000_000
    delayed = {
        "message_type": said.MessageType.DELAY,
        "delivery_timestamp": properties.delivery_timestamp,
    }
    (entry,) = wrong.send(name, b"later", **delayed).entries
    recall = asked.RecallMessageRequest(topic=said.Resource(name=name), recall_handle=entry.recall_handle)
    assert status(wrong("RecallMessage", recall)) == Code.OK
    assert status(wrong("RecallMessage", recall)) == Code.BAD_REQUEST


def test_the_wrong_broker_knows_offsets(wrong: Asking, name: str) -> None:
    for n in range(3):
        wrong.send(name, b"%d" % n)
    queue = queue_of(name)
    end = asked.QueryOffsetRequest(message_queue=queue, query_offset_policy=said.QueryOffsetPolicy.END)
    assert wrong("QueryOffset", end).offset == 3
    group = said.Resource(name=f"offsets-{name}")
    get = asked.GetOffsetRequest(message_queue=queue, group=group)
    assert status(wrong("GetOffset", get)) == Code.OFFSET_NOT_FOUND
    update = asked.UpdateOffsetRequest(message_queue=queue, group=group, offset=2)
    assert status(wrong("UpdateOffset", update)) == Code.OK
    assert wrong("GetOffset", get).offset == 2
    pull = asked.PullMessageRequest(group=group, message_queue=queue, offset=1, batch_size=10)
    pulled = list(wrong("PullMessage", pull))
    assert [one.message.body for one in pulled if one.HasField("message")] == [b"1", b"2"]
    assert pulled[-1].next_offset == 3


def test_a_producer_that_is_connected_to_another_broker_is_asked_about_a_half_message(
    wrong: Asking, name: str
) -> None:
    settings = said.Settings(client_type=said.ClientType.PRODUCER)
    settings.publishing.topics.add(name=name)
    ended = threading.Event()

    def commands() -> Iterator[Any]:
        yield asked.TelemetryCommand(settings=settings)
        ended.wait(TIMEOUT_S)

    stream = wrong.telemetry(commands())
    assert next(stream).HasField("settings")
    recovery = said.SystemProperties()
    recovery.orphaned_transaction_recovery_duration.nanos = 1_000_000
    wrong.send(
        name,
        b"half",
        message_type=said.MessageType.TRANSACTION,
        orphaned_transaction_recovery_duration=recovery.orphaned_transaction_recovery_duration,
    )
    command = next(one for one in stream if one.HasField("recover_orphaned_transaction_command"))
    question = command.recover_orphaned_transaction_command
    assert question.message.body == b"half"
    end = asked.EndTransactionRequest(
        topic=said.Resource(name=name),
        transaction_id=question.transaction_id,
        resolution=said.TransactionResolution.COMMIT,
    )
    assert status(wrong("EndTransaction", end)) == Code.OK
    assert [one.body for one in wrong.receive(name)] == [b"half"]
    ended.set()


def test_lite_topics_of_all_brokers_come_to_a_consumer_of_any(
    brokers: ManyBrokers, clients: Any, make: Callable[..., Message], name: str, until: Any
) -> None:
    elsewhere = not_the_owner(brokers, name)
    lites = one_of_each(brokers, name)
    clients.endpoint = brokers.endpoints
    producer = clients.producer(name)
    for lite in lites:
        producer.send(make(name, lite.encode(), lite_topic=lite))
    clients.endpoint = brokers[elsewhere].listeners["rocketmq"]
    consumer = clients.started(LiteSimpleConsumer(name, clients.configuration(), "lites", 1))

    def subscribed() -> bool:
        """It refuses until the server's settings have come."""
        with suppress(LiteSubscriptionQuotaExceededException):
            for lite in lites:
                consumer.subscribe_lite(lite)
            return True
        return False

    until(subscribed)
    consumer.subscribe_lite_all()  # 5.1.2 sends whole names only here
    assert sorted(one.body for one in all_of(consumer, len(lites))) == sorted(lite.encode() for lite in lites)
    clients.stop(producer)
    clients.stop(consumer)


def one_of_each(brokers: ManyBrokers, name: str) -> list[str]:
    """A lite topic for each broker, by which it is served."""
    found: dict[str, str] = {}
    for at in range(1000):
        topic = TopicName.parse(f"{name}%LITE%lite-{at}")
        found.setdefault(brokers["broker0"].broker.owner_now(topic).broker_id, f"lite-{at}")
        if len(found) == 3:
            break
    assert len(found) == 3
    return list(found.values())


# --- moves ----------------------------------------------------------------------------------------------------


class Yes(TransactionChecker):
    def check(self, message: Message) -> Any:
        return said.TransactionResolution.COMMIT


def test_bundles_move_while_clients_send_consume_and_run_transactions(
    brokers: ManyBrokers, clients: Any, make: Callable[..., Message], name: str
) -> None:
    topic = TopicName.parse(name)
    brokers["broker0"].do("PUT", f"persistent/public/default/{name}")
    clients.endpoint = brokers.endpoints
    producer, consumer = clients.producer(name, checker=Yes()), clients.consumer("g", name, wait_s=1)
    stored: set[bytes] = set()
    enough = threading.Event()

    def send() -> None:
        for n in range(10_000):
            if enough.is_set():
                return
            if n % 4 == 3:
                transaction = producer.begin_transaction()
                producer.send(make(name, b"%d" % n), transaction)
                transaction.commit()
            else:
                producer.send(make(name, b"%d" % n))
            stored.add(b"%d" % n)

    sending = threading.Thread(target=send)
    sending.start()
    found: set[bytes] = set()

    def take(more: int) -> None:
        wanted = len(found) + more
        while len(found) < wanted:
            for one in consumer.receive(16, 60):
                consumer.ack(one)
                found.add(one.body)

    for to in ("broker1", "broker2", "broker0"):
        take(10)
        brokers.move(topic, to)
    take(10)
    enough.set()
    sending.join(TIMEOUT_S)
    assert not sending.is_alive()
    while not stored <= found:
        take(1)
    clients.stop(producer)
    clients.stop(consumer)


def test_clients_go_on_when_a_broker_is_lost_and_nothing_confirmed_is(
    brokers: ManyBrokers, clients: Any, make: Callable[..., Message]
) -> None:
    """The last one here: a broker is gone after it."""
    topic = partitioned(brokers)
    clients.endpoint = brokers.endpoints
    producer, consumer = clients.producer(topic), clients.consumer("g", topic, wait_s=1)
    stored = [b"%d" % n for n in range(12)]
    for body in stored:
        producer.send(make(topic, body))
    brokers.lose("broker2")
    while len(stored) < 24:
        body = b"%d" % len(stored)
        with suppress(Exception):  # what the client does not get rid of in its attempts its user sends again
            producer.send(make(topic, body))
            stored.append(body)
    found: set[bytes] = set()
    while not found >= set(stored):
        with suppress(Exception):  # its route names the lost broker for a while
            for one in consumer.receive(16, 60):
                found.add(one.body)
                consumer.ack(one)
    clients.stop(producer)
    clients.stop(consumer)
