"""From one Weir to another and back, by Kafka's protocol and Pulsar's own client: nothing twice or changed."""

from typing import Any

import pulsar
import pytest

from weir.client.admin import ask_v2

from .conftest import Weir

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]


def shown(weir: Weir, topic: str) -> list[tuple[Any, ...]]:
    return sorted(
        (one.partition, bytes(one.key or b""), bytes(one.value or b""), one.timestamp, tuple(one.headers))
        for _, one in weir.messages(topic)
    )


HEADERS = ((b"h", b"v"), (b"n", None))


def test_topics_of_another_kafka_come_with_keys_headers_times_and_partitions(
    weir: Weir, other: Weir, unique: str
) -> None:
    other.create(unique, 3)
    for partition in range(3):
        other.fill(unique, [(b"%d" % n, b"v%d" % n) for n in range(5)], partition, headers=HEADERS)
    servers = other.up.kafka
    said = {
        "source": {"type": "kafka", "bootstrap_servers": servers, "topics": [unique], "prefix": "b.", "batch": 4}
    }
    with weir.task(unique, said) as running:
        running.steps(2)
    assert 0 < len(weir.messages(f"b.{unique}")) < 15
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.messages(f"b.{unique}")) == 15)
        other.fill(unique, [(b"late", None)], 1)
        running.until(lambda: len(weir.messages(f"b.{unique}")) == 16)
        running.steps()
    assert shown(weir, f"b.{unique}") == shown(other, unique)


def test_topics_go_to_another_kafka_exactly_once_also_if_the_broker_here_was_not_told(
    weir: Weir, other: Weir, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir.create(unique, 2)
    for partition in range(2):
        weir.fill(unique, [(b"%d" % n, b"v%d" % n) for n in range(6)], partition, headers=HEADERS)
    sink = {"type": "kafka", "bootstrap_servers": other.up.kafka, "prefix": "a.", "batch": 4}
    said = {"topic": unique, "sink": sink}
    with weir.task(unique, said) as running:
        monkeypatch.setattr(running.task, "done", lambda piece: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            running.steps()
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.lag == 0)
        running.steps()
    assert shown(other, f"a.{unique}") == shown(weir, unique)


def test_topics_of_another_pulsar_come_once_with_keys_properties_and_times(
    weir: Weir, other: Weir, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pulsar.Client(other.up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(unique, batching_max_publish_delay_ms=5)
    for number in range(10):
        about = {
            "properties": {"p": str(number)},
            "partition_key": "k",
            "event_timestamp": 1_700_000_000_000 + number,
        }
        producer.send_async(b"v%d" % number, lambda *_: None, **about)
    producer.flush()
    said = {"source": {"type": "pulsar", "service_url": other.up.pulsar_url, "topics": [unique], "batch": 4}}
    with weir.task(unique, said) as running:
        running.steps(1)
        # Written here, and not acknowledged there.
        consumers = running.task._consumers  # type: ignore[attr-defined]
        for part, consumer in consumers.items():
            consumers[part] = _Deaf(consumer)
        with pytest.raises(OSError, match="killed"):
            running.steps()
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.messages(unique)) >= 10)
        running.steps(1)
    client.close()
    found = [one for _, one in weir.messages(unique)]
    assert [bytes(one.value or b"") for one in found] == [b"v%d" % number for number in range(10)]
    assert [dict(one.headers)[b"p"] for one in found] == [b"%d" % number for number in range(10)]
    assert {bytes(one.key or b"") for one in found} == {b"k"}
    assert [one.timestamp for one in found] == [1_700_000_000_000 + number for number in range(10)]


class _Deaf:
    """Dies before it acknowledges."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def receive(self, timeout_millis: int) -> Any:
        return self._consumer.receive(timeout_millis=timeout_millis)

    def acknowledge_cumulative(self, message: Any) -> None:
        raise OSError("killed")


def test_topics_go_to_another_pulsar_and_what_is_there_already_is_left_out(
    weir: Weir, other: Weir, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir.create(unique)
    weir.fill(unique, [(b"k", b"v%d" % number) for number in range(8)], headers=((b"h", b"v"),))
    ask_v2(other.place.access, "POST", "namespaces/public/default/deduplication", True)
    said = {"topic": unique, "sink": {"type": "pulsar", "service_url": other.up.pulsar_url, "batch": 4}}
    with weir.task(unique, said) as running:
        monkeypatch.setattr(running.task, "done", lambda piece: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            running.steps()
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.lag == 0)
    found = [one for _, one in other.messages(unique)]
    assert [bytes(one.value or b"") for one in found] == [b"v%d" % number for number in range(8)]
    assert {bytes(one.key or b"") for one in found} == {b"k"}
    assert {dict(one.headers).get(b"h") for one in found} == {b"v"}
