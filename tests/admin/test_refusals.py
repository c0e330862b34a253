"""What is refused, and with which of Pulsar's statuses."""

from typing import Any

import pytest

AVRO = {"type": "AVRO", "schema": '{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'}
OTHER = {"type": "AVRO", "schema": '{"type":"record","name":"A","fields":[{"name":"b","type":"int"}]}'}
T, P = "persistent/refused/ns/t", "persistent/refused/ns/parted"


@pytest.fixture(scope="module")
def refusing(start_weir) -> Any:
    weir = start_weir()
    weir.do("PUT", "tenants/refused", {"allowedClusters": ["standalone"]})
    weir.do("PUT", "namespaces/refused/ns")
    weir.do("PUT", "namespaces/refused/closed")
    weir.do("POST", "namespaces/refused/closed/autoTopicCreation", {"allowAutoTopicCreation": False})
    weir.do("PUT", T)
    weir.do("PUT", f"{P}/partitions", 3)
    weir.do("PUT", f"{T}/subscription/s")
    weir.do("POST", "schemas/refused/ns/t/schema", AVRO)
    return weir


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        # tenants and clusters
        ("PUT", "tenants/refused", {"allowedClusters": ["standalone"]}, 409),
        ("PUT", "tenants/a b", {"allowedClusters": ["standalone"]}, 412),
        ("PUT", "tenants/..%2Fetc", {"allowedClusters": ["standalone"]}, 412),
        ("PUT", "tenants/pulsar", {"allowedClusters": ["standalone"]}, 412),
        ("PUT", "tenants/new", {"allowedClusters": ["elsewhere"]}, 412),
        ("PUT", "tenants/new", {"allowedClusters": []}, 412),
        ("PUT", "tenants/new", {"adminRoles": "alice"}, 400),
        ("PUT", "tenants/new", {"adminRoles": ["a\nb"], "allowedClusters": ["standalone"]}, 412),
        ("GET", "tenants/nobody", None, 404),
        ("POST", "tenants/nobody", {"allowedClusters": ["standalone"]}, 404),
        ("DELETE", "tenants/nobody", None, 404),
        ("DELETE", "tenants/refused", None, 409),
        ("GET", "clusters/elsewhere", None, 404),
        ("PUT", "clusters/elsewhere", {}, 412),
        ("DELETE", "clusters/standalone", None, 412),
        ("GET", "brokers/elsewhere", None, 404),
        # namespaces and policies
        ("PUT", "namespaces/refused/ns", None, 409),
        ("PUT", "namespaces/nobody/ns", None, 404),
        ("PUT", "namespaces/refused/a%2Fb", None, 412),
        ("PUT", "namespaces/refused/new", {"replication_clusters": ["elsewhere"]}, 412),
        ("PUT", "namespaces/refused/new", {"allowed_clusters": ["standalone", "elsewhere"]}, 412),
        ("PUT", "namespaces/refused/new", {"encryption_required": True}, 412),
        ("POST", "namespaces/refused/ns/replication", ["elsewhere"], 405),
        ("POST", f"{T}/replication", ["elsewhere"], 404),
        ("PUT", f"{T}/shadowTopics", ["persistent://refused/ns/shadow"], 404),
        ("GET", "namespaces/refused/none", None, 404),
        ("GET", "namespaces/nobody", None, 404),
        ("DELETE", "namespaces/refused/ns", None, 409),
        ("DELETE", "namespaces/refused/none", None, 404),
        ("POST", "namespaces/refused/none/messageTTL", 5, 404),
        ("POST", "namespaces/refused/ns/messageTTL", -5, 412),
        ("POST", "namespaces/refused/ns/messageTTL", 2**40, 400),
        ("POST", "namespaces/refused/ns/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 412),
        ("POST", "namespaces/refused/ns/retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5}, 412),
        ("POST", "namespaces/refused/ns/dispatchRate", {"relativeToPublishRate": True}, 412),
        ("POST", "namespaces/refused/ns/dispatchRate", {"ratePeriodInSecond": 0}, 412),
        ("POST", "namespaces/refused/ns/backlogQuota", {"policy": "shrug"}, 400),
        ("POST", "namespaces/refused/ns/backlogQuota?backlogQuotaType=moon", {}, 400),
        ("POST", "namespaces/refused/ns/autoTopicCreation", {"topicType": "partitioned"}, 412),
        ("PUT", "namespaces/refused/ns/schemaCompatibilityStrategy", "SOMETIMES", 400),
        ("POST", "namespaces/refused/ns/permissions/al", ["dance"], 400),
        ("GET", "namespaces/refused/ns/topics?mode=SOME", None, 400),
        # topics
        ("PUT", T, None, 409),
        ("PUT", "persistent/refused/ns/shadow", {"PULSAR.SHADOW_SOURCE": "persistent://refused/ns/t"}, 412),
        (
            "PUT",
            "persistent/refused/ns/shadow/partitions",
            {"partitions": 2, "properties": {"PULSAR.SHADOW_SOURCE": "persistent://refused/ns/parted"}},
            412,
        ),
        ("PUT", f"{T}/properties", {"PULSAR.SHADOW_SOURCE": "persistent://refused/ns/t"}, 412),
        ("PUT", P, None, 409),
        ("PUT", "persistent/refused/none/t", None, 404),
        ("PUT", "persistent/refused/ns/x-partition-0", None, 412),
        ("PUT", "persistent/refused/ns/a%2Fb", None, 412),
        ("PUT", "persistent/refused/ns/%2e%2e", None, 412),
        ("PUT", "persistent/refused/ns/a%00b", None, 412),
        ("PUT", f"persistent/refused/ns/{'x' * 600}", None, 412),
        ("PUT", f"{P}/partitions", 4, 409),
        ("PUT", "persistent/refused/ns/new/partitions", 0, 406),
        ("PUT", "persistent/refused/ns/new/partitions", -3, 406),
        ("PUT", "persistent/refused/ns/new/partitions", 1_000_000, 406),
        ("PUT", "persistent/refused/ns/new/partitions", "many", 400),
        ("POST", f"{P}/partitions", 2, 422),
        ("POST", f"{T}/partitions", 2, 409),
        ("POST", "persistent/refused/ns/none/partitions", 2, 404),
        ("GET", "persistent/refused/ns/none/partitions", None, 404),
        ("GET", "persistent/refused/closed/none/partitions?checkAllowAutoCreation=true", None, 404),
        ("GET", "persistent/refused/none", None, 404),
        ("DELETE", "persistent/refused/ns/none", None, 404),
        ("DELETE", P, None, 409),
        ("DELETE", f"{P}-partition-0", None, 412),
        ("DELETE", f"{T}/partitions", None, 404),
        ("GET", "persistent/refused/ns/none/stats", None, 404),
        ("GET", f"{P}/stats", None, 404),
        ("GET", f"{P}-partition-3/stats", None, 404),
        ("GET", f"{T}/partitioned-stats", None, 404),
        ("DELETE", f"{T}/properties", None, 412),
        ("PUT", f"{T}/properties", {"x": "y" * 70_000}, 412),
        ("PUT", f"{T}/properties", {"weir.queue": "{}"}, 412),
        ("DELETE", f"{T}/properties?key=weir.queue", None, 412),
        ("PUT", "namespaces/refused/ns/properties", {"weir.policies": "[]"}, 412),
        ("PUT", "namespaces/refused/ns/property/weir.policies/x", None, 412),
        ("DELETE", "namespaces/refused/ns/property/weir.policies", None, 412),
        ("PUT", f"{T}/properties", {str(at): "" for at in range(1001)}, 412),
        ("PUT", f"{T}/subscription/s/properties", {"x": "y" * 70_000}, 412),
        ("PUT", "namespaces/refused/ns/properties", {"x": "y" * 70_000}, 412),
        ("POST", f"{T}/messageTTL", None, 412),
        ("POST", f"{T}/messageTTL?messageTTL=soon", None, 400),
        ("POST", f"{T}/maxProducers", -1, 412),
        ("POST", "persistent/refused/ns/none/maxProducers", 1, 404),
        ("DELETE", f"{T}/permissions/nobody", None, 412),
        # subscriptions
        ("PUT", f"{T}/subscription/s", None, 409),
        ("PUT", f"{T}/subscription/a%0Ab", None, 412),
        ("PUT", "persistent/refused/closed/none/subscription/s", None, 404),
        ("DELETE", f"{T}/subscription/none", None, 404),
        ("POST", f"{T}/subscription/none/skip/1", None, 404),
        ("POST", f"{T}/subscription/s/skip/-1", None, 400),
        ("POST", f"{T}/subscription/s/skip/x", None, 400),
        ("POST", f"{P}/subscription/s/skip/1", None, 405),
        ("POST", f"{T}/subscription/none/redeliver/0", None, 404),
        ("POST", f"{T}/subscription/s/redeliver/1000000", None, 404),
        ("POST", f"{T}/subscription/s/redeliver/-1", None, 400),
        ("POST", f"{P}/subscription/s/redeliver/0", None, 405),
        ("POST", f"{T}/subscription/none/skip_all", None, 404),
        ("POST", f"{T}/subscription/none/resetcursor/0", None, 404),
        ("POST", f"{T}/subscription/s/resetcursor", {"ledgerId": "here"}, 400),
        ("POST", f"{T}/subscription/s/expireMessages/soon", None, 400),
        # messages
        ("GET", f"{T}/subscription/s/position/1", None, 404),
        ("GET", f"{T}/subscription/s/position/0", None, 400),
        ("GET", f"{T}/subscription/s/position/99999", None, 412),
        ("GET", f"{P}/subscription/s/position/1", None, 405),
        ("GET", f"{T}/ledger/12345/entry/0", None, 404),
        ("GET", f"{T}/examinemessage", None, 404),
        ("GET", f"{P}/lastMessageId", None, 405),
        ("POST", f"{P}/terminate", None, 405),
        ("POST", f"{T}/terminate/partitions", None, 405),
        ("GET", "non-persistent/refused/ns/t/lastMessageId", None, 404),
        # schemas
        ("GET", "schemas/refused/ns/none/schema", None, 404),
        ("GET", "schemas/refused/ns/t/schema/7", None, 404),
        ("GET", "schemas/refused/none/t/schema", None, 404),
        ("POST", "schemas/refused/ns/t/schema", OTHER, 409),
        ("POST", "schemas/refused/ns/t/schema", {"type": "AVRO", "schema": "{"}, 422),
        ("POST", "schemas/refused/ns/t/schema", {"type": "BYTES"}, 409),
        ("POST", "schemas/refused/ns/t/schema", {"type": "COBOL"}, 400),
        ("POST", "schemas/refused/ns/t/version", OTHER, 404),
        ("DELETE", "schemas/refused/ns/none/schema", None, 404),
        # lookup and held messages
        ("GET", "/lookup/v2/topic/persistent/refused/none/t", None, 404),
        ("GET", "/lookup/v2/topic/persistent/refused/closed/none", None, 404),
        ("GET", "/lookup/v2/topic/persistent/refused/ns/none-partition-1", None, 404),
        ("GET", "/lookup/v2/topic/durable/refused/ns/t", None, 404),
        ("DELETE", f"/admin/weir/v1/held/{T}/1:1", None, 404),
        ("DELETE", f"/admin/weir/v1/held/{T}/x", None, 400),
        ("GET", f"/admin/weir/v1/held/{T}?limit=0", None, 400),
        ("GET", f"/admin/weir/v1/held/{T}?after=1:2", None, 400),
        ("GET", f"/admin/weir/v1/half/{T}/1:1", None, 404),
        ("POST", f"/admin/weir/v1/half/{T}/1:1/commit", None, 404),
        ("POST", f"/admin/weir/v1/half/{T}/x/rollback", None, 400),
        ("GET", f"/admin/weir/v1/half/{T}?after=1:2", None, 400),
        ("POST", f"/admin/weir/v1/half/{T}", {"group": ""}, 412),
        ("POST", f"/admin/weir/v1/half/{T}", {"group": "g", "payload": "?", "base64": True}, 400),
        ("POST", f"/admin/weir/v1/half/{P}", {"group": "g"}, 405),
        ("PATCH", T, None, 405),
    ],
)
def test_a_refusal_has_its_status_and_says_why(refusing, verb: str, path: str, body: Any, status: int) -> None:
    answer = refusing.ask(verb, path.replace(" ", "%20"), body)
    assert (answer.status, bool(answer.json["reason"])) == (status, True), answer.body


def test_a_namespace_and_a_tenant_go_with_all_they_hold_if_forced(weir, unique: str) -> None:
    weir.do("PUT", f"tenants/{unique}")
    weir.do("PUT", f"namespaces/{unique}/ns")
    weir.do("PUT", f"persistent/{unique}/ns/a")
    weir.do("PUT", f"persistent/{unique}/ns/b/partitions", 2)
    assert weir.ask("DELETE", f"tenants/{unique}").status == 409
    weir.do("DELETE", f"tenants/{unique}?force=true")
    assert unique not in weir.do("GET", "tenants")


def test_what_gets_a_deleted_topics_name_is_another_topic(weir, unique: str) -> None:
    path = f"persistent/public/default/{unique}"
    weir.do("PUT", path, {"old": "yes"})
    weir.do("POST", f"{path}/maxProducers", 3)
    weir.do("POST", f"{path}/permissions/al", ["produce"])
    weir.do("POST", f"schemas/public/default/{unique}/schema", AVRO)
    weir.do("DELETE", path)
    weir.do("PUT", path)
    assert weir.do("GET", f"{path}/properties") == {}
    assert weir.do("GET", f"{path}/maxProducers") is None
    assert weir.do("GET", f"{path}/permissions") == {}
    assert weir.ask("GET", f"schemas/public/default/{unique}/schema").status == 404


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("nobody/ns/t", "there is no tenant nobody"),
        ("refused/none/t", "there is no namespace refused/none"),
        ("refused/closed/t", "there is no topic persistent://refused/closed/t"),
        ("refused/ns/t", "has no subscription"),
    ],
)
def test_a_peek_names_the_thing_that_is_missing(refusing: Any, topic: str, reason: str) -> None:
    answer = refusing.ask("GET", f"persistent/{topic}/subscription/none/position/1")
    assert answer.status == 404
    assert reason in answer.json["reason"]
