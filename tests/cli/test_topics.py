"""The administrative commands against a real `weir up`, over its admin REST."""

import json
from typing import Any

import pulsar
import pytest
from pulsar.schema import JsonSchema, Long, Record, String

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


@pytest.fixture
def admin(weir: Any, weir_up: UpProcess) -> Any:
    """Runs a command that must succeed; its output, decoded if it was asked for as JSON."""

    def run(command: str, *more: str) -> Any:
        done = weir(*command.split(), *more, url=weir_up.http_url)
        assert (done.code, done.err) == (0, ""), done
        return json.loads(done.out) if "--json" in command else done.out

    return run


@pytest.fixture
def refused(weir: Any, weir_up: UpProcess) -> Any:
    """Runs a command that must fail in one line, which is the answer."""

    def run(command: str) -> str:
        done = weir(*command.split(), url=weir_up.http_url)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
        return str(done.err)

    return run


def test_tenants_and_namespaces_come_and_go(admin: Any, refused: Any) -> None:
    admin("tenants create acme --admin alice")
    admin("namespaces create acme/orders")
    assert {"name": "acme", "adminRoles": ["alice"], "namespaces": ["acme/orders"]}.items() <= admin(
        "tenants show acme --json"
    ).items()
    admin("namespaces set-retention acme/orders --time 2h --size 10M")
    admin("namespaces set-backlog-quota acme/orders --size 1M")
    admin("namespaces set-message-ttl acme/orders 1h")
    admin("namespaces set-deduplication acme/orders on")
    admin("namespaces grant acme/orders bob produce")
    policies = admin("namespaces policies acme/orders --json")
    assert policies["retention_policies"] == {"retentionTimeInMinutes": 120, "retentionSizeInMB": 10}
    assert policies["message_ttl_in_seconds"] == 3600
    assert policies["deduplicationEnabled"] is True
    assert policies["backlog_quota_map"]["destination_storage"]["limitSize"] == 1024**2
    assert admin("namespaces permissions acme/orders --json") == {"bob": ["produce"]}
    admin("namespaces revoke acme/orders bob")
    assert admin("namespaces permissions acme/orders --json") == {}
    assert "acme" in refused("tenants delete acme")
    admin("namespaces delete acme/orders")
    admin("tenants delete acme")
    assert "acme" not in [tenant["name"] for tenant in admin("tenants list --json")]


def test_a_topic_from_its_first_day_to_its_last(admin: Any, refused: Any) -> None:
    admin("topics create life --property owner=me")
    assert {"topic": "persistent://public/default/life", "partitions": 0} in admin("topics list --json")
    assert "life" in refused("topics create life")
    assert admin("topics properties life --json", "more=yes") == {"owner": "me", "more": "yes"}
    admin("subscriptions create life s --from earliest")
    admin("produce life", "one", "two")
    admin("produce life three --key k")
    assert "life" in admin("topics stats life")
    stats = admin("topics stats life --json")
    assert stats["msgInCounter"] == 3
    assert stats["subscriptions"]["s"]["msgBacklog"] == 3
    assert admin("subscriptions list life --json")["s"]["msgBacklog"] == 3
    assert admin("topics internal-stats life --json")["ledgers"]
    assert "ledgers" in admin("topics internal-stats life")
    admin("topics unload life")
    admin("topics terminate life")
    assert "terminated" in refused("produce life late")
    admin("subscriptions delete life s")
    admin("topics delete life")
    assert "life" in refused("topics stats life")


def test_partitions_are_made_grown_and_deleted(admin: Any) -> None:
    admin("topics create parts -p 2")
    admin("topics update-partitions parts 3")
    assert {"topic": "persistent://public/default/parts", "partitions": 3} in admin("topics list --json")
    admin("produce parts", *map(str, range(9)))
    assert sorted(admin("consume parts -n 9").split()) == list(map(str, range(9)))
    assert admin("topics stats parts --json")["msgInCounter"] == 9
    admin("topics delete parts --force")
    assert "parts" not in admin("topics list")


def test_a_subscription_is_moved_about(admin: Any) -> None:
    admin("topics create moved")
    admin("subscriptions create moved s --from earliest")
    for word in ("a", "b", "c"):
        admin(f"produce moved {word}")
    admin("subscriptions skip moved s -n 2")
    assert admin("consume moved -s s -n 1") == "c\n"
    admin("subscriptions reset moved s --to earliest")
    assert admin("consume moved -s s -n 3") == "a\nb\nc\n"
    admin("subscriptions reset moved s --to -1h")
    assert admin("consume moved -s s -n 1") == "a\n"
    admin("subscriptions skip moved s --all")
    assert admin("consume moved -s s --wait 200ms") == ""


def test_peeking_leaves_messages_where_they_are(admin: Any, refused: Any) -> None:
    admin("topics create peeked")
    admin("subscriptions create peeked s --from earliest")
    admin("produce peeked --key k --property Name=Value", "one", "two")
    admin("produce peeked three")
    for _ in range(2):
        lines = admin("peek peeked s -n 5", "--json").splitlines()
        assert [json.loads(line)["payload"] for line in lines] == ["one", "two", "three"]
    assert json.loads(lines[0])["headers"] == {"Name": "Value"}
    assert json.loads(lines[0])["topic"] == "peeked"
    assert "three" in admin("peek peeked s -n 3")
    assert "nobody" in refused("peek peeked nobody")


def test_schemas_have_versions(admin: Any, weir: Any, weir_up: UpProcess, tmp_path: Any) -> None:
    def avro(*fields: dict[str, Any]) -> str:
        path = tmp_path / "schema.avsc"
        path.write_text(json.dumps({"type": "record", "name": "R", "fields": list(fields)}))
        return str(path)

    first, second = {"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}
    admin("topics create typed")
    admin("schemas upload typed --type avro --file", avro(first))
    admin("schemas upload typed --type avro --file", avro(first, second))
    assert len(admin("schemas versions typed --json")) == 2
    assert admin("schemas get typed --json")["version"] == 1
    assert admin("schemas get typed --version 0 --json")["type"] == "AVRO"
    wrong = avro({"name": "a", "type": "string"})
    done = weir("schemas", "check", "typed", "--type", "avro", "--file", wrong, url=weir_up.http_url)
    assert (done.code, done.out.split(" (")[0]) == (1, "not compatible")
    admin("schemas delete typed")


def test_the_server_is_found_by_one_url(admin: Any, weir_up: UpProcess) -> None:
    assert admin("topics lookup anything") == f"{weir_up.pulsar_url}\n"
    admin("produce by-http hello")
    assert admin("consume by-http -n 1") == "hello\n"


def test_a_json_schema_is_a_topics_schema_for_pulsars_clients(
    admin: Any, weir: Any, weir_up: UpProcess, tmp_path: Any
) -> None:
    path = tmp_path / "order.schema.json"
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "customer": {"type": "string"}},
        "required": ["id"],
    }
    path.write_text(json.dumps(schema))
    admin("topics create described")
    admin("schemas upload described --type JSON --file", str(path))
    assert json.loads(admin("schemas get described --json")["data"])["name"] == "Order"

    class Order(Record):  # type: ignore[misc]
        id = Long(required=True)
        customer = String()

    client = pulsar.Client(weir_up.pulsar_url)
    try:
        consumer = client.subscribe("described", "s", schema=JsonSchema(Order))
        client.create_producer("described", schema=JsonSchema(Order)).send(Order(id=7, customer="ann"))
        assert consumer.receive(timeout_millis=60_000).value().id == 7
    finally:
        client.close()
    path.write_text(json.dumps({**schema, "properties": {"id": {"type": "integer", "minimum": 1}}}))
    done = weir("schemas", "upload", "described", "--type", "json", "--file", str(path), url=weir_up.http_url)
    assert done.code == 2
    assert "#/properties/id: 'minimum' cannot be said by an Avro definition" in done.err
