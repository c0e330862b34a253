"""The plug-in with Kafka's clients: delays, retention, transactions and sessions by a clock that is moved."""

import asyncio

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.process


def _producer(weir, **more):
    return confluent_kafka.Producer({"bootstrap.servers": weir.kafka, "linger.ms": 0, **more})


def _send(weir, topic, *values, headers=None):
    producer = _producer(weir)
    for value in values:
        producer.produce(topic, value, headers=headers)
    assert producer.flush(20) == 0


class Consumer:
    """A member of the group `g` that notes how often its partitions were divided."""

    def __init__(self, weir, topic):
        settings = {"bootstrap.servers": weir.kafka, "group.id": "g", "auto.offset.reset": "earliest"}
        timing = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
        self._consumer = confluent_kafka.Consumer({**settings, **timing, "enable.auto.commit": False})
        self.assigned = 0
        self._consumer.subscribe([topic], on_assign=self._on_assign)

    def _on_assign(self, consumer, partitions):
        self.assigned += 1

    def take(self):
        for _ in range(200):
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._consumer.commit(message, asynchronous=False)
                return message.value()
        raise AssertionError("nothing came")

    def poll_until(self, condition):
        for _ in range(600):
            if condition():
                return
            self._consumer.poll(0.05)
        raise AssertionError("it did not come to pass")

    def close(self):
        self._consumer.close()


@pytest.fixture
def member(weir):
    consumer = Consumer(weir, "orders")
    yield consumer
    consumer.close()


def test_a_delayed_record_comes_when_the_clock_is_moved_and_its_reader_stays_a_member(weir, member):
    _send(weir, "orders", b"now")
    assert member.take() == b"now"
    _send(weir, "orders", b"later", headers={"weir-deliver-after": b"172800000"})
    weir.clock.advance("1 day")
    assert [m.value for m in weir.messages("orders")] == [b"now"]
    before = weir.clock.now()
    weir.clock.advance("2 days")
    assert member.take() == b"later"
    assert member.assigned == 1
    late = weir.messages("orders")[-1].stored_at - before
    assert late.total_seconds() == pytest.approx(86_400, abs=600)
    weir.wait_until_empty("orders", "g")


def test_silent_clients_lose_their_place_in_a_group(weir, member):
    _send(weir, "orders", b"one")
    assert member.take() == b"one"
    weir.clock.advance("1 hour", silent_clients=True)
    member.poll_until(lambda: member.assigned == 2)


def test_what_is_older_than_its_retention_is_gone(weir):
    admin = AdminClient({"bootstrap.servers": weir.kafka})
    admin.create_topics([NewTopic("short", 1, config={"retention.ms": "3600000"})])["short"].result(20)
    _send(weir, "short", b"old")
    weir.clock.advance("50 minutes")
    assert [m.value for m in weir.messages("short")] == [b"old"]
    weir.clock.advance("20 minutes")
    assert weir.messages("short") == []


def test_a_transaction_that_takes_too_long_is_aborted(weir):
    producer = _producer(weir, **{"transactional.id": "t", "transaction.timeout.ms": 60_000})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("ledger", b"never")
    assert producer.flush(20) == 0
    weir.clock.advance("2 minutes")
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(20)
    weir.produce("ledger", b"seen")
    assert [m.value for m in weir.wait_for("ledger")] == [b"seen"]


async def test_helpers_for_coroutines_do_not_hold_up_the_loop(weir):
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=weir.kafka)
    await producer.start()
    try:
        waiting = asyncio.create_task(weir.aio.wait_for("events", 2))
        await producer.send_and_wait("events", b"a", key=b"k", headers=[("h", b"v")])
        await producer.send_and_wait("events", b"b")
        first, second = await waiting
    finally:
        await producer.stop()
    assert (first.key, first.text, first.headers) == (b"k", "a", {"h": b"v"})
    assert second.offset == 1
    assert await weir.aio.topics() == ["events"]
