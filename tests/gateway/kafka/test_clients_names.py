"""Kafka's own clients with tokens: no stranger takes, sees, empties or locks a group or a transactional id."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from weir.broker.security.tokens import create_secret, create_token
from weir.testing.processes.up import UpProcess

TIMEOUT_S = 60
SECRET = create_secret()
SETTINGS = (
    "auth.authenticate=true",
    "auth.authorise=true",
    "auth.superusers=root",
    f"auth.token_secret=data:;base64,{base64.b64encode(SECRET).decode()}",
)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """Tenant `acme`, where `ann` may do everything with the topics of `sales`; `neighbour` may so in `public`."""
    process = UpProcess(tmp_path_factory.mktemp("guarded"), *SETTINGS).start()
    for method, path, body in (
        ("PUT", "tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]}),
        ("PUT", "namespaces/acme/sales", None),
        ("POST", "namespaces/acme/sales/permissions/ann", ["produce", "consume"]),
        ("POST", "namespaces/public/default/permissions/neighbour", ["produce", "consume"]),
    ):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{process.http_url}/admin/v2/{path}", data, method=method)
        request.add_header("content-type", "application/json")
        request.add_header("authorization", f"Bearer {create_token(SECRET, 'root')}")
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
    yield process
    process.close()


def confluent(up: UpProcess, role: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": up.kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "any",
        "sasl.password": create_token(SECRET, role),
        **more,
    }


def plain(up: UpProcess, role: str, **more: Any) -> dict[str, Any]:
    """For aiokafka and kafka-python."""
    return {
        "bootstrap_servers": up.kafka,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "any",
        "sasl_plain_password": create_token(SECRET, role),
        **more,
    }


def code(future: Any) -> int | None:
    try:
        future.result(TIMEOUT_S)
    except KafkaException as failure:
        return int(failure.args[0].code())
    return None


@pytest.fixture
def orders(topic: str) -> str:
    return f"acme..sales..{topic}"


def test_a_group_in_use_is_nobody_elses(
    up: UpProcess, orders: str, until: Callable[[Callable[[], Any]], None]
) -> None:
    group = f"group-of-{orders}"
    producer = confluent_kafka.Producer(confluent(up, "ann"))
    producer.produce(orders, b"x")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent_kafka.Consumer(
        confluent(up, "ann", **{"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    )
    consumer.subscribe([orders])
    got: list[Any] = []
    until(lambda: got.extend(m for m in [consumer.poll(0.1)] if m is not None and m.error() is None) or got)

    stranger = AdminClient(confluent(up, "stranger"))
    refused = KafkaError.GROUP_AUTHORIZATION_FAILED
    (described,) = stranger.describe_consumer_groups([group]).values()
    assert code(described) == refused
    (deleted,) = stranger.delete_consumer_groups([group]).values()
    assert code(deleted) == refused
    assert [one.group_id for one in stranger.list_consumer_groups().result(TIMEOUT_S).valid] == []

    neighbour = AdminClient(confluent(up, "neighbour"))
    listed = neighbour.list_consumer_groups().result(TIMEOUT_S).valid
    assert group not in [one.group_id for one in listed]
    (deleted,) = neighbour.delete_consumer_groups([group]).values()
    assert code(deleted) == KafkaError.GROUP_ID_NOT_FOUND

    consumer.commit(asynchronous=False)
    mine = AdminClient(confluent(up, "ann"))
    (described,) = mine.describe_consumer_groups([group]).values()
    assert len(described.result(TIMEOUT_S).members) == 1
    superuser = AdminClient(confluent(up, "root"))
    assert f"acme/{group}" in [one.group_id for one in superuser.list_consumer_groups().result(TIMEOUT_S).valid]
    consumer.close()


def test_a_stranger_makes_no_groups_with_any_client(
    up: UpProcess, orders: str, until: Callable[[Callable[[], Any]], None]
) -> None:
    rdkafka = confluent_kafka.Consumer(confluent(up, "stranger", **{"group.id": f"s-{orders}"}))
    rdkafka.subscribe([orders])
    told: list[int] = []
    until(lambda: told.extend(m.error().code() for m in [rdkafka.poll(0.1)] if m is not None) or told)
    assert told[0] in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    rdkafka.close()

    async def join() -> None:
        consumer = aiokafka.AIOKafkaConsumer(**plain(up, "stranger", group_id=f"s-{orders}"))
        try:
            await consumer.start()
            await consumer.committed(aiokafka.TopicPartition(orders, 0))
        finally:
            await consumer.stop()

    with pytest.raises(aiokafka.errors.GroupAuthorizationFailedError):
        asyncio.run(join())
    python = kafka.KafkaConsumer(**plain(up, "stranger", group_id=f"s-{orders}"))
    with pytest.raises(kafka.errors.GroupAuthorizationFailedError):
        python.committed(kafka.TopicPartition(orders, 0))
    python.close()


def test_a_transactional_id_taken_first_by_others_is_its_owners_all_the_same(up: UpProcess, orders: str) -> None:
    name = f"tx-{orders}"
    stranger = confluent_kafka.Producer(confluent(up, "stranger", **{"transactional.id": name}))
    with pytest.raises(KafkaException) as refused:
        stranger.init_transactions(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    neighbour = confluent_kafka.Producer(confluent(up, "neighbour", **{"transactional.id": name}))
    neighbour.init_transactions(TIMEOUT_S)
    ann = confluent_kafka.Producer(confluent(up, "ann", **{"transactional.id": name}))
    ann.init_transactions(TIMEOUT_S)
    for producer, topic in ((ann, orders), (neighbour, orders.rpartition("..")[2])):
        producer.begin_transaction()
        producer.produce(topic, b"x")
    for producer in (neighbour, ann):  # neither has fenced the other
        producer.commit_transaction(TIMEOUT_S)
