"""Consumer groups by confluent-kafka, aiokafka and kafka-python: shares, rebalances, positions, who sees them."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import aiokafka
import aiokafka.admin
import kafka
import kafka.admin
import pulsar
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.coordinator.assignors.range import RangePartitionAssignor

from weir.testing.processes.up import UpProcess

TIMEOUT_S = 90
#: What clients need to notice things fast.
QUICK = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 300_000,  # nobody is given up because the machine is slow
    "heartbeat.interval.ms": 200,
    "topic.metadata.refresh.interval.ms": 1000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait for something, however slow the machine is; not for ever."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)
    return found


def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result(TIMEOUT_S)


def produce(bootstrap: str, topic: str, partitions: int, values: range) -> None:
    """Each value into the partition that it is congruent to."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % partitions)
    assert producer.flush(TIMEOUT_S) == 0


@contextmanager
def consumer(bootstrap: str, group: str, **more: Any) -> Iterator[Consumer]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    made = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUICK, **named})
    try:
        yield made
    finally:
        made.close()


def value_of(message: Any) -> int:
    assert message.error() is None, message.error()
    return int(message.value())


def poll(member: Consumer) -> list[int]:
    message = member.poll(0.05)
    return [] if message is None else [value_of(message)]


def idle(*members: Consumer) -> bool:
    """Give members a turn, whatever they get; never true."""
    for member in members:
        poll(member)
    return False


#: A member has lost its place, and somebody else does again what it could not commit.
LOST = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._NO_OFFSET,
    KafkaError._ASSIGNMENT_LOST,
)


def commit(member: Consumer) -> list[TopicPartition]:
    """What could be committed."""
    try:
        return member.commit(asynchronous=False)
    except KafkaException as refused:
        if refused.args[0].code() not in LOST:
            raise
        return []


def shares(*members: Consumer) -> list[set[int]]:
    return [{one.partition for one in member.assignment()} for member in members]


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    with consumer(bootstrap, group) as asking:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        return {one.partition: one.offset for one in asking.committed(wanted, TIMEOUT_S)}


def kafka_python(bootstrap: str, group: str) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )


@pytest.mark.parametrize("offset", [-1, -2, -100])
def test_a_position_below_zero_is_kept_as_kafka_keeps_it_and_consumers_go_on(
    bootstrap: str, topic: str, offset: int
) -> None:
    """Clients take such a position for none: `auto.offset.reset` says where they begin."""
    create(bootstrap, topic, 1)
    produce(bootstrap, topic, 1, range(5))
    part = kafka.TopicPartition(topic, 0)
    for group in (topic, f"{topic}-other"):
        with closing(kafka_python(bootstrap, group)) as first:
            first.assign([part])
            first.commit({part: kafka.structs.OffsetAndMetadata(3, "", -1)})
            first.commit({part: kafka.structs.OffsetAndMetadata(offset, "", -1)})
    with closing(kafka_python(bootstrap, topic)) as second:
        second.subscribe([topic])
        assert [int(next(second).value) for _ in range(5)] == [0, 1, 2, 3, 4]
        second.commit()
        assert second.committed(part) == 5
    if offset < -2:
        return  # librdkafka asks again and again, Kafka's own brokers too
    with consumer(bootstrap, f"{topic}-other") as third:
        third.subscribe([topic])
        got: list[int] = []
        until(lambda: got.extend(poll(third)) or len(got) == 5)
        assert got == [0, 1, 2, 3, 4]


def rest(up: UpProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{up.http_url}{path}", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    return json.loads(text) if path.startswith("/admin") else text


def stats(up: UpProcess, topic: str) -> Any:
    return rest(up, f"/admin/v2/persistent/public/default/{topic}/partitioned-stats")


# --- shares, by each client ------------------------------------------------------------------------------------


def test_members_of_confluent_kafka_share_a_topic_and_the_next_goes_on_where_they_stopped(
    bootstrap: str, topic: str
) -> None:
    create(bootstrap, topic, 4)
    produce(bootstrap, topic, 4, range(40))
    got: list[int] = []
    with consumer(bootstrap, topic) as one, consumer(bootstrap, topic) as two:
        for member in (one, two):
            member.subscribe([topic])

        def both() -> bool:
            for member in (one, two):
                found = poll(member)
                got.extend(found)
                if found:
                    commit(member)
            return len(set(got)) == 40 and [len(share) for share in shares(one, two)] == [2, 2]

        until(lambda: both() and committed(bootstrap, topic, topic, 4) == dict.fromkeys(range(4), 10))
        first, second = shares(one, two)
        assert first | second == {0, 1, 2, 3}
    produce(bootstrap, topic, 4, range(40, 48))
    with consumer(bootstrap, topic) as three:
        three.subscribe([topic])
        after: list[int] = []
        until(lambda: after.extend(poll(three)) or len(after) >= 8)
        assert sorted(after) == list(range(40, 48))


class PythonMember(threading.Thread):
    """A member by kafka-python in a thread of its own: it asks to join anew with every poll that is too short for
    joining, so members cannot take turns in one thread."""

    def __init__(self, bootstrap: str, topic: str, *strategies: Any) -> None:
        super().__init__(daemon=True)
        more = {"partition_assignment_strategy": list(strategies)} if strategies else {}
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=QUICK["session.timeout.ms"],
            heartbeat_interval_ms=200,
            **more,
        )
        self._told = threading.Event()
        self.got: list[int] = []
        self.share: set[int] = set()
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._told.is_set():
                found = [int(r.value) for records in self._consumer.poll(1000).values() for r in records]
                self.got += found
                self.share = {part.partition for part in self._consumer.assignment()}
                if found:
                    with suppress(kafka.errors.CommitFailedError):  # another has it now, and does it again
                        self._consumer.commit()
        except BaseException as failure:
            self.failure = failure

    def close(self) -> None:
        self._told.set()
        self.join(TIMEOUT_S)
        self._consumer.close()
        assert self.failure is None, self.failure


def test_members_of_kafka_python_share_a_topic_and_the_next_goes_on_where_they_stopped(
    bootstrap: str, topic: str
) -> None:
    create(bootstrap, topic, 4)
    produce(bootstrap, topic, 4, range(40))
    one, two = PythonMember(bootstrap, topic), PythonMember(bootstrap, topic)
    try:
        until(lambda: len({*one.got, *two.got}) == 40 and len(one.share) == len(two.share) == 2)
        until(lambda: committed(bootstrap, topic, topic, 4) == dict.fromkeys(range(4), 10))
        assert one.share | two.share == {0, 1, 2, 3}
    finally:
        one.close()
        two.close()
    produce(bootstrap, topic, 4, range(40, 48))
    three = PythonMember(bootstrap, topic)
    try:
        until(lambda: len(three.got) >= 8)
        assert sorted(three.got) == list(range(40, 48))
    finally:
        three.close()


async def test_members_of_aiokafka_share_a_topic_and_the_next_goes_on_where_they_stopped(
    bootstrap: str, topic: str
) -> None:
    def member() -> Any:
        return aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=QUICK["session.timeout.ms"],
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1000,
        )

    async def polled(one: Any) -> list[int]:
        found = await one.getmany(timeout_ms=100)
        return [int(record.value) for records in found.values() for record in records]

    create(bootstrap, topic, 4)
    produce(bootstrap, topic, 4, range(40))
    got: list[int] = []
    one, two = member(), member()
    await asyncio.gather(one.start(), two.start())

    async def settled() -> bool:
        if len(set(got)) < 40 or len(one.assignment()) != 2 or len(two.assignment()) != 2:
            return False
        found = await asyncio.to_thread(committed, bootstrap, topic, topic, 4)
        return found == dict.fromkeys(range(4), 10)

    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await settled():
                for each in (one, two):
                    found = await polled(each)
                    got.extend(found)
                    if found:
                        with suppress(aiokafka.errors.CommitFailedError):
                            await each.commit()
        assert not one.assignment() & two.assignment()
    finally:
        await asyncio.gather(one.stop(), two.stop())
    produce(bootstrap, topic, 4, range(40, 48))
    three, after = member(), []
    await three.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while len(after) < 8:
                after += await polled(three)
        assert sorted(after) == list(range(40, 48))
    finally:
        await three.stop()


def test_members_of_different_clients_are_in_one_group(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 2)
    produce(bootstrap, topic, 2, range(10))
    got: list[int] = []
    with consumer(bootstrap, topic, partition_assignment_strategy="range") as one:
        one.subscribe([topic])
        other = PythonMember(bootstrap, topic, RangePartitionAssignor)
        try:
            until(
                lambda: (
                    got.extend(poll(one))
                    or (len({*got, *other.got}) == 10 and len(one.assignment()) == len(other.share) == 1)
                )
            )
        finally:
            other.close()


# --- rebalances under load -------------------------------------------------------------------------------------


class Diary:
    """What members did, in the order in which they knew it: nothing that was committed may be seen again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seen: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self.again: list[tuple[int, int]] = []

    def took(self, messages: list[Any]) -> None:
        with self._lock:
            for message in messages:
                if message.offset() < self._positions.get(message.partition(), 0):
                    self.again.append((message.partition(), message.offset()))
                value = value_of(message)
                self.seen[value] = self.seen.get(value, 0) + 1

    def committed(self, positions: list[TopicPartition]) -> None:
        with self._lock:
            for one in positions:
                assert one.error is None, one.error
                if one.offset >= 0:
                    self._positions[one.partition] = max(one.offset, self._positions.get(one.partition, 0))


class Worker(threading.Thread):
    """A member that processes a little, commits, and goes on until it is told to leave."""

    def __init__(self, bootstrap: str, topic: str, diary: Diary, strategy: str) -> None:
        super().__init__()
        self._made = (bootstrap, topic, diary, strategy)
        self._told = threading.Event()
        self.failure: BaseException | None = None
        self.start()

    def leave(self) -> None:
        self._told.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure

    def run(self) -> None:
        bootstrap, topic, diary, strategy = self._made
        try:
            with consumer(bootstrap, topic, partition_assignment_strategy=strategy) as member:
                member.subscribe([topic])
                while not self._told.is_set():
                    messages = member.consume(20, 0.05)
                    diary.took(messages)
                    if messages:
                        diary.committed(commit(member))
        except BaseException as failure:
            self.failure = failure


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_members_come_and_go_under_load_and_nothing_is_lost_nor_done_again_once_committed(
    bootstrap: str, topic: str, strategy: str
) -> None:
    create(bootstrap, topic, 4)
    diary = Diary()
    workers = [Worker(bootstrap, topic, diary, strategy)]
    total = 0
    try:
        for step in range(6):
            produce(bootstrap, topic, 4, range(total, total + 200))
            total += 200
            if step in (0, 1, 3):
                workers.append(Worker(bootstrap, topic, diary, strategy))
            elif step in (2, 4):
                workers.pop(0).leave()
            done = total - 100
            until(lambda done=done: len(diary.seen) >= done, "the members work")
        until(lambda: len(diary.seen) == 1200, "all is seen")
    finally:
        for worker in workers:
            worker.leave()
    assert sorted(diary.seen) == list(range(total))
    assert diary.again == []
    assert committed(bootstrap, topic, topic, 4) == dict.fromkeys(range(4), total // 4)


def test_a_cooperative_member_keeps_what_it_need_not_give_away(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 4)
    revoked: list[set[int]] = []
    cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
    with consumer(bootstrap, topic, **cooperative) as one, consumer(bootstrap, topic, **cooperative) as two:
        one.subscribe([topic], on_revoke=lambda _, parts: revoked.append({part.partition for part in parts}))
        until(lambda: idle(one) or len(one.assignment()) == 4)
        two.subscribe([topic])
        until(lambda: idle(one, two) or [len(share) for share in shares(one, two)] == [2, 2])
        kept, given = shares(one, two)
    assert revoked[0] == given
    assert not kept & given


# --- static members --------------------------------------------------------------------------------------------


def generation(up: UpProcess, topic: str) -> set[str]:
    """As stats tell it of each member; a group shows where it has committed."""
    found = stats(up, topic)["subscriptions"].get(topic, {}).get("consumers", [])
    return {member["metadata"]["weir.generation"] for member in found}


def test_a_static_member_restarts_and_has_its_share_again_while_nobody_else_notices(
    weir: UpProcess, topic: str
) -> None:
    bootstrap = weir.kafka
    create(bootstrap, topic, 2)
    produce(bootstrap, topic, 2, range(4))
    revoked: list[Any] = []
    with consumer(bootstrap, topic, group_instance_id="b") as b:
        b.subscribe([topic], on_revoke=lambda _, parts: revoked.extend(parts))
        with consumer(bootstrap, topic, group_instance_id="a") as a:
            a.subscribe([topic])
            until(lambda: idle(a, b) or [len(share) for share in shares(a, b)] == [1, 1])
            share = shares(a)[0]
            a.commit(offsets=[TopicPartition(topic, index, 1) for index in share], asynchronous=False)
        (before,) = generation(weir, topic)
        revoked.clear()
        with consumer(bootstrap, topic, group_instance_id="a") as back:
            back.subscribe([topic])
            until(lambda: idle(back, b) or shares(back)[0] == share)
            for _ in range(10):  # some heartbeats
                poll(b)
            assert generation(weir, topic) == {before}
            assert revoked == []
            assert len(b.assignment()) == 1


def test_a_second_static_member_of_the_same_name_fences_the_first(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 1)
    with consumer(bootstrap, topic, group_instance_id="only") as first:
        first.subscribe([topic])
        until(lambda: idle(first) or first.assignment())
        with consumer(bootstrap, topic, group_instance_id="only") as second:
            second.subscribe([topic])
            until(lambda: idle(second) or second.assignment())

            def fenced() -> bool:
                message = first.poll(0.05)
                return message is not None and message.error().code() == KafkaError._FATAL

            until(fenced, "the first is fenced")


# --- restarts --------------------------------------------------------------------------------------------------


def test_positions_and_members_survive_a_crash_of_the_broker(
    start_weir: Callable[..., UpProcess], topic: str
) -> None:
    up = start_weir()
    create(up.kafka, topic, 2)
    produce(up.kafka, topic, 2, range(20))
    with consumer(up.kafka, topic) as member:
        member.subscribe([topic])
        got: list[int] = []
        until(lambda: got.extend(poll(member)) or len(got) == 20)
        member.commit(asynchronous=False)
        before = generation(up, topic)
        up.kill()
        up.start()
        assert committed(up.kafka, topic, topic, 2) == {0: 10, 1: 10}
        produce(up.kafka, topic, 2, range(20, 30))

        def on() -> bool:
            message = member.poll(0.05)  # that the broker was away is no failure
            if message is not None and message.error() is None:
                got.append(value_of(message))
            return len(got) >= 30

        until(on)
        assert sorted(got) == list(range(30))
        member.commit(asynchronous=False)
        assert generation(up, topic) == before
    assert committed(up.kafka, topic, topic, 2) == {0: 15, 1: 15}


# --- what others see -------------------------------------------------------------------------------------------


def listing(up: UpProcess, topic: str, *options: str) -> str:
    """What `weir subscriptions list` says."""
    command = [sys.executable, "-m", "weir.cli.main", "subscriptions", "list", topic, "--url", up.http_url]
    wide = {**os.environ, "COLUMNS": "300"}
    return subprocess.run([*command, *options], capture_output=True, text=True, check=True, env=wide).stdout


def test_a_group_shows_in_the_command_line_in_rest_and_in_metrics(weir: UpProcess, topic: str) -> None:
    bootstrap = weir.kafka
    create(bootstrap, topic, 2)
    produce(bootstrap, topic, 2, range(10))
    with consumer(bootstrap, topic, client_id="watched") as member:
        member.subscribe([topic])
        until(lambda: idle(member) or len(member.assignment()) == 2)
        member.commit(offsets=[TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 5)], asynchronous=False)

        listed = listing(weir, topic, "--json")
        for told in (json.loads(listed)[topic], stats(weir, topic)["subscriptions"][topic]):
            assert told["msgBacklog"] == 3
            assert told["subscriptionProperties"] == {"weir.retains": "false"}
            (seen,) = told["consumers"]
            assert seen["consumerName"].startswith("watched-")
            assert seen["metadata"]["weir.client_id"] == "watched"
        parts = json.loads(listed)[topic]["partitions"]
        full = f"persistent://public/default/{topic}-partition-"
        assert {name: (one["position"], one["msgBacklog"]) for name, one in parts.items()} == {
            f"{full}0": (2, 3),
            f"{full}1": (5, 0),
        }
        metrics = rest(weir, "/metrics")
        for index, position, lag in ((0, 2, 3), (1, 5, 0)):
            label = f'{{topic="{full}{index}",subscription="{topic}"}}'
            assert f"weir_subscription_position{label} {position}\n" in metrics
            assert f"weir_subscription_backlog_messages{label} {lag}\n" in metrics
            assert f"weir_subscription_consumers{label} 1\n" in metrics
    until(lambda: stats(weir, topic)["subscriptions"][topic]["consumers"] == [])


def test_a_group_that_has_committed_nothing_shows_with_its_members(weir: UpProcess, topic: str) -> None:
    bootstrap = weir.kafka
    create(bootstrap, topic, 2)
    produce(bootstrap, topic, 2, range(10))
    full = f"persistent://public/default/{topic}-partition-"
    with consumer(bootstrap, topic, client_id="silent") as member:
        member.subscribe([topic])
        until(lambda: idle(member) or len(member.assignment()) == 2)

        told = json.loads(listing(weir, topic, "--json"))[topic]
        (seen,) = told["consumers"]
        assert seen["metadata"]["weir.client_id"] == "silent"
        assert {name: part["position"] for name, part in told["partitions"].items()} == {
            f"{full}0": None,
            f"{full}1": None,
        }
        lines = listing(weir, topic, "--partitions").splitlines()
        assert sum("silent-" in line and topic in line for line in lines) == 2
        assert stats(weir, topic)["subscriptions"][topic]["consumers"] == [seen]
        assert rest(weir, f"/admin/v2/persistent/public/default/{topic}/subscriptions") == [topic]
        metrics = rest(weir, "/metrics")
        for index in (0, 1):
            label = f'{{topic="{full}{index}",subscription="{topic}"}}'
            assert f"weir_subscription_consumers{label} 1\n" in metrics
            # How far it is, only the member knows.
            assert f"weir_subscription_position{label}" not in metrics
            assert f"weir_subscription_backlog_messages{label}" not in metrics
    until(lambda: topic not in stats(weir, topic)["subscriptions"])


def test_a_pulsar_consumer_goes_on_where_the_group_is_and_the_group_where_that_one_stopped(
    weir: UpProcess, topic: str
) -> None:
    bootstrap = weir.kafka
    create(bootstrap, topic, 1)
    produce(bootstrap, topic, 1, range(10))
    with consumer(bootstrap, topic) as member:
        member.subscribe([topic])
        got: list[int] = []
        until(lambda: got.extend(poll(member)) or len(got) == 10)
        member.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    client = pulsar.Client(weir.pulsar_url)
    try:
        other = client.subscribe(topic, topic, pulsar.ConsumerType.Exclusive, batch_index_ack_enabled=True)
        messages = [other.receive(TIMEOUT_S * 1000) for _ in range(3)]
        assert [int(message.data()) for message in messages] == [4, 5, 6]
        for message in messages:
            other.acknowledge(message)
        other.close()
    finally:
        client.close()
    until(lambda: committed(bootstrap, topic, topic, 1) == {0: 7}, "what Pulsar acknowledged counts")
    with consumer(bootstrap, topic) as member:
        member.subscribe([topic])
        after: list[int] = []
        until(lambda: after.extend(poll(member)) or len(after) == 3)
        assert after == [7, 8, 9]


# --- administration --------------------------------------------------------------------------------------------


def test_groups_are_administered_by_confluent_kafka(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 2)
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def listed(**more: Any) -> dict[str, Any]:
        found = admin.list_consumer_groups(**more).result(TIMEOUT_S)
        assert found.errors == []
        return {group.group_id: group.state for group in found.valid}

    def positions() -> dict[int, int]:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])
        return {one.partition: one.offset for one in asked[topic].result(TIMEOUT_S).topic_partitions}

    def altered(**offsets: int) -> Any:
        wanted = [TopicPartition(topic, int(name[1:]), offset) for name, offset in offsets.items()]
        return admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(topic, wanted)])[topic].result(
            TIMEOUT_S
        )

    with consumer(bootstrap, topic, client_id="mine") as member:
        member.subscribe([topic])
        until(lambda: idle(member) or len(member.assignment()) == 2)
        assert listed()[topic] == ConsumerGroupState.STABLE
        assert topic not in listed(states={ConsumerGroupState.EMPTY})
        told = admin.describe_consumer_groups([topic], include_authorized_operations=True)[topic].result(TIMEOUT_S)
        (described,) = told.members
        assert (told.state, described.client_id) == (ConsumerGroupState.STABLE, "mine")
        assert {one.partition for one in described.assignment.topic_partitions} == {0, 1}
        with pytest.raises(KafkaException):
            admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
        refused = altered(_0=3)
        assert refused.topic_partitions[0].error.code() == KafkaError.UNKNOWN_MEMBER_ID
    until(lambda: listed()[topic] == ConsumerGroupState.EMPTY)
    altered(_0=3, _1=4)
    assert positions() == {0: 3, 1: 4}
    altered(_0=1)
    assert positions() == {0: 1, 1: 4}
    admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert topic not in listed()
    assert positions() == {}


def test_groups_are_administered_by_kafka_python(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 2)
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    parts = [kafka.TopicPartition(topic, index) for index in range(2)]
    try:
        at = {part: kafka.OffsetAndMetadata(5 + part.partition, "by hand", -1) for part in parts}
        admin.alter_group_offsets(topic, at)
        found = admin.list_group_offsets({topic: None})[topic]
        assert {part: (one.offset, one.metadata) for part, one in found.items()} == {
            parts[0]: (5, "by hand"),
            parts[1]: (6, "by hand"),
        }
        admin.delete_group_offsets(topic, parts[:1])
        assert list(admin.list_group_offsets({topic: None})[topic]) == parts[1:]
        assert topic in {group["group_id"] for group in admin.list_groups()}
        assert admin.describe_groups([topic])[topic]["group_state"] == "Empty"
        admin.delete_groups([topic])
        assert topic not in {group["group_id"] for group in admin.list_groups()}
    finally:
        admin.close()


async def test_groups_are_seen_by_aiokafka(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 1)
    part = aiokafka.TopicPartition(topic, 0)
    member = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        enable_auto_commit=False,
        session_timeout_ms=QUICK["session.timeout.ms"],
    )
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await asyncio.gather(member.start(), admin.start())
    try:
        await member.commit({part: aiokafka.structs.OffsetAndMetadata(7, "mine")})
        assert (await admin.list_consumer_group_offsets(topic))[part].offset == 7
        assert (topic, "consumer") in [tuple(group[:2]) for group in await admin.list_consumer_groups()]
        (told,) = (await admin.describe_consumer_groups([topic]))[0].groups
        assert (told[1], told[2]) == (topic, "Stable")
    finally:
        await asyncio.gather(member.stop(), admin.close())
