"""Topic administration, by the admin clients of confluent-kafka, aiokafka and kafka-python, and bare requests."""

import asyncio
import json
import socket
import struct
import urllib.request
from typing import Any

import aiokafka.admin
import kafka.admin
import kafka.errors
import pytest
from aiokafka.errors import TopicAlreadyExistsError as AiokafkaTopicAlreadyExistsError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from weir.gateway.kafka.api_table import HANDLERS, load_handlers
from weir.gateway.kafka.errors import Code
from weir.testing.processes.up import UpProcess
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.frames import RequestHeader, decode_response_header, request_frame

TIMEOUT_S = 60
TOPIC = ConfigResource.Type.TOPIC
BROKER = ConfigResource.Type.BROKER
load_handlers()


@pytest.fixture(scope="module")
def up(weir: UpProcess) -> UpProcess:
    return weir


@pytest.fixture(scope="module")
def admin(up: UpProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": up.kafka})


def done(futures: dict[Any, Any]) -> dict[Any, Any]:
    """Every result; the first failure is raised."""
    return {key: future.result(TIMEOUT_S) for key, future in futures.items()}


def refused(futures: dict[Any, Any]) -> KafkaError:
    """The one failure."""
    with pytest.raises(KafkaException) as caught:
        done(futures)
    error: KafkaError = caught.value.args[0]
    return error


def configs(admin: AdminClient, name: str, kind: Any = TOPIC) -> dict[str, ConfigEntry]:
    return next(iter(done(admin.describe_configs([ConfigResource(kind, name)])).values()))


def alter(
    admin: AdminClient, name: str, *changes: tuple[str, str | None, Any], kind: Any = TOPIC
) -> dict[Any, Any]:
    entries = [ConfigEntry(key, value, incremental_operation=op) for key, value, op in changes]
    return admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)])


def partitions(admin: AdminClient, name: str) -> int:
    found = admin.list_topics(timeout=TIMEOUT_S).topics.get(name)
    return 0 if found is None else len(found.partitions)


def ask(up: UpProcess, request: Any, key: ApiKey, version: int | None = None) -> Any:
    """One bare request, and its answer."""
    version = HANDLERS[key].last if version is None else version
    host, port = up.kafka.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as connection,
        connection.makefile("rb") as answers,
    ):
        header = RequestHeader(key, version, 7, "test")
        connection.sendall(b"".join(bytes(piece) for piece in request_frame(header, request)))
        (size,) = struct.unpack(">i", answers.read(4))
        told, body = decode_response_header(key, version, answers.read(size))
    assert told.correlation_id == 7
    return codec.decode_response(key, version, body)


def rest(up: UpProcess, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{up.http_url}/admin/v2/{path}", data, method=method)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


# --- creating, growing and deleting, by each client -----------------------------------------------------------


def test_confluent_kafka_creates_grows_and_deletes_topics(admin: AdminClient, topic: str) -> None:
    other = f"{topic}-2"
    done(admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "1234567"}), NewTopic(other)]))
    assert (partitions(admin, topic), partitions(admin, other)) == (3, 1)
    assert configs(admin, topic)["retention.ms"].value == "1234567"
    error = refused(admin.create_topics([NewTopic(topic, 1, 1)]))
    assert error.code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert "already exists" in error.str()
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    assert partitions(admin, topic) == 5
    done(admin.delete_topics([topic, other]))
    assert (partitions(admin, topic), partitions(admin, other)) == (0, 0)
    error = refused(admin.delete_topics([topic]))
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_kafka_python_creates_grows_configures_and_deletes_topics(up: UpProcess, topic: str) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=up.kafka)
    try:
        client.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            client.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
        client.create_partitions({topic: 3})
        (described,) = client.describe_topics([topic])
        assert len(described["partitions"]) == 3
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, topic, {"retention.ms": "77000"}
        )
        client.alter_configs([resource])
        assert "77000" in str(client.describe_configs([resource]))
        assert len(client.describe_cluster()["cluster_id"]) == 22
        client.delete_topics([topic])
        assert topic not in client.list_topics()
    finally:
        client.close()


def test_aiokafka_creates_grows_configures_and_deletes_topics(up: UpProcess, topic: str) -> None:
    async def main() -> None:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=up.kafka)
        await client.start()
        try:
            made = await client.create_topics([aiokafka.admin.NewTopic(topic, 2, 1)])
            assert [error[1] for error in made.topic_errors] == [0]
            with pytest.raises(AiokafkaTopicAlreadyExistsError):
                await _raising(client.create_topics([aiokafka.admin.NewTopic(topic, 2, 1)]))
            await client.create_partitions({topic: aiokafka.admin.NewPartitions(3)})
            (described,) = await client.describe_topics([topic])
            assert len(described["partitions"]) == 3
            resource = aiokafka.admin.config_resource.ConfigResource(
                aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic, {"retention.ms": "88000"}
            )
            await client.alter_configs([resource])
            assert "88000" in str(await client.describe_configs([resource]))
            await client.delete_topics([topic])
            assert topic not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(main())


async def _raising(creating: Any) -> None:
    for _, code, *_ in (await creating).topic_errors:
        error = aiokafka.errors.for_code(code)
        if error is not aiokafka.errors.NoError:
            raise error


# --- creating -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a b", "ü", "x" * 250, "a/b", "a/b/c/d", "../x/y", "a/b/..", "a*", "x\x00y"]
)
def test_an_illegal_name_is_refused_and_nothing_is_made(up: UpProcess, name: str) -> None:
    creatable = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    before = ask(up, m.MetadataRequest(topics=None), ApiKey.METADATA, 12)
    (result,) = ask(up, m.CreateTopicsRequest(topics=[creatable], timeout_ms=9000), ApiKey.CREATE_TOPICS).topics
    assert result.error_code == Code.INVALID_TOPIC_EXCEPTION
    assert result.name == name
    after = ask(up, m.MetadataRequest(topics=None), ApiKey.METADATA, 12)
    assert [t.name for t in after.topics] == [t.name for t in before.topics]


def test_the_longest_and_the_oddest_legal_names_are_taken(admin: AdminClient) -> None:
    names = ["x" * 249, "...", "a.b_c-D9", "x..y"]
    done(admin.create_topics([NewTopic(name, 1, 1) for name in names]))
    listed = admin.list_topics(timeout=TIMEOUT_S).topics
    assert all(name in listed for name in names)
    done(admin.delete_topics(names))


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"num_partitions": 0}, Code.INVALID_PARTITIONS, "larger than 0"),
        ({"num_partitions": -2}, Code.INVALID_PARTITIONS, "larger than 0"),
        ({"num_partitions": 10_001}, Code.INVALID_PARTITIONS, "10000"),
        ({"replication_factor": 0}, Code.INVALID_REPLICATION_FACTOR, "larger than 0"),
        ({"replication_factor": 3}, Code.INVALID_REPLICATION_FACTOR, "because only 1 broker(s) are registered"),
        ({"configs": {"retention.msec": "1"}}, Code.INVALID_CONFIG, "did you mean retention.ms?"),
        ({"configs": {"retention.ms": "soon"}}, Code.INVALID_CONFIG, "retention.ms"),
        ({"configs": {"retention.ms": None}}, Code.INVALID_CONFIG, "retention.ms"),
        ({"assignments": {0: [0]}}, Code.INVALID_REQUEST, "both"),
        ({"num_partitions": -1, "assignments": {0: [0]}}, Code.INVALID_REQUEST, "both"),
        (
            {"num_partitions": -1, "replication_factor": -1, "assignments": {0: [0], 2: [0]}},
            Code.INVALID_REPLICA_ASSIGNMENT,
            "without gaps",
        ),
        (
            {"num_partitions": -1, "replication_factor": -1, "assignments": {0: [5]}},
            Code.INVALID_REPLICA_ASSIGNMENT,
            "the brokers are",
        ),
        (
            {"num_partitions": -1, "replication_factor": -1, "assignments": {0: []}},
            Code.INVALID_REPLICA_ASSIGNMENT,
            "cannot be on brokers []",
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_what_makes_no_sense_is_refused_by_name_and_code(
    up: UpProcess, topic: str, changes: dict[str, Any], code: Code, words: str, validate_only: bool
) -> None:
    (result,) = create(up, creatable(topic, **changes), validate_only=validate_only)
    assert result.error_code == code
    assert words in result.error_message
    assert not exists(up, topic)


def creatable(name: str, **changes: Any) -> m.CreateTopicsRequest.CreatableTopic:
    kind = m.CreateTopicsRequest
    found = kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    found.configs = [
        kind.CreatableTopicConfig(name=key, value=value) for key, value in changes.pop("configs", {}).items()
    ]
    found.assignments = [
        kind.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in changes.pop("assignments", {}).items()
    ]
    for field, value in changes.items():
        setattr(found, field, value)
    return found


def create(up: UpProcess, *topics: Any, version: int = 7, **fields: Any) -> list[Any]:
    request = m.CreateTopicsRequest(topics=list(topics), timeout_ms=30_000, **fields)
    found: list[Any] = ask(up, request, ApiKey.CREATE_TOPICS, version).topics
    return found


def exists(up: UpProcess, name: str) -> bool:
    wanted = [m.MetadataRequest.MetadataRequestTopic(name=name)]
    request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    (found,) = ask(up, request, ApiKey.METADATA, 12).topics
    return bool(found.error_code == Code.NONE)


def test_one_bad_topic_of_a_request_does_not_keep_the_others_from_being_made(up: UpProcess, topic: str) -> None:
    good, twice = creatable(topic), creatable(f"{topic}-twice")
    results = create(up, good, creatable("bad name"), twice, twice)
    codes = [result.error_code for result in results]
    assert codes == [Code.NONE, Code.INVALID_TOPIC_EXCEPTION, Code.INVALID_REQUEST]  # one answer for each name
    assert (exists(up, topic), exists(up, f"{topic}-twice")) == (True, False)


def test_validating_checks_everything_and_makes_nothing(up: UpProcess, topic: str) -> None:
    (result,) = create(up, creatable(topic, num_partitions=4), validate_only=True)
    assert (result.error_code, result.num_partitions) == (Code.NONE, 4)
    assert not exists(up, topic)
    create(up, creatable(topic))
    (result,) = create(up, creatable(topic), validate_only=True)
    assert result.error_code == Code.TOPIC_ALREADY_EXISTS


def test_a_topic_is_made_by_an_assignment_or_by_defaults_and_says_what_it_has(up: UpProcess, topic: str) -> None:
    unsaid = {"num_partitions": -1, "replication_factor": -1}
    named = [
        creatable(topic, assignments={1: [0], 0: [0]}, **unsaid),
        creatable(f"{topic}-default", configs={"cleanup.policy": "compact"}, **unsaid),
    ]
    assigned, default = create(up, *named)
    assert (assigned.num_partitions, default.num_partitions, default.replication_factor) == (2, 1, 1)
    values = {config.name: (config.value, config.config_source) for config in default.configs}
    assert values["cleanup.policy"] == ("compact", 1)
    assert values["retention.ms"] == ("604800000", 5)
    (known,) = ask(up, m.MetadataRequest(topics=[_named(topic)]), ApiKey.METADATA, 12).topics
    assert known.topic_id == assigned.topic_id != bytes(16)


def _named(name: str) -> m.MetadataRequest.MetadataRequestTopic:
    return m.MetadataRequest.MetadataRequestTopic(name=name)


@pytest.mark.parametrize(
    "version", range(HANDLERS[ApiKey.CREATE_TOPICS].first, HANDLERS[ApiKey.CREATE_TOPICS].last)
)
def test_older_versions_create_and_delete_too(up: UpProcess, topic: str, version: int) -> None:
    (result,) = create(up, creatable(topic), version=version)
    assert result.error_code == Code.NONE
    older = min(version, HANDLERS[ApiKey.DELETE_TOPICS].last - 1)
    request = m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000)
    (gone,) = ask(up, request, ApiKey.DELETE_TOPICS, older).responses
    assert (gone.name, gone.error_code, exists(up, topic)) == (topic, Code.NONE, False)


def test_topics_of_other_namespaces_get_their_namespaces_number_of_partitions(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    rest(up, "PUT", f"tenants/{topic}", {"allowedClusters": ["standalone"]})
    rest(up, "PUT", f"namespaces/{topic}/sales")
    creation = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    rest(up, "POST", f"namespaces/{topic}/sales/autoTopicCreation", creation)
    name = f"{topic}..sales..orders"
    done(admin.create_topics([NewTopic(name, -1, -1)]))
    assert partitions(admin, name) == 3
    assert rest(up, "GET", f"persistent/{topic}/sales/partitioned") == [f"persistent://{topic}/sales/orders"]
    error = refused(admin.create_topics([NewTopic(f"{topic}..nowhere..orders", 1, 1)]))
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    error = refused(admin.create_topics([NewTopic("weir..system..mine", 1, 1)]))
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


# --- deleting -------------------------------------------------------------------------------------------------


def test_a_topic_is_deleted_by_its_id_and_only_the_one_that_has_it(up: UpProcess, topic: str) -> None:
    (made,) = create(up, creatable(topic))
    state = m.DeleteTopicsRequest.DeleteTopicState
    both = m.DeleteTopicsRequest(topics=[state(name=topic, topic_id=made.topic_id)], timeout_ms=30_000)
    assert ask(up, both, ApiKey.DELETE_TOPICS).responses[0].error_code == Code.INVALID_REQUEST
    by_id = m.DeleteTopicsRequest(topics=[state(name=None, topic_id=made.topic_id)], timeout_ms=30_000)
    (gone,) = ask(up, by_id, ApiKey.DELETE_TOPICS).responses
    assert (gone.error_code, gone.name, gone.topic_id) == (Code.NONE, topic, made.topic_id)
    (again,) = create(up, creatable(topic))
    assert again.topic_id != made.topic_id
    (gone,) = ask(up, by_id, ApiKey.DELETE_TOPICS).responses
    assert gone.error_code == Code.UNKNOWN_TOPIC_ID
    assert exists(up, topic)


def test_a_topic_with_producers_and_subscriptions_is_deleted_and_begins_anew(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    producer = Producer({"bootstrap.servers": up.kafka})
    producer.produce(topic, b"one")
    assert producer.flush(TIMEOUT_S) == 0
    path = f"persistent/public/default/{topic}-partition-0"
    rest(up, "PUT", f"{path}/subscription/s", {"ledgerId": -1, "entryId": -1})
    assert rest(up, "GET", f"{path}/subscriptions") == ["s"]
    done(admin.delete_topics([topic]))
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    assert rest(up, "GET", f"{path}/subscriptions") == []
    assert end_offset(admin, topic) == 0


def test_positions_of_groups_go_with_the_topic(up: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    producer = Producer({"bootstrap.servers": up.kafka})
    producer.produce(topic, b"one")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({"bootstrap.servers": up.kafka, "group.id": topic})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)] == [1]
        done(admin.delete_topics([topic]))
        done(admin.create_topics([NewTopic(topic, 1, 1)]))
        assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)] == [-1001]
    finally:
        consumer.close()


def end_offset(admin: AdminClient, topic: str) -> int:
    part = TopicPartition(topic, 0)
    found: int = done(admin.list_offsets({part: OffsetSpec.latest()}))[part].offset
    return found


# --- growing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (2, None, Code.INVALID_PARTITIONS),
        (1, None, Code.INVALID_PARTITIONS),
        (0, None, Code.INVALID_PARTITIONS),
        (10_001, None, Code.INVALID_PARTITIONS),
        (4, [[0]], Code.INVALID_REPLICA_ASSIGNMENT),
        (4, [[0], [9]], Code.INVALID_REPLICA_ASSIGNMENT),
        (4, [[0], [0]], Code.NONE),
    ],
)
def test_a_topic_only_grows(
    up: UpProcess, topic: str, count: int, assignments: list[list[int]] | None, code: Code
) -> None:
    create(up, creatable(topic, num_partitions=2))
    kind = m.CreatePartitionsRequest
    given = (
        None if assignments is None else [kind.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    )
    wanted = kind.CreatePartitionsTopic(name=topic, count=count, assignments=given)
    if code == Code.NONE:
        request = kind(topics=[wanted], timeout_ms=30_000, validate_only=True)
        assert ask(up, request, ApiKey.CREATE_PARTITIONS).results[0].error_code == Code.NONE
    (result,) = ask(up, kind(topics=[wanted], timeout_ms=30_000), ApiKey.CREATE_PARTITIONS).results
    assert result.error_code == code
    (known,) = ask(up, m.MetadataRequest(topics=[_named(topic)]), ApiKey.METADATA, 12).topics
    assert len(known.partitions) == (count if code == Code.NONE else 2)


def test_a_topic_that_is_not_partitioned_is_one_partition_and_cannot_grow(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    rest(up, "PUT", f"persistent/public/default/{topic}")
    assert partitions(admin, topic) == 1
    error = refused(admin.create_partitions([NewPartitions(topic, 2)]))
    assert error.code() == KafkaError.INVALID_PARTITIONS
    assert "not a partitioned topic" in error.str()
    done(admin.delete_topics([topic]))
    assert partitions(admin, topic) == 0


# --- configs --------------------------------------------------------------------------------------------------


def test_configs_are_set_appended_to_subtracted_from_and_put_back(admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    op = AlterConfigOpType
    done(alter(admin, topic, ("retention.ms", "1000", op.SET), ("cleanup.policy", "compact", op.APPEND)))
    found = configs(admin, topic)
    assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("1000", "delete,compact")
    assert not found["retention.ms"].is_default
    assert found["retention.ms"].synonyms["log.retention.ms"].value == "604800000"
    done(alter(admin, topic, ("retention.ms", None, op.DELETE), ("cleanup.policy", "delete", op.SUBTRACT)))
    found = configs(admin, topic)
    assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("604800000", "compact")
    assert found["retention.ms"].is_default


def test_setting_all_configs_at_once_puts_the_others_back(admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact", "flush.ms": "5"})]))
    resource = ConfigResource(TOPIC, topic, set_config={"retention.bytes": "4097"})
    done(admin.alter_configs([resource]))
    found = configs(admin, topic)
    assert [found[name].value for name in ("retention.bytes", "cleanup.policy")] == ["4097", "delete"]
    assert found["flush.ms"].is_default


@pytest.mark.parametrize(
    ("name", "value", "operation", "code", "words"),
    [
        ("retention.msec", "1", "SET", KafkaError.INVALID_CONFIG, "did you mean retention.ms?"),
        ("retention.ms", "soon", "SET", KafkaError.INVALID_CONFIG, "retention.ms"),
        ("retention.ms", "1", "APPEND", KafkaError.INVALID_CONFIG, "not a list"),
        ("cleanup.policy", "shred", "APPEND", KafkaError.INVALID_CONFIG, "cleanup.policy"),
        ("cleanup.policy", "compact,", "SET", KafkaError.INVALID_CONFIG, "cleanup.policy"),
    ],
)
def test_a_wrong_config_is_refused_and_none_of_the_request_is_set(
    admin: AdminClient, topic: str, name: str, value: str, operation: str, code: int, words: str
) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    right = ("segment.ms", "60000", AlterConfigOpType.SET)
    error = refused(alter(admin, topic, right, (name, value, AlterConfigOpType[operation])))
    assert error.code() == code
    assert words in error.str()
    assert configs(admin, topic)["segment.ms"].is_default


def test_configs_are_the_policies_that_pulsars_admin_sees_and_sets(
    up: UpProcess, admin: AdminClient, topic: str
) -> None:
    done(
        admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "90000", "max.message.bytes": "1000"})])
    )
    path = f"persistent/public/default/{topic}"
    assert rest(up, "GET", f"{path}/retention") == {"retentionTimeInMinutes": 2, "retentionSizeInMB": -1}
    assert rest(up, "GET", f"{path}/maxMessageSize") == 1000
    rest(up, "POST", f"{path}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6})
    found = configs(admin, topic)
    assert found["retention.ms"].value == "300000"
    assert found["retention.bytes"].value == str(6 * 1024 * 1024)


def test_max_message_bytes_is_honoured(up: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})]))
    producer = Producer({"bootstrap.servers": up.kafka})
    codes: list[int | None] = []
    for size in (100, 5000):
        producer.produce(
            topic, b"x" * size, on_delivery=lambda error, _: codes.append(None if error is None else error.code())
        )
        assert producer.flush(TIMEOUT_S) == 0
    assert codes == [None, KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_brokers_configs_are_shown_and_not_set(up: UpProcess, admin: AdminClient) -> None:
    found = configs(admin, "0", BROKER)
    assert found["node.id"].value == "0"
    assert all(entry.is_read_only for entry in found.values())
    assert (found["listeners"].is_default, found["num.partitions"].is_default) == (False, True)
    assert list(found) == sorted(found)
    error = refused(alter(admin, "0", ("log.retention.ms", "1", AlterConfigOpType.SET), kind=BROKER))
    assert "Cannot update these configs dynamically: log.retention.ms." in error.str()
    assert "set retention.ms of a topic" in error.str()
    error = refused(alter(admin, "0", ("num.partitions", "1", AlterConfigOpType.SET), kind=BROKER))
    assert "Cannot update these configs dynamically: num.partitions." in error.str()
    assert "for each topic: cleanup.policy, " in error.str()
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name="5")
    (result,) = ask(up, m.DescribeConfigsRequest(resources=[resource]), ApiKey.DESCRIBE_CONFIGS).results
    assert result.error_code == Code.INVALID_REQUEST


def test_only_the_configs_that_are_asked_for_come_with_what_they_mean(up: UpProcess, topic: str) -> None:
    create(up, creatable(topic))
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=["min.insync.replicas", "retention.ms"]
    )
    for documented in (True, False):
        request = m.DescribeConfigsRequest(resources=[resource], include_documentation=documented)
        (result,) = ask(up, request, ApiKey.DESCRIBE_CONFIGS).results
        assert [config.name for config in result.configs] == ["min.insync.replicas", "retention.ms"]
        assert ("not applied" in (result.configs[0].documentation or "")) == documented
    for kind, code in ((32, Code.INVALID_REQUEST), (2, Code.UNKNOWN_TOPIC_OR_PARTITION)):
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name="no-such")
        (result,) = ask(up, m.DescribeConfigsRequest(resources=[resource]), ApiKey.DESCRIBE_CONFIGS).results
        assert result.error_code == code


# --- the cluster ----------------------------------------------------------------------------------------------


def test_the_cluster_is_one_broker_at_the_advertised_address(up: UpProcess, admin: AdminClient) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [up.kafka]
    assert cluster.controller.id == 0
    assert cluster.authorized_operations
    for kind, code in ((2, Code.MISMATCHED_ENDPOINT_TYPE), (9, Code.UNSUPPORTED_ENDPOINT_TYPE)):
        answer = ask(up, m.DescribeClusterRequest(endpoint_type=kind), ApiKey.DESCRIBE_CLUSTER)
        assert answer.error_code == code


def test_acls_are_answered_as_by_a_kafka_without_an_authorizer(up: UpProcess) -> None:
    everything = m.DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)
    answer = ask(up, everything, ApiKey.DESCRIBE_ACLS)
    assert (answer.error_code, answer.resources) == (Code.SECURITY_DISABLED, [])


def test_log_dirs_say_how_much_partitions_hold(up: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 2, 1)]))
    producer = Producer({"bootstrap.servers": up.kafka})
    producer.produce(topic, b"x" * 5000, partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    wanted = m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0, 1, 7])
    for topics in ([wanted], None):
        (result,) = ask(up, m.DescribeLogDirsRequest(topics=topics), ApiKey.DESCRIBE_LOG_DIRS).results
        sizes = {
            part.partition_index: part.partition_size
            for found in result.topics
            if found.name == topic
            for part in found.partitions
        }
        assert sizes[1] > 5000
        assert sizes.get(0, 0) == 0
        assert 7 not in sizes


def test_the_end_of_an_epoch_is_the_end_of_the_log(up: UpProcess, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    producer = Producer({"bootstrap.servers": up.kafka})
    for _ in range(3):
        producer.produce(topic, b"x")
    assert producer.flush(TIMEOUT_S) == 0
    kind = m.OffsetForLeaderEpochRequest

    def end(current: int, epoch: int, partition: int = 0, version: int = 4) -> tuple[int, int, int]:
        part = kind.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        request = kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic=topic, partitions=[part])])
        (found,) = ask(up, request, ApiKey.OFFSET_FOR_LEADER_EPOCH, version).topics
        (result,) = found.partitions
        return result.error_code, result.leader_epoch, result.end_offset

    assert end(0, 0) == end(-1, 0) == end(0, 0, version=2) == (Code.NONE, 0, 3)
    assert end(0, 1) == (Code.NONE, -1, -1)
    assert end(1, 0)[0] == Code.UNKNOWN_LEADER_EPOCH
    assert end(0, 0, partition=9)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_every_call_answers_in_every_version_that_it_declares(up: UpProcess) -> None:
    for key in (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ):
        handler = HANDLERS[key]
        for version in range(handler.first, handler.last + 1):
            assert type(ask(up, API[key].request(), key, version)) is API[key].response
