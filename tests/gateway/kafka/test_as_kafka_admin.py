"""Administration as Apache Kafka 4.1.1 answers it: each of these was asked of both, and compared."""

from functools import partial
from typing import Any

import kafka.admin
import kafka.errors
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from weir.gateway.kafka.errors import Code
from weir.testing.kafka.clients.bare import Bare
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_TIMEOUT_S = 60
_TOPIC = 2
_SET, _DELETE = 0, 1
_Deletable = m.DeleteTopicsRequest.DeleteTopicState
_Wanted = m.MetadataRequest.MetadataRequestTopic


@pytest.fixture(scope="module")
def bare(bootstrap: str) -> Bare:
    return Bare(bootstrap)


# --- topics ---------------------------------------------------------------------------------------------------


def create(bare: Bare, *names: str) -> list[Any]:
    topics = [
        m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names
    ]
    found: list[Any] = bare.ask(
        ApiKey.CREATE_TOPICS, 7, m.CreateTopicsRequest(topics=topics, timeout_ms=30_000)
    ).topics
    return found


def delete(bare: Bare, *topics: m.DeleteTopicsRequest.DeleteTopicState) -> list[Any]:
    request = m.DeleteTopicsRequest(topics=list(topics), timeout_ms=30_000)
    found: list[Any] = bare.ask(ApiKey.DELETE_TOPICS, 6, request).responses
    return found


def described(bare: Bare, *wanted: m.MetadataRequest.MetadataRequestTopic, version: int = 12) -> list[Any]:
    request = m.MetadataRequest(topics=list(wanted), allow_auto_topic_creation=False)
    found: list[Any] = bare.ask(ApiKey.METADATA, version, request).topics
    return found


def test_what_was_made_comes_without_an_error_message(bare: Bare, topic: str) -> None:
    (made,) = create(bare, topic)
    assert (made.error_code, made.error_message) == (Code.NONE, None)


def test_a_topic_that_is_named_twice_is_answered_once_and_not_made(bare: Bare, topic: str) -> None:
    other = f"{topic}-other"
    told = {each.name: each.error_code for each in create(bare, topic, other, topic)}
    assert told == {topic: Code.INVALID_REQUEST, other: Code.NONE}
    assert described(bare, _Wanted(name=topic))[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_that_a_topic_exists_is_said_before_anything_else_that_is_wrong(bare: Bare, topic: str) -> None:
    bare.create(topic)
    wrong = m.CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=0,
        replication_factor=0,
        configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")],
    )
    codes = []
    for name in (topic, f"{topic}-new"):
        wrong.name = name
        request = m.CreateTopicsRequest(topics=[wrong], timeout_ms=30_000)
        codes += [each.error_code for each in bare.ask(ApiKey.CREATE_TOPICS, 7, request).topics]
    assert codes == [Code.TOPIC_ALREADY_EXISTS, Code.INVALID_CONFIG]


def test_a_topic_deleted_by_name_is_answered_with_its_id_and_the_other_way_round(bare: Bare, topic: str) -> None:
    first = bare.create(topic)
    (gone,) = delete(bare, _Deletable(name=topic))
    assert (gone.error_code, gone.name, bytes(gone.topic_id)) == (Code.NONE, topic, first)
    second = bare.create(topic)
    (gone,) = delete(bare, _Deletable(name=None, topic_id=second))
    assert (gone.error_code, gone.name, bytes(gone.topic_id)) == (Code.NONE, topic, second)


def test_a_topic_that_is_to_be_deleted_by_name_and_by_id_stays(bare: Bare, topic: str) -> None:
    known = bare.create(topic)
    (told,) = delete(bare, _Deletable(name=topic), _Deletable(name=None, topic_id=known))
    assert told.error_code == Code.INVALID_REQUEST
    assert described(bare, _Wanted(name=topic))[0].error_code == Code.NONE


@pytest.mark.parametrize(
    ("name", "topic_id", "code"),
    [
        ("no such name", bytes(16), Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("", bytes(16), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (None, bytes(16), Code.INVALID_REQUEST),
        (None, b"x" * 16, Code.UNKNOWN_TOPIC_ID),
        ("both", b"x" * 16, Code.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_deleted_says_why(bare: Bare, name: str | None, topic_id: bytes, code: Code) -> None:
    (told,) = delete(bare, _Deletable(name=name, topic_id=topic_id))
    assert told.error_code == code


def test_a_topic_is_described_by_its_id_if_that_is_there(bare: Bare, topic: str) -> None:
    known = bare.create(topic)
    (by_id,) = described(bare, _Wanted(name=None, topic_id=known))
    (by_both,) = described(bare, _Wanted(name="something-else", topic_id=known))
    assert [(each.error_code, each.name) for each in (by_id, by_both)] == [(Code.NONE, topic)] * 2
    (unknown,) = described(bare, _Wanted(name=None, topic_id=b"x" * 16))
    assert unknown.error_code == Code.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [10, 11])
def test_versions_that_know_names_only_refuse_ids(bare: Bare, topic: str, version: int) -> None:
    known = bare.create(topic)
    (told,) = described(bare, _Wanted(name=topic, topic_id=known), version=version)
    assert told.error_code == Code.INVALID_REQUEST


def test_a_topic_that_shall_grow_twice_is_answered_once_and_stays(bare: Bare, topic: str) -> None:
    bare.create(topic)
    grown = [
        m.CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        for count in (2, 3)
    ]
    request = m.CreatePartitionsRequest(topics=grown, timeout_ms=30_000)
    (told,) = bare.ask(ApiKey.CREATE_PARTITIONS, 3, request).results
    assert told.error_code == Code.INVALID_REQUEST
    assert len(described(bare, _Wanted(name=topic))[0].partitions) == 1


# --- configs --------------------------------------------------------------------------------------------------


def change(bare: Bare, topic: str, *changes: tuple[str, int, str | None]) -> Any:
    """Name, operation and value of each; what is said of it."""
    configs = [
        m.IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configs=configs
    )
    request = m.IncrementalAlterConfigsRequest(resources=[resource])
    (told,) = bare.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    return told


def shown(bare: Bare, topic: str, name: str) -> str | None:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=[name]
    )
    ((config,),) = [
        each.configs
        for each in bare.ask(ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest(resources=[resource])).results
    ]
    value: str | None = config.value
    return value


@pytest.mark.parametrize(
    ("name", "said", "kept"),
    [
        ("retention.ms", " 5000 ", "5000"),
        ("retention.ms", "+5000000000", "5000000000"),
        ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "compact", "compact"),
        ("follower.replication.throttled.replicas", "0:1,1:1", "0:1,1:1"),
        ("leader.replication.throttled.replicas", "*", "*"),
    ],
)
def test_a_value_is_shown_as_it_is_understood(bare: Bare, topic: str, name: str, said: str, kept: str) -> None:
    bare.create(topic)
    told = change(bare, topic, (name, _SET, said))
    assert (told.error_code, told.error_message) == (Code.NONE, None)
    assert shown(bare, topic, name) == kept


def test_a_config_that_there_is_not_can_be_put_back_but_not_set(bare: Bare, topic: str) -> None:
    bare.create(topic)
    assert change(bare, topic, ("no.such", _DELETE, None)).error_code == Code.NONE
    assert change(bare, topic, ("no.such", _SET, "1")).error_code == Code.INVALID_CONFIG


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("compression.gzip.level", _SET, "0", Code.INVALID_CONFIG),
        ("leader.replication.throttled.replicas", _SET, "abc", Code.INVALID_CONFIG),
        ("message.timestamp.after.max.ms", _SET, "-1", Code.INVALID_CONFIG),
        ("retention.ms", 9, "1", Code.INVALID_REQUEST),
    ],
)
def test_what_makes_no_sense_is_refused(
    bare: Bare, topic: str, name: str, operation: int, value: str, code: Code
) -> None:
    bare.create(topic)
    assert change(bare, topic, (name, operation, value)).error_code == code


def test_there_are_no_configs_of_all_topics(bare: Bare) -> None:
    assert change(bare, "", ("retention.ms", _SET, "1")).error_code == Code.INVALID_REQUEST


def test_all_configs_at_once_name_each_once(bare: Bare, topic: str) -> None:
    bare.create(topic)
    configs = [m.AlterConfigsRequest.AlterableConfig(name="retention.ms", value=value) for value in ("1", "2")]
    resource = m.AlterConfigsRequest.AlterConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configs=configs
    )
    (told,) = bare.ask(ApiKey.ALTER_CONFIGS, 2, m.AlterConfigsRequest(resources=[resource])).responses
    assert told.error_code == Code.INVALID_REQUEST


# --- what is not served ---------------------------------------------------------------------------------------


def test_librdkafka_says_at_once_that_there_are_no_such_calls(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with pytest.raises(KafkaException) as caught:
        admin.describe_user_scram_credentials().result(_TIMEOUT_S)
    assert caught.value.args[0].name() == "_UNSUPPORTED_FEATURE"


def test_librdkafka_finds_no_acls(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    everything = AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
        *(AclOperation.ANY, AclPermissionType.ANY),
    )
    assert admin.describe_acls(everything).result(_TIMEOUT_S) == []


def test_kafka_python_says_at_once_that_there_are_no_such_calls(bootstrap: str, topic: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    calls = [
        admin.list_partition_reassignments,
        partial(admin.elect_leaders, 0, {topic: [0]}),
        admin.describe_metadata_quorum,
        admin.describe_user_scram_credentials,
        admin.list_config_resources,
    ]
    try:
        for call in calls:
            with pytest.raises(kafka.errors.IncompatibleBrokerVersion):
                call()
    finally:
        admin.close()
