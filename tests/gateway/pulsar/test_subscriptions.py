"""Subscription types with the official client: shared, failover, key-shared; redelivery in all its forms."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pulsar
import pytest

TIMEOUT_MS = 60_000
Shared, Failover = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover
KeyShared, Exclusive = pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Exclusive


def test_an_exclusive_subscription_has_one_consumer(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=Shared)


def test_consumers_share_what_comes(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", Shared, receiver_queue_size=10) for _ in range(3)]
    producer = client.create_producer(topic)
    talk.send(producer, talk.numbered(300))
    got = talk.share(consumers, 300, ack=True)
    assert sorted(message.data() for mine in got for message in mine) == talk.numbered(300)
    assert all(got)


def test_what_a_leaving_consumer_had_goes_to_the_others(client: pulsar.Client, talk: Any, topic: str) -> None:
    first = client.subscribe(topic, "s", Shared)
    talk.send(client.create_producer(topic), talk.numbered(20))
    assert len(talk.receive(first, 20, ack=False)) == 20
    second = client.subscribe(topic, "s", Shared)
    first.close()
    assert sorted(talk.receive(second, 20)) == talk.numbered(20)


def test_a_standby_takes_over_in_order(client: pulsar.Client, talk: Any, topic: str) -> None:
    active = client.subscribe(topic, "s", Failover, consumer_name="a")
    standby = client.subscribe(topic, "s", Failover, consumer_name="b")
    producer = client.create_producer(topic)
    talk.send(producer, talk.numbered(10))
    assert talk.receive(active, 5) == talk.numbered(10)[:5]
    talk.silent(standby)
    active.close()
    assert talk.receive(standby, 5) == talk.numbered(10)[5:]


def test_a_key_stays_with_its_consumer(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", KeyShared, consumer_name=f"c{at}") for at in range(3)]
    producer = client.create_producer(topic)
    for at in range(300):
        producer.send_async(b"%d" % at, None, partition_key=f"k{at % 30}")
    producer.flush()
    owners: dict[str, int] = {}
    order: dict[str, list[int]] = {}
    for number, mine in enumerate(talk.share(consumers, 300, ack=True)):
        for message in mine:
            assert owners.setdefault(message.partition_key(), number) == number
            order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert len(Counter(owners.values())) == 3


def test_key_based_batches_keep_to_their_key(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", KeyShared) for _ in range(2)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=50
    )
    for at in range(100):
        producer.send_async(b"%d" % at, None, partition_key=f"k{at % 10}")
    producer.flush()
    owners: dict[str, int] = {}
    for number, mine in enumerate(talk.share(consumers, 100, ack=True)):
        for message in mine:
            assert owners.setdefault(message.partition_key(), number) == number


@pytest.mark.slow
def test_sticky_hash_ranges(client: pulsar.Client, talk: Any, topic: str) -> None:
    def sticky(*ranges: tuple[int, int]) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
        )
        return client.subscribe(topic, "s", KeyShared, key_shared_policy=policy)

    low, high = sticky((0, 32767)), sticky((32768, 65535))
    producer = client.create_producer(topic)
    for at in range(100):
        producer.send(b"%d" % at, partition_key=f"k{at}")
    keys = [[message.partition_key() for message in mine] for mine in talk.share([low, high], 100)]
    assert len(keys[0]) + len(keys[1]) == 100
    assert all(keys)
    assert not set(keys[0]) & set(keys[1])
    with pytest.raises(pulsar.PulsarException):
        sticky((0, 10))


def test_a_negative_acknowledgement_brings_it_again(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", Shared, negative_ack_redelivery_delay_ms=100)
    talk.send(client.create_producer(topic), talk.numbered(3))
    for wanted in (0, 1, 2):
        messages = [consumer.receive(TIMEOUT_MS) for _ in range(3)]
        assert sorted(message.data() for message in messages) == talk.numbered(3)
        assert [message.redelivery_count() for message in messages] == [wanted] * 3
        for message in messages:
            consumer.negative_acknowledge(message)


def test_a_nacked_batch_comes_again_whole(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", Shared, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic, **talk.batches(5))
    talk.send(producer, talk.numbered(5))
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(5)]
    consumer.negative_acknowledge(messages[2])
    assert talk.receive(consumer, 5) == talk.numbered(5)
    talk.nothing_more(consumer, client.create_producer(topic))


@pytest.mark.slow
def test_an_ack_timeout_brings_it_again(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", Shared, unacked_messages_timeout_ms=10_000)
    talk.send(client.create_producer(topic), [b"x"])
    first = consumer.receive(TIMEOUT_MS)
    assert first.redelivery_count() == 0
    assert consumer.receive(TIMEOUT_MS).redelivery_count() == 1


def test_redeliver_all(client: pulsar.Client, talk: Any, topic: str) -> None:
    for kind in (Exclusive, Shared):
        consumer = client.subscribe(topic, f"s{kind}", kind)
        producer = client.create_producer(topic)
        talk.send(producer, talk.numbered(10))
        for message in [consumer.receive(TIMEOUT_MS) for _ in range(10)][:4]:
            consumer.acknowledge(message)
        consumer.redeliver_unacknowledged_messages()
        assert sorted(talk.receive(consumer, 6)) == talk.numbered(10)[4:]


def test_dead_letters_go_to_their_topic(client: pulsar.Client, talk: Any, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead_letter_topic=f"{topic}-dlq", initial_subscription_name="d")
    consumer = client.subscribe(topic, "s", Shared, negative_ack_redelivery_delay_ms=50, dead_letter_policy=policy)
    dead = client.subscribe(f"{topic}-dlq", "d", initial_position=pulsar.InitialPosition.Earliest)
    talk.send(client.create_producer(topic), talk.numbered(4))
    for _ in range(3):
        for message in [consumer.receive(TIMEOUT_MS) for _ in range(4)]:
            if message.data() == b"000001":
                consumer.acknowledge(message)
            else:
                consumer.negative_acknowledge(message)
        if message.redelivery_count() == 0:
            break
    got = []
    stop = threading.Event()

    def refuse() -> None:
        while not stop.is_set():
            with suppress(pulsar.Timeout):
                consumer.negative_acknowledge(consumer.receive(50))

    thread = threading.Thread(target=refuse)
    thread.start()
    try:
        got = talk.receive(dead, 3)
    finally:
        stop.set()
        thread.join()
    assert sorted(got) == [b"000000", b"000002", b"000003"]
    talk.nothing_more(dead, client.create_producer(f"{topic}-dlq"))


def test_unsubscribing_forgets_the_subscription(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    talk.send(producer, talk.numbered(3))
    consumer.unsubscribe()
    again = client.subscribe(topic, "s")
    talk.nothing_more(again, producer)


def test_two_connections_share_a_subscription(
    weir_broker: Any, connect: Callable[..., pulsar.Client], talk: Any, topic: str
) -> None:
    consumers = [connect(weir_broker).subscribe(topic, "s", Shared) for _ in range(2)]
    talk.send(connect(weir_broker).create_producer(topic), talk.numbered(100))
    got = [message.data() for mine in talk.share(consumers, 100) for message in mine]
    assert sorted(got) == talk.numbered(100)


@pytest.mark.parametrize("batching", [None, pulsar.BatchingType.KeyBased])
@pytest.mark.parametrize(("kind", "said"), [(Shared, {"weir.fifo": "true"}), (KeyShared, {})])
def test_a_message_that_fails_holds_up_its_group_and_no_other(
    client: pulsar.Client, topic: str, kind: Any, said: dict[str, str], batching: Any
) -> None:
    policy = said | {"weir.retry.schedule": "0s"}
    consumer = client.subscribe(topic, "s", kind, properties=policy, negative_ack_redelivery_delay_ms=100)
    how = {} if batching is None else {"batching_enabled": True, "batching_type": batching}
    producer = client.create_producer(topic, **how)
    for texts in ((b"a1", b"a2", b"b1", b"b2"), (b"a3", b"b3")):
        for text in texts:
            producer.send_async(text, lambda *_: None, partition_key=text[:1].decode())
        producer.flush()
    seen: list[bytes] = []
    while not {b"a3", b"b3"} <= set(seen):
        message = consumer.receive(TIMEOUT_MS)
        seen.append(message.data())
        if seen.count(b"a1") == 1 and message.data() == b"a1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = [text for text in seen if text.startswith(b"a")]
    assert again in ([b"a1", b"a1", b"a2", b"a3"], [b"a1", b"a2", b"a1", b"a2", b"a3"])  # a batch fails as one
    assert [text for text in seen if text.startswith(b"b")] == [b"b1", b"b2", b"b3"]


RETRIED = {"weir.retry.schedule": "1h", "weir.retry.max-deliveries": "3"}


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize(
    ("kind", "said", "room"),
    [
        (Shared, {"weir.filter": "n > 9"}, 1000),
        (Exclusive, {"weir.filter": "n > 9"}, 1000),
        (KeyShared, {"weir.filter": "n > 9"}, 1000),
        (Shared, RETRIED, 3),
        (Shared, {"weir.fifo": "true"}, 3),
    ],
    ids=["filtered", "filtered-exclusive", "filtered-key-shared", "retried", "in-groups"],
)
def test_what_is_acknowledged_of_a_batch_that_came_in_part_does_not_come_again(
    client: pulsar.Client, topic: str, kind: Any, said: dict[str, str], room: int, by_index: bool
) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe(
            topic, "s", kind, properties=said, receiver_queue_size=room, batch_index_ack_enabled=by_index
        )

    consumer = subscribe()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(20):
        properties = {"n": str(number)}
        producer.send_async(str(number).encode(), lambda *_: None, properties=properties, partition_key="k")
    producer.flush()
    wanted = [str(number).encode() for number in range(10 if "weir.filter" in said else 0, 20)]
    messages = [consumer.receive(TIMEOUT_MS) for _ in wanted]
    assert [message.data() for message in messages] == wanted
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    consumer = subscribe()
    producer.send_async(b"next", lambda *_: None, properties={"n": "99"}, partition_key="k")
    producer.flush()
    assert consumer.receive(TIMEOUT_MS).data() == b"next"


@pytest.mark.parametrize("by_index", [False, True])
def test_only_messages_of_a_batch_that_fail_each_time_become_dead_letters(
    client: pulsar.Client, talk: Any, topic: str, by_index: bool
) -> None:
    """A negative acknowledgement names the whole batch. Without acknowledgements by index all of it fails once."""
    policy = {"weir.retry.schedule": "0s", "weir.retry.max-deliveries": "3"}
    consumer = client.subscribe(
        topic,
        "s",
        Shared,
        properties=policy,
        batch_index_ack_enabled=by_index,
        negative_ack_redelivery_delay_ms=100,
    )
    letters = client.subscribe(f"{topic}-s-DLQ", "letters", Shared)
    producer = client.create_producer(topic, **talk.batches(20))
    talk.send(producer, talk.numbered(60))
    bad = set(talk.numbered(60)[::20])
    seen: Counter[bytes] = Counter()
    while min(seen[each] for each in bad) < 3:
        message = consumer.receive(TIMEOUT_MS)
        seen[message.data()] += 1
        if message.data() in bad:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert set(talk.receive(letters, len(bad))) == bad
    talk.nothing_more(letters, client.create_producer(f"{topic}-s-DLQ"))
    assert {seen[each] for each in set(talk.numbered(60)) - bad} == {1 if by_index else 2}
    talk.nothing_more(consumer, client.create_producer(topic))


@pytest.mark.parametrize("by_index", [False, True])
def test_what_of_a_batch_comes_again_to_a_client_that_counts_itself(
    client: pulsar.Client, talk: Any, topic: str, by_index: bool
) -> None:
    """As with Apache Pulsar: without a retry policy of the subscription, counts are those of entries."""
    consumer = client.subscribe(
        topic, "s", Shared, batch_index_ack_enabled=by_index, negative_ack_redelivery_delay_ms=100
    )
    talk.send(client.create_producer(topic, **talk.batches(5)), talk.numbered(10))
    for message in [consumer.receive(TIMEOUT_MS) for _ in range(10)]:
        if message.data() == b"000002":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = [consumer.receive(TIMEOUT_MS) for _ in range(1 if by_index else 5)]
    assert {message.redelivery_count() for message in again} == {1}
    assert [message.data() for message in again] == ([b"000002"] if by_index else talk.numbered(5))
    for message in again:
        consumer.acknowledge(message)
    talk.nothing_more(consumer, client.create_producer(topic))


def test_an_acknowledgement_of_a_part_from_before_a_break_is_not_taken_for_the_whole_batch(
    connect: Callable[[Any], pulsar.Client], weir_broker: Any, topic: str
) -> None:
    first = connect(weir_broker).subscribe(topic, "s", Shared, properties=RETRIED, receiver_queue_size=1)
    producer = connect(weir_broker).create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    for number in range(3):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    message = first.receive(TIMEOUT_MS)
    other = connect(weir_broker).subscribe(topic, "s", Shared, properties=RETRIED)
    late = pulsar.MessageId.deserialize(message.message_id().serialize())
    other.acknowledge(late)  # as a client does that connected anew
    first.close()
    assert sorted(other.receive(TIMEOUT_MS).data() for _ in range(3)) == [b"0", b"1", b"2"]
