"""Who may administer what: superusers the cluster, administrators of a tenant its topics, others nothing."""

import base64
import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

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
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """Tenant `acme` is administered by `boss`, and `clerk` may produce to its namespace `sales`."""
    process = UpProcess(tmp_path_factory.mktemp("guarded"), *SETTINGS).start()
    for method, path, body in (
        ("PUT", "tenants/acme", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}),
        ("PUT", "namespaces/acme/sales", None),
        ("POST", "namespaces/acme/sales/permissions/clerk", ["produce"]),
    ):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{process.http_url}/admin/v2/{path}", data, method=method)
        request.add_header("content-type", "application/json")
        request.add_header("authorization", f"Bearer {create_token(SECRET, 'root')}")
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
    yield process
    process.close()


@pytest.fixture
def as_role(up: UpProcess) -> Callable[[str], AdminClient]:
    def connect(role: str) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": up.kafka,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "any",
                "sasl.password": create_token(SECRET, role),
            }
        )

    return connect


def code(futures: dict[Any, Any]) -> int | None:
    """How the one thing that was asked for ended."""
    (future,) = futures.values()
    try:
        future.result(TIMEOUT_S)
    except KafkaException as failure:
        return int(failure.args[0].code())
    return None


def set_retention(topic: str) -> list[ConfigResource]:
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    return [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])]


def test_administrators_of_a_tenant_administer_its_topics_and_no_others(
    as_role: Callable[[str], AdminClient], topic: str
) -> None:
    boss, root = as_role("boss"), as_role("root")
    mine, others = f"acme..sales..{topic}", topic
    assert code(boss.create_topics([NewTopic(mine, 1, 1)])) is None
    assert code(boss.create_topics([NewTopic(others, 1, 1)])) == DENIED
    assert code(root.create_topics([NewTopic(others, 1, 1)])) is None
    assert code(boss.delete_records([TopicPartition(mine, 0, -1)])) is None
    for name, expected in ((mine, None), (others, DENIED)):
        assert code(boss.create_partitions([NewPartitions(name, 2)])) == expected
        assert code(boss.incremental_alter_configs(set_retention(name))) == expected
        assert code(boss.delete_topics([name])) == expected
    assert code(root.delete_topics([others])) is None


def test_those_who_may_only_produce_see_configs_and_change_nothing(
    as_role: Callable[[str], AdminClient], topic: str
) -> None:
    boss, clerk = as_role("boss"), as_role("clerk")
    name = f"acme..sales..{topic}"
    assert code(boss.create_topics([NewTopic(name, 1, 1)])) is None
    assert code(clerk.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)])) is None
    assert code(clerk.incremental_alter_configs(set_retention(name))) == DENIED
    assert code(clerk.create_topics([NewTopic(f"{name}-2", 1, 1)])) == DENIED
    assert code(clerk.delete_records([TopicPartition(name, 0, -1)])) == DENIED
    assert code(clerk.delete_topics([name])) == DENIED
    assert code(clerk.delete_topics([f"{name}-unknown"])) == DENIED  # whether there is one is not told
    assert code(as_role("guest").describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)])) == DENIED


def test_only_superusers_see_a_brokers_configs(as_role: Callable[[str], AdminClient]) -> None:
    broker = [ConfigResource(ConfigResource.Type.BROKER, "0")]
    assert code(as_role("root").describe_configs(broker)) is None
    assert code(as_role("boss").describe_configs(broker)) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
