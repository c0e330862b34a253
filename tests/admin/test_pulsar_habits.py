"""Habits of Apache Pulsar's admin API that its clients count on, asked with the bodies that Java sends."""

import http.client
import json
from typing import Any
from urllib.parse import quote

import pulsar
import pytest

BYTES = {"type": "BYTES", "schema": "", "properties": {}}
STRING = {"type": "STRING", "schema": "", "properties": {}}
#: As Java's `Policies` are serialised when most of them are not set.
POLICIES = {
    "auth_policies": {
        "namespace_auth": {"joe": ["produce"]},
        "destination_auth": {"persistent://habits/granted/t": {"ann": ["consume"]}},
        "subscription_auth_roles": {},
    },
    "replication_clusters": ["standalone"],
    "bundles": None,
    "backlog_quota_map": {},
    "topicDispatchRate": {},
    "message_ttl_in_seconds": None,
    "retention_policies": None,
    "deleted": False,
    "encryption_required": False,
    "schema_validation_enforced": False,
    "properties": None,
}


@pytest.fixture
def tenant(weir: Any) -> str:
    weir.ask("PUT", "tenants/habits", {"adminRoles": None, "allowedClusters": ["standalone"]})
    return "habits"


@pytest.fixture
def namespace(weir: Any, tenant: str, unique: str) -> str:
    weir.do("PUT", f"namespaces/{tenant}/{unique}")
    return f"{tenant}/{unique}"


def ask_null(weir: Any, method: str, path: str) -> int:
    """The status of a call whose body is JSON's null."""
    address = weir.up.addresses["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    connection.request(method, f"/admin/v2/{path}", "null", {"content-type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


# --- null ---------------------------------------------------------------------------------------------------


def test_a_body_that_is_null_says_nothing(weir, tenant: str, unique: str) -> None:
    namespace = f"{tenant}/{unique}"
    topic = f"persistent/{namespace}/t"
    for method, path in [
        ("PUT", f"namespaces/{namespace}"),
        ("PUT", topic),
        ("PUT", f"{topic}/subscription/s"),
        ("PUT", f"{topic}/properties"),
        ("PUT", f"{topic}/subscription/s/properties"),
        ("PUT", f"namespaces/{namespace}/properties"),
    ]:
        assert ask_null(weir, method, path) == 204, path
    assert weir.do("GET", f"{topic}/subscriptions") == ["s"]
    assert ask_null(weir, "PUT", f"{topic}-parted/partitions") == 400  # where something must be said


def test_a_policy_that_is_set_to_null_is_taken_back(weir, namespace: str) -> None:
    base = f"namespaces/{namespace}"
    weir.do("POST", f"{base}/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10})
    weir.do("POST", f"{base}/messageTTL", 60)
    weir.do("POST", f"{base}/backlogQuota", {"limitSize": 1000, "policy": "producer_exception"})
    for word in ("retention", "messageTTL", "backlogQuota"):
        assert ask_null(weir, "POST", f"{base}/{word}") == 204
    assert weir.do("GET", f"{base}/retention") is None
    assert weir.do("GET", f"{base}/messageTTL") is None
    assert weir.do("GET", f"{base}/backlogQuotaMap") == {}


def test_a_field_that_is_null_says_nothing(weir, namespace: str) -> None:
    base = f"namespaces/{namespace}"
    weir.do("POST", f"{base}/publishRate", {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": None})
    rate = weir.do("GET", f"{base}/publishRate")
    assert rate == {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": -1}
    weir.do("POST", f"schemas/{namespace}/t/schema", {"type": "STRING", "schema": None, "properties": None})
    assert weir.ask("POST", f"{base}/permissions/joe", ["produce", None]).status == 400  # an item is no field


# --- namespaces ---------------------------------------------------------------------------------------------


def test_a_new_namespace_keeps_its_auth_policies(weir, tenant: str) -> None:
    weir.do("PUT", f"namespaces/{tenant}/granted", POLICIES)
    assert weir.do("GET", f"namespaces/{tenant}/granted/permissions") == {"joe": ["produce"]}
    on_topic = weir.do("GET", f"persistent/{tenant}/granted/t/permissions")
    assert on_topic == {"ann": ["consume"], "joe": ["produce"]}
    assert weir.do("GET", f"namespaces/{tenant}/granted")["auth_policies"] == POLICIES["auth_policies"]


@pytest.mark.parametrize(
    "auth",
    [
        {"destination_auth": {"persistent://public/default/t": {"ann": ["consume"]}}},
        {"subscription_auth_roles": {"s": ["ann"]}},
    ],
    ids=["elsewhere", "subscriptions"],
)
def test_grants_that_cannot_be_kept_are_refused_with_the_namespace(weir, tenant: str, unique: str, auth) -> None:
    assert weir.ask("PUT", f"namespaces/{tenant}/{unique}", {"auth_policies": auth}).status == 412
    assert weir.ask("GET", f"namespaces/{tenant}/{unique}").status == 404


def test_a_missing_tenant_is_not_found(weir, client) -> None:
    for method, path in [
        ("PUT", "namespaces/missing/n"),
        ("GET", "namespaces/missing"),
        ("GET", "namespaces/missing/n"),
        ("GET", "namespaces/missing/n/topics"),
        ("GET", "tenants/missing"),
        ("DELETE", "tenants/missing"),
        ("PUT", "persistent/missing/n/t"),
        ("GET", "persistent/missing/n"),
        ("GET", "persistent/missing/n/t/stats"),
        ("GET", "/lookup/v2/topic/persistent/missing/n/t"),
    ]:
        assert weir.ask(method, path).status == 404, path
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://missing/n/t")


def test_a_propertys_value_comes_without_quotes(weir, namespace: str) -> None:
    one = f"namespaces/{namespace}/property/k"
    weir.do("PUT", f"{one}/v%20w")
    assert weir.ask("GET", one).body == b"v w"
    assert weir.ask("DELETE", one).body == b"v w"
    assert [weir.ask(method, one).status for method in ("GET", "DELETE")] == [204, 204]  # null, for Java


def test_clearing_properties_leaves_the_brokers_own_and_they_are_not_shown(weir, namespace: str) -> None:
    vhost = quote(namespace, safe="")
    weir.do("PUT", f"/api/policies/{vhost}/short", {"pattern": "^a", "definition": {"max-length": 5}})
    weir.do("PUT", f"namespaces/{namespace}/properties", {"colour": "red"})
    assert weir.do("GET", f"namespaces/{namespace}/properties") == {"colour": "red"}
    weir.do("DELETE", f"namespaces/{namespace}/properties")
    assert weir.do("GET", f"namespaces/{namespace}/properties") == {}
    assert [policy["name"] for policy in weir.do("GET", f"/api/policies/{vhost}")] == ["short"]


def test_a_quota_without_a_time_limit_reads_back_right(weir, namespace: str) -> None:
    """Java's client sets `limitSize` from `limit` too, and takes null for 0."""
    base = f"namespaces/{namespace}"
    sent = {"limit": 1000, "limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    weir.do("POST", f"{base}/backlogQuota?backlogQuotaType=destination_storage", sent)
    assert weir.do("GET", f"{base}/backlogQuotaMap") == {"destination_storage": sent}
    assert weir.do("GET", base)["backlog_quota_map"] == {"destination_storage": sent}


# --- schemas ------------------------------------------------------------------------------------------------


def test_a_schema_of_bytes_is_accepted(weir, client, unique: str) -> None:
    topic, path = f"persistent://public/default/{unique}", f"schemas/public/default/{unique}"
    assert weir.do("POST", f"{path}/compatibility", BYTES)["isCompatibility"]
    assert weir.do("POST", f"{path}/schema", BYTES) == {"version": 0}
    assert weir.do("POST", f"{path}/schema", BYTES) == {"version": 0}
    assert weir.do("GET", f"{path}/schema")["type"] == "BYTES"
    producer = client.create_producer(topic, schema=pulsar.schema.BytesSchema())
    consumer = client.subscribe(topic, "s", schema=pulsar.schema.BytesSchema())
    producer.send(b"\x00x")
    assert consumer.receive(60_000).value() == b"\x00x"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=pulsar.schema.StringSchema())
    assert weir.ask("POST", f"{path}/schema", STRING).status == 409


def test_a_deleted_schema_is_gone_by_every_version(weir, unique: str) -> None:
    path = f"schemas/public/default/{unique}"
    assert weir.do("POST", f"{path}/schema", STRING) == {"version": 0}
    assert weir.do("DELETE", f"{path}/schema") == {"version": 1}
    for version in ("", "/0", "/1", "/2"):
        assert weir.ask("GET", f"{path}/schema{version}").status == 404
    assert weir.do("GET", f"{path}/schemas") == {"getSchemaResponses": []}
    assert weir.do("POST", f"{path}/schema", STRING) == {"version": 2}  # numbers are not used again
    assert weir.ask("GET", f"{path}/schema/0").status == 404
    assert weir.do("GET", f"{path}/schema/2")["type"] == "STRING"


# --- stats --------------------------------------------------------------------------------------------------


def test_stats_tell_what_clients_are_and_leave_out_what_is_not_wanted(weir, client, unique: str) -> None:
    topic = f"persistent://public/default/{unique}"
    weir.do("PUT", f"persistent/public/default/{unique}/partitions", 2)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"x")
    part, whole = f"persistent/public/default/{unique}-partition-0", f"persistent/public/default/{unique}"
    for path in (f"{part}/stats", f"{whole}/partitioned-stats"):
        told = weir.do("GET", path)
        shown = [*told["publishers"], *told["subscriptions"]["s"]["consumers"]]
        assert shown
        assert all(one["clientVersion"].startswith("Pulsar-CPP-v") for one in shown)
        without = weir.do("GET", f"{path}?excludePublishers=true&excludeConsumers=true&getPreciseBacklog=true")
        assert without["publishers"] == without["subscriptions"]["s"]["consumers"] == []
        assert without["subscriptions"]["s"]["type"] == "Exclusive"
    consumer.close()


def test_stats_tell_sizes_and_moments_of_backlogs_as_asked(weir, client, unique: str) -> None:
    topic, path = f"persistent://public/default/{unique}", f"persistent/public/default/{unique}/stats"
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    told = weir.do("GET", path)
    assert told["subscriptions"]["s"]["backlogSize"] > 0
    assert told["earliestMsgPublishTimeInBacklogs"] == 0
    assert told["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] == 0
    message = consumer.receive(60_000)
    asked = weir.do("GET", f"{path}?subscriptionBacklogSize=false&getEarliestTimeInBacklog=true")
    assert asked["subscriptions"]["s"]["backlogSize"] == -1
    earliest = asked["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"]
    assert earliest == asked["earliestMsgPublishTimeInBacklogs"] > 0
    consumer.acknowledge(message)
    consumer.close()
    asked = weir.do("GET", f"{path}?getEarliestTimeInBacklog=true")
    assert asked["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] == -1


# --- listeners, termination ---------------------------------------------------------------------------------


def test_a_listener_that_is_not_there_is_refused_over_http(weir, unique: str) -> None:
    path = f"/lookup/v2/topic/persistent/public/default/{unique}"
    assert weir.ask("GET", path).status == 200
    refused = weir.ask("GET", f"{path}?listenerName=inside")
    assert refused.status == 412
    assert "inside" in json.loads(refused.body)["reason"]


def test_terminating_a_topic_closes_its_producers(weir, client, unique: str) -> None:
    topic, path = f"persistent://public/default/{unique}", f"persistent/public/default/{unique}"
    producer = client.create_producer(topic)
    producer.send(b"x")
    weir.do("POST", f"{path}/terminate")
    assert weir.do("GET", f"{path}/stats")["publishers"] == []
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"y")
    assert not producer.is_connected()
