"""Idempotent and transactional producers of Kafka's own clients: all or nothing, fenced, and across a restart."""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import pulsar
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from weir.testing.processes.up import UpProcess

TIMEOUT_S = 60.0


def producer_of(bootstrap: str, name: str, **more: Any) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 1, **more}
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def send(producer: confluent_kafka.Producer, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    producer.flush(TIMEOUT_S)


def make_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(TIMEOUT_S)


def read(bootstrap: str, topic: str, *, committed: bool = True, partitions: Sequence[int] = (0,)) -> list[str]:
    """Everything up to the end of the partitions, as the isolation level has it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, at, 0) for at in partitions])
        found: list[str] = []
        ended: dict[int, None] = {}
        deadline = time.monotonic() + TIMEOUT_S
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"only {found}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value().decode())
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended[message.partition()] = None
            else:
                raise KafkaException(message.error())
        return found
    finally:
        consumer.close()


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


@pytest.fixture
def name() -> str:
    """A transactional id that no other test uses."""
    return f"x-{uuid4().hex}"


# --- committed, aborted, open ---------------------------------------------------------------------------------


def test_committed_is_seen_aborted_is_not_and_open_waits(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic, 2)
    producer = producer_of(bootstrap, name)
    for number, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        send(producer, topic, f"a{number}", f"b{number}", partition=0)
        send(producer, topic, f"c{number}", partition=1)
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, "open", partition=0)
    assert read(bootstrap, topic) == ["a0", "b0", "a2", "b2"]
    assert read(bootstrap, topic, partitions=[1]) == ["c0", "c2"]
    everything = read(bootstrap, topic, committed=False)
    assert everything == [f"{letter}{number}" for number in range(4) for letter in "ab"] + ["open"]
    producer.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic) == ["a0", "b0", "a2", "b2", "open"]


def test_transactions_of_several_producers_interleave(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic)
    good, bad = producer_of(bootstrap, f"{name}-good"), producer_of(bootstrap, f"{name}-bad")
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    good.begin_transaction()
    bad.begin_transaction()
    for number in range(5):
        send(good, topic, f"good{number}")
        send(bad, topic, f"bad{number}")
        send(plain, topic, f"plain{number}")
    bad.abort_transaction(TIMEOUT_S)
    assert read(bootstrap, topic) == []  # the good one is open
    good.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic) == [f"{who}{number}" for number in range(5) for who in ("good", "plain")]


def test_aiokafka_commits_and_aborts(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic)

    async def scenario() -> list[str]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"one", partition=0)
            with pytest.raises(ValueError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"no", partition=0)
                    raise ValueError
            async with producer.transaction():
                await producer.send_and_wait(topic, b"two", partition=0)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            async with asyncio.timeout(TIMEOUT_S):
                return [(await consumer.getone()).value.decode() for _ in range(2)]
        finally:
            await consumer.stop()

    assert asyncio.run(scenario()) == ["one", "two"]


def test_kafka_python_commits_and_aborts(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    try:
        producer.init_transactions()
        for value, commit in ((b"one", True), (b"no", False), (b"two", True)):
            producer.begin_transaction()
            producer.send(topic, value, partition=0)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(TIMEOUT_S)
    assert read(bootstrap, topic) == ["one", "two"]


def test_a_pulsar_consumer_sees_what_is_committed_only(
    weir: UpProcess, bootstrap: str, topic: str, name: str
) -> None:
    make_topic(bootstrap, topic)
    producer = producer_of(bootstrap, name)
    client = pulsar.Client(weir.pulsar_url)
    try:
        consumer = client.subscribe(f"{topic}-partition-0", "s", initial_position=pulsar.InitialPosition.Earliest)
        for value, commit in (("one", True), ("no", False), ("two", True)):
            producer.begin_transaction()
            send(producer, topic, value)
            if commit:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
        producer.begin_transaction()
        send(producer, topic, "three")
        got = [consumer.receive(int(TIMEOUT_S * 1000)) for _ in range(2)]
        assert [message.data() for message in got] == [b"one", b"two"]
        reader = client.create_reader(f"{topic}-partition-0", pulsar.MessageId.earliest)
        seen = []
        while reader.has_message_available():
            seen.append(reader.read_next(int(TIMEOUT_S * 1000)).data())
        assert seen == [b"one", b"two"]
        late = client.create_reader(f"{topic}-partition-0", pulsar.MessageId.latest)
        assert not late.has_message_available()
        assert [_peek(weir, topic, number) for number in (1, 2, 3)] == [b"one", b"two", None]
        producer.commit_transaction(TIMEOUT_S)
        assert consumer.receive(int(TIMEOUT_S * 1000)).data() == b"three"
    finally:
        client.close()


def test_what_is_delayed_in_a_transaction_is_seen_once_in_its_time_if_that_commits(
    weir: UpProcess, bootstrap: str, topic: str, name: str
) -> None:
    make_topic(bootstrap, topic)
    producer = producer_of(bootstrap, name, **{"linger.ms": 500})  # one batch each
    client = pulsar.Client(weir.pulsar_url)
    try:
        consumer = client.subscribe(f"{topic}-partition-0", "s", initial_position=pulsar.InitialPosition.Earliest)
        for number, commit in enumerate([False, True]):
            due_ms = int(time.time() * 1000) + 3000
            late = [("weir-deliver-at", str(due_ms).encode())]
            producer.begin_transaction()
            producer.produce(topic, b"first%d" % number, partition=0)
            producer.produce(topic, b"late%d" % number, partition=0, headers=late)
            producer.produce(topic, b"last%d" % number, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
            assert read(bootstrap, topic, committed=False)[-2:] == [f"first{number}", f"last{number}"]
            if commit:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
        got = [consumer.receive(int(TIMEOUT_S * 1000)).data() for _ in range(3)]
        assert time.time() * 1000 >= due_ms
        assert got == [b"first1", b"last1", b"late1"]
        assert read(bootstrap, topic) == ["first1", "last1", "late1"]
        everything = ["first0", "last0", "first1", "last1", "late1"]
        assert read(bootstrap, topic, committed=False) == everything
        producer.begin_transaction()
        send(producer, topic, "end")  # the moment of what was aborted is over, too
        producer.commit_transaction(TIMEOUT_S)
        assert consumer.receive(int(TIMEOUT_S * 1000)).data() == b"end"
    finally:
        client.close()


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python"])
def test_other_clients_read_on_behind_what_is_hidden(bootstrap: str, topic: str, name: str, client: str) -> None:
    make_topic(bootstrap, topic)
    producer = producer_of(bootstrap, name)
    producer.begin_transaction()
    for _ in range(3):  # each hidden batch in a request of its own, and a fetch may find nothing else
        producer.produce(topic, b"much later", partition=0, headers=[("weir-deliver-after", b"3600000")])
        assert producer.flush(TIMEOUT_S) == 0
    producer.commit_transaction(TIMEOUT_S)
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})

    async def aio() -> bytes:
        part = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
        await consumer.start()
        try:
            consumer.assign([part])
            consumer.seek(part, 0)
            async with asyncio.timeout(TIMEOUT_S):
                return bytes((await consumer.getone()).value)
        finally:
            await consumer.stop()

    def python() -> bytes:
        part = kafka.TopicPartition(topic, 0)
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=int(TIMEOUT_S * 1000))
        try:
            consumer.assign([part])
            consumer.seek(part, 0)
            return bytes(next(consumer).value)
        finally:
            consumer.close()

    send(plain, topic, "now")
    assert (asyncio.run(aio()) if client == "aiokafka" else python()) == b"now"


def _peek(weir: UpProcess, topic: str, number: int) -> bytes | None:
    """What administrators see of the subscription's backlog."""
    path = f"/admin/v2/persistent/public/default/{topic}-partition-0/subscription/s/position/{number}"
    try:
        with urllib.request.urlopen(weir.http_url + path, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        if refused.code == 404:
            return None
        raise


# --- positions ------------------------------------------------------------------------------------------------


def test_consumed_positions_are_committed_with_what_was_made_of_them(
    bootstrap: str, topic: str, name: str
) -> None:
    """Read, process, write, some of it in vain: each input has its output once."""
    source, target = f"{topic}-in", f"{topic}-out"
    make_topic(bootstrap, source)
    make_topic(bootstrap, target)
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    send(plain, source, *(str(number) for number in range(20)))
    producer = producer_of(bootstrap, name)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.subscribe([source])
        rounds = done = 0
        deadline = time.monotonic() + TIMEOUT_S
        while done < 20:
            assert time.monotonic() < deadline
            messages = consumer.consume(4, 1.0)
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                assert message.error() is None
                producer.produce(target, b"made of " + message.value(), partition=0)
            moved = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), TIMEOUT_S)
            rounds += 1
            if rounds % 2:
                producer.abort_transaction(TIMEOUT_S)
                for message in messages[:1]:
                    consumer.seek(TopicPartition(source, 0, message.offset()))
            else:
                producer.commit_transaction(TIMEOUT_S)
                done = moved[0].offset
                committed = consumer.committed(consumer.assignment(), TIMEOUT_S)
                assert committed[0].offset == done
    finally:
        consumer.close()
    assert read(bootstrap, target) == [f"made of {number}" for number in range(20)]


def test_aiokafka_commits_positions_with_a_transaction(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic)

    async def scenario() -> list[int | None]:
        part = aiokafka.TopicPartition(topic, 0)
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([part])
            found = []
            for offset, commit in ((3, True), (7, False)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"m", partition=0)
                await producer.send_offsets_to_transaction({part: offset}, name)
                if commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
                found.append(await consumer.committed(part))
            return found
        finally:
            await producer.stop()
            await consumer.stop()

    assert asyncio.run(scenario()) == [3, 3]


# --- fencing, time ---------------------------------------------------------------------------------------------


def test_a_second_producer_of_the_same_id_fences_the_first_and_undoes_its_work(
    bootstrap: str, topic: str, name: str
) -> None:
    make_topic(bootstrap, topic)
    first = producer_of(bootstrap, name)
    first.begin_transaction()
    send(first, topic, "left open")
    second = producer_of(bootstrap, name)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    send(second, topic, "new")
    second.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic) == ["new"]


def test_aiokafka_is_told_that_it_is_fenced(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic)

    async def scenario() -> None:
        first = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await first.start()
        second = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        try:
            await first.begin_transaction()
            await first.send_and_wait(topic, b"left open", partition=0)
            await second.start()
            with pytest.raises(aiokafka.errors.ProducerFenced):
                await first.commit_transaction()
            async with second.transaction():
                await second.send_and_wait(topic, b"new", partition=0)
        finally:
            await second.stop()
            await first.stop()

    asyncio.run(scenario())
    assert read(bootstrap, topic) == ["new"]


def test_a_transaction_that_is_open_for_too_long_is_undone(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic)
    producer = producer_of(bootstrap, name, **{"transaction.timeout.ms": 5000, "message.timeout.ms": 5000})
    producer.begin_transaction()
    send(producer, topic, "too slow")
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    send(plain, topic, "after")
    wait_for(lambda: read(bootstrap, topic) == ["after"])
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)


# --- restarts ---------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
def test_a_restart_in_the_middle_of_transactions_loses_and_doubles_nothing(
    start_weir: Callable[..., UpProcess], topic: str, name: str, killed: bool
) -> None:
    up = start_weir()
    make_topic(up.kafka, topic)
    stays, goes = producer_of(up.kafka, f"{name}-stays"), producer_of(up.kafka, f"{name}-goes")
    stays.begin_transaction()
    send(stays, topic, "before")
    goes.begin_transaction()
    send(goes, topic, "no")
    goes.abort_transaction(TIMEOUT_S)
    goes.begin_transaction()
    send(goes, topic, "left open")
    if killed:
        up.kill()
    else:
        up.stop()
    up.start()
    send(stays, topic, "after")
    stays.commit_transaction(TIMEOUT_S)
    again = producer_of(up.kafka, f"{name}-goes")
    assert read(up.kafka, topic) == ["before", "after"]
    again.begin_transaction()
    send(again, topic, "new")
    again.commit_transaction(TIMEOUT_S)
    assert read(up.kafka, topic) == ["before", "after", "new"]


@pytest.mark.process
def test_an_idempotent_producer_goes_on_after_a_kill_without_gaps_and_doubles(
    start_weir: Callable[..., UpProcess], topic: str
) -> None:
    up = start_weir()
    make_topic(up.kafka, topic)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": up.kafka, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 5}
    )
    told: list[Any] = []
    for number in range(200):
        producer.produce(topic, str(number).encode(), partition=0, on_delivery=lambda e, _: told.append(e))
        producer.poll(0)
        if number == 100:
            up.kill()
            up.start()
    assert producer.flush(TIMEOUT_S) == 0
    assert told == [None] * 200
    assert read(up.kafka, topic) == [str(number) for number in range(200)]


# --- asking -----------------------------------------------------------------------------------------------------


def test_administrators_see_transactions_and_producers(bootstrap: str, topic: str, name: str) -> None:
    make_topic(bootstrap, topic)
    producer = producer_of(bootstrap, name)
    producer.begin_transaction()
    send(producer, topic, "open")
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        listed = {one.transactional_id: one for found in admin.list_transactions().values() for one in found}
        assert listed[name].state.value == "Ongoing"
        told = admin.describe_transactions([name])[name]
        assert (told.state.value, told.producer_id) == ("Ongoing", listed[name].producer_id)
        part = kafka.TopicPartition(topic, 0)
        assert told.topic_partitions == {part}
        mine = admin.describe_producers([part])[part].active_producers
        assert [(one.producer_id, one.current_transaction_start_offset) for one in mine] == [(told.producer_id, 0)]
        producer.abort_transaction(TIMEOUT_S)
        listed = admin.list_transactions(
            transactional_id_pattern=f"{name[:-3]}.*", state_filters=["CompleteAbort"]
        )
        assert [one.transactional_id for found in listed.values() for one in found] == [name]
        mine = admin.describe_producers([part])[part].active_producers
        assert [one.current_transaction_start_offset for one in mine] == [-1]
    finally:
        admin.close()
