"""Kafka's consumer groups in the console."""

from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.admin.conftest import Weir
from tests.console.conftest import Visitor


@pytest.fixture(scope="module")
def weir(start_weir: Callable[..., Weir]) -> Weir:
    return start_weir("listeners.kafka=127.0.0.1:0")


def test_a_kafka_group_shows_members_lag_and_is_reset_when_it_rests(
    visitor: Visitor, weir: Weir, unique: str
) -> None:
    server = str(weir.up.addresses["kafka"])
    producer = KafkaProducer(bootstrap_servers=server)
    for number in range(6):
        producer.send(unique, str(number).encode()).get(60)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=server, group_id=f"g-{unique}", enable_auto_commit=False)
    consumer.assign([TopicPartition(unique, 0)])
    consumer.seek_to_beginning()
    while not consumer.poll(1000):
        pass
    consumer.commit()
    assert "kafka" in visitor.get("/console/connections").words.lower()
    consumer.close()
    group = f"g-{unique}"
    assert group in visitor.get(f"/console/groups?q={unique}").words
    url = f"/console/groups/{group}"
    page = visitor.get(url)
    assert "0 behind in all" in page.words
    moved = visitor.post(f"{url}/reset", to="start", back=url)
    assert f"{group} is reset on 1 partitions." in moved.words
    assert visitor.get(url).words.count("Lag by partition") == 1
    at = visitor.post(f"{url}/reset", to="offset", value="2", back=url)
    assert "is reset" in at.words
    assert weir.do("GET", f"/admin/weir/v1/groups/{group}")["positions"][0]["offset"] == 2
    refused = visitor.post(f"{url}/reset", to="offset", value="two", back=url)
    assert "is not an offset" in refused.words
    assert visitor.get("/console/groups/none").status == 404
