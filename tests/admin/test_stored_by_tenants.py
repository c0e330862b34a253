"""What tenants store and processes with more rights interpret: attacks of a tenant on the others."""

import contextlib
from typing import Any

import pulsar
import pytest

from .test_access import WITH_TOKENS, prepare, token

TOPIC = "persistent/acme/orders/in"
POLICY = {"maxDeliveries": 1, "deadLetterTopic": "persistent://emca/private/ledger"}
PROPERTIES = {
    "weir.retry.max-deliveries": "1",
    "weir.retry.dead-letter-topic": "persistent://emca/private/ledger",
}
STREAM = "/admin/weir/v1/streams/acme/orders/copy"


@pytest.fixture(scope="module")
def guarded(start_weir: Any) -> Any:
    """Tenant `acme` of `owner`, whose role `reader` may consume; and tenant `emca` of others."""
    found = start_weir(*WITH_TOKENS)
    prepare(found)
    admin = token("admin")
    found.do("PUT", "tenants/emca", {"adminRoles": ["emca"], "allowedClusters": ["standalone"]}, token=admin)
    found.do("PUT", "namespaces/emca/private", token=admin)
    found.do("PUT", "persistent/emca/private/ledger", token=admin)
    found.do("PUT", TOPIC, token=admin)
    found.do("PUT", f"{TOPIC}/subscription/s", token=token("reader"))
    return found


@pytest.mark.parametrize(
    ("verb", "path", "body", "role"),
    [
        ("PUT", f"{TOPIC}/subscription/s/retry", POLICY, "reader"),
        ("PUT", f"{TOPIC}/subscription/s/properties", PROPERTIES, "reader"),
        ("PUT", f"{TOPIC}/subscription/t", {"entryId": -1, "ledgerId": -1, "properties": PROPERTIES}, "reader"),
        ("POST", f"{TOPIC}/retry", POLICY, "owner"),
        ("POST", "namespaces/acme/orders/retry", POLICY, "owner"),
        # A role that may only consume cannot write through the broker, in its own namespace either.
        ("PUT", f"{TOPIC}/subscription/s/retry", {"maxDeliveries": 1, "deadLetterTopic": "other"}, "reader"),
    ],
)
def test_dead_letters_go_where_the_role_may_produce_that_names_their_topic(
    guarded: Any, verb: str, path: str, body: Any, role: str
) -> None:
    assert guarded.ask(verb, path, body, token=token(role)).status in (401, 403, 404)
    # It is the topic that is refused, not the policy.
    own = {name: value for name, value in body.items() if "etter" not in name and "properties" not in name}
    assert guarded.ask(verb, path, own, token=token(role)).status < 300


def test_a_consumer_cannot_name_another_tenants_topic_for_its_dead_letters(guarded: Any) -> None:
    with contextlib.closing(
        pulsar.Client(guarded.url, authentication=pulsar.AuthenticationToken(token("reader")))
    ) as client:
        topic, shared = "persistent://acme/orders/in", pulsar.ConsumerType.Shared
        with pytest.raises(pulsar.AuthorizationError):
            client.subscribe(topic, "mine", shared, properties=PROPERTIES)
        own = {"weir.retry.max-deliveries": "1"}
        client.subscribe(topic, "mine", shared, properties=own)


def test_a_stored_policy_whose_roles_may_not_produce_there_does_not_hold(guarded: Any) -> None:
    """Earlier releases stored policies without a check, and grants are taken back."""
    admin, topic = token("admin"), "persistent://acme/orders/died"
    grant = "namespaces/emca/private/permissions/owner"
    guarded.do("POST", grant, ["produce"], token=admin)
    guarded.do("PUT", "persistent/acme/orders/died", token=admin)
    guarded.do("POST", "persistent/acme/orders/died/retry", POLICY, token=token("owner"))
    ledger, own = POLICY["deadLetterTopic"], f"{topic}-s-DLQ"
    with contextlib.closing(
        pulsar.Client(guarded.url, authentication=pulsar.AuthenticationToken(admin))
    ) as client:
        failing = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=1)
        producer = client.create_producer(topic)
        letters = {name: client.subscribe(name, "look") for name in (ledger, own)}
        for number, goes_to in enumerate((ledger, own, ledger)):
            guarded.do("POST" if goes_to == ledger else "DELETE", grant, ["produce"], token=admin)
            producer.send(b"%d" % number)
            failing.negative_acknowledge(failing.receive(60_000))
            assert letters[goes_to].receive(60_000).data() == b"%d" % number
            other = letters[own if goes_to == ledger else ledger]
            with pytest.raises(pulsar.Timeout):
                other.receive(1)
    guarded.do("DELETE", grant, token=admin)


def test_a_stream_says_when_its_role_has_lost_its_rights(guarded: Any) -> None:
    """Its runner may read everything, and stops what is denied."""
    admin, source = token("admin"), "persistent://emca/private/ledger"
    body = {"sql": "SELECT value FROM x", "sources": [source]}
    assert guarded.ask("PUT", STREAM, body, token=token("owner")).status in (401, 403, 404)
    grant = "namespaces/emca/private/permissions/owner"
    guarded.do("POST", grant, ["consume"], token=admin)
    guarded.do("PUT", STREAM, body, token=token("owner"))
    (told,) = guarded.do("GET", "/admin/weir/v1/streams", token=admin)
    assert (told["role"], told["denied"]) == ("owner", "")
    guarded.do("DELETE", grant, token=admin)
    (told,) = guarded.do("GET", "/admin/weir/v1/streams", token=admin)
    assert f"may not consume {source} any more" in told["denied"]
    # A superuser that lets it run does not lend it its own rights.
    guarded.do("PUT", STREAM, {**body, "state": "paused"}, token=admin)
    (told,) = guarded.do("GET", "/admin/weir/v1/streams", token=admin)
    assert told["role"] == "owner"
    assert told["denied"]


@pytest.mark.parametrize(
    "sql",
    ["SELECT a FROM t WHERE a IN (" + "1," * 6_000 + "1)", "SELECT " + "(" * 60 + "1" + ")" * 60 + " FROM t"],
)
def test_a_stream_whose_query_is_too_large_for_its_runner_is_refused(guarded: Any, sql: str) -> None:
    path = "/admin/weir/v1/streams/acme/orders/large"
    answer = guarded.ask("PUT", path, {"sql": sql, "sources": []}, token=token("owner"))
    assert answer.status == 400
    assert b"the query" in answer.body
    assert guarded.ask("GET", path, token=token("owner")).status == 404


def test_a_tenant_cannot_have_the_runner_of_functions_remove_subscriptions_of_others(guarded: Any) -> None:
    """The runner of a function removes the subscriptions that the properties of the function's topic name."""
    said = {"input persistent://emca/private/ledger": "an id"}
    own = "persistent/acme/orders/fn-clean-retry"
    for verb, path, body in (
        ("PUT", own, said),
        ("PUT", f"{own}/partitions", {"partitions": 1, "properties": said}),
    ):
        assert guarded.ask(verb, path, body, token=token("owner")).status in (401, 403, 404)
    guarded.do("PUT", own, token=token("owner"))
    for name in ("input persistent://emca/private/ledger", "input-id persistent://emca/private/ledger"):
        answer = guarded.ask("PUT", f"{own}/properties", {name: "an id"}, token=token("owner"))
        assert answer.status in (401, 403, 404)
    guarded.do("PUT", f"{own}/properties", {"mine": "1"}, token=token("owner"))
    guarded.do("PUT", f"{own}/properties", said, token=token("admin"))


def test_the_operator_may_leave_deploying_to_some_of_the_superusers(start_weir: Any) -> None:
    weir = start_weir(*WITH_TOKENS, "auth.superusers=admin,ci", "functions.deployers=ci")
    prepare(weir)
    body = {"code": "def f(x): return x", "entry": "f", "inputs": ["persistent://acme/orders/in"]}
    path = "/admin/weir/v1/functions/acme/orders/clean"
    for role in ("owner", "admin"):
        assert weir.ask("POST", path, body, token=token(role)).status in (401, 403, 404)
    assert weir.ask("POST", path, body, token=token("ci")).status < 300
    assert weir.ask("PUT", path, body, token=token("admin")).status in (401, 403, 404)
