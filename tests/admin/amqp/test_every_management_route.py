"""Every route below `/api`, once at least: answered as RabbitMQ does, and none is left out."""

import re
from typing import Any

ANY = object()
MADE, DONE = 201, 204


def walk(api: Any, steps: list[Any]) -> list[tuple[str, str]]:
    """Each is a call, its body, and the answer: a status, or what a 200 says."""
    used = []
    for verb, path, body, expected in steps:
        answer = api.ask(verb, path, body)
        told = f"{verb} {path}: {answer.status} {answer.body[:300]!r}"
        if isinstance(expected, int):
            assert answer.status == expected, told
        else:
            assert answer.status == 200, told
            assert expected is ANY or answer.json == expected, told
        used.append((verb, f"/api/{path.split('?')[0]}"))
    return used


TOPIC_PERMISSION = {"user": "ann", "vhost": "v", "exchange": "x", "write": "^a", "read": "b"}
PERMISSION = {"user": "ann", "vhost": "v", "configure": "^a", "write": ".*", "read": ""}
BINDING = {
    "source": "e",
    "vhost": "v",
    "destination": "q",
    "destination_type": "queue",
    "routing_key": "a.*",
    "arguments": {},
    "properties_key": "a.%2A",
}
TO_EXCHANGE = BINDING | {
    "destination": "f",
    "destination_type": "exchange",
    "routing_key": "",
    "properties_key": "~",
}
DEFAULT = BINDING | {"source": "", "routing_key": "q", "properties_key": "q"}
POLICY = {
    "vhost": "v",
    "name": "p",
    "pattern": "^q",
    "apply-to": "queues",
    "definition": {"max-length": 10},
    "priority": 3,
}
STEPS = [
    ("GET", "overview", None, ANY),
    ("GET", "overview?columns=rabbitmq_version,object_totals.queues", None, ANY),
    ("GET", "cluster-name", None, {"name": "standalone"}),
    ("PUT", "cluster-name", {"name": "x"}, 400),
    ("GET", "nodes", None, ANY),
    ("GET", "nodes/weir%40standalone?columns=name,running", None, {"name": "weir@standalone", "running": True}),
    ("GET", "nodes/nope", None, 404),
    ("GET", "whoami", None, {"name": "anonymous", "tags": ["administrator"]}),
    ("GET", "extensions", None, []),
    ("GET", "feature-flags", None, ANY),
    ("GET", "deprecated-features", None, []),
    ("GET", "deprecated-features/used", None, []),
    ("GET", "health/checks/alarms", None, {"status": "ok"}),
    ("GET", "health/checks/local-alarms", None, {"status": "ok"}),
    ("GET", "health/checks/virtual-hosts", None, {"status": "ok"}),
    ("GET", "health/checks/node-is-quorum-critical", None, {"status": "ok"}),
    ("GET", "health/checks/node-is-mirror-sync-critical", None, {"status": "ok"}),
    ("GET", "healthchecks/node", None, {"status": "ok"}),
    ("GET", "health/checks/port-listener/1", None, 503),
    ("GET", "health/checks/protocol-listener/amqp091", None, {"status": "ok", "protocol": "amqp"}),
    ("GET", "health/checks/protocol-listener/stomp", None, 503),
    ("GET", "aliveness-test/%2F", None, {"status": "ok"}),
    ("GET", "aliveness-test/nope", None, 404),
    # --- virtual hosts, users and permissions
    ("PUT", "vhosts/v", {"description": "d", "tags": "a,b"}, MADE),
    ("PUT", "vhosts/v", None, DONE),
    ("PUT", "vhosts/no%20such%20name", {}, 400),
    ("GET", "vhosts/v?columns=name,description,tags", None, {"name": "v", "description": "d", "tags": ["a", "b"]}),
    ("GET", "vhosts?columns=name", None, [{"name": "/"}, {"name": "v"}]),
    ("GET", "vhosts/nope", None, 404),
    ("POST", "vhosts/v/start/weir%40standalone", None, DONE),
    ("PUT", "users/ann", {"password": "x", "tags": "management"}, MADE),
    ("PUT", "users/ann", {"password": "y", "tags": ["monitoring"]}, DONE),
    ("PUT", "users/bob", {"password": "x"}, 400),
    ("PUT", "users/bob", {"password_hash": "zz", "tags": ""}, 400),
    ("PUT", "users/bob", {"password_hash": "", "tags": ""}, MADE),
    (
        "PUT",
        "users/md5",
        {"password_hash": "", "tags": "", "hashing_algorithm": "rabbit_password_hashing_md5"},
        400,
    ),
    (
        "GET",
        "users?columns=name,tags",
        None,
        [{"name": "ann", "tags": ["monitoring"]}, {"name": "bob", "tags": []}],
    ),
    ("GET", "users/ann", None, ANY),
    ("GET", "users/nope", None, 404),
    ("PUT", "permissions/v/ann", {"configure": "^a", "write": ".*", "read": ""}, MADE),
    ("PUT", "permissions/v/ann", {"configure": "^a", "write": ".*", "read": ""}, DONE),
    ("PUT", "permissions/nope/ann", {"configure": "", "write": "", "read": ""}, 400),
    ("PUT", "permissions/v/ann", {"configure": "(", "write": "", "read": ""}, 400),
    ("PUT", "permissions/v/ann", {"configure": ""}, 400),
    ("GET", "permissions", None, [PERMISSION]),
    ("GET", "permissions/v/ann", None, PERMISSION),
    ("GET", "permissions/v/bob", None, 404),
    ("GET", "vhosts/v/permissions", None, [PERMISSION]),
    ("GET", "users/ann/permissions", None, [PERMISSION]),
    ("GET", "users/bob/permissions", None, []),
    ("GET", "users/without-permissions?columns=name", None, [{"name": "bob"}]),
    ("GET", "topic-permissions", None, []),
    ("GET", "topic-permissions/v/ann", None, 404),
    ("PUT", "topic-permissions/v/ann", {"exchange": "x", "write": "^a", "read": ""}, MADE),
    ("PUT", "topic-permissions/v/ann", {"exchange": "x", "write": "^a", "read": "b"}, DONE),
    ("PUT", "topic-permissions/v/ann", {"exchange": "x", "write": "(", "read": ""}, 400),
    ("PUT", "topic-permissions/nope/ann", {"exchange": "x", "write": "", "read": ""}, 400),
    ("GET", "topic-permissions", None, [TOPIC_PERMISSION]),
    ("GET", "topic-permissions/v/ann", None, [TOPIC_PERMISSION]),
    ("GET", "vhosts/v/topic-permissions", None, [TOPIC_PERMISSION]),
    ("GET", "users/ann/topic-permissions", None, [TOPIC_PERMISSION]),
    ("GET", "users/bob/topic-permissions", None, []),
    ("DELETE", "topic-permissions/v/ann", None, DONE),
    ("DELETE", "topic-permissions/v/ann", None, 404),
    # --- exchanges, queues and bindings
    ("PUT", "exchanges/v/e", {"type": "topic", "durable": True}, MADE),
    ("PUT", "exchanges/v/e", {"type": "topic", "durable": True}, DONE),
    ("PUT", "exchanges/v/e", {"type": "direct", "durable": True}, 400),
    (
        "PUT",
        "exchanges/v/f",
        {"type": "fanout", "internal": "true", "arguments": {"alternate-exchange": "e"}},
        MADE,
    ),
    ("PUT", "exchanges/v/x", {"type": "nope"}, 400),
    ("PUT", "exchanges/v/amq.x", {"type": "topic"}, 401),
    ("PUT", "exchanges/v/x", "{", 400),
    ("GET", "exchanges?columns=name&name=^f$&use_regex=true", None, [{"name": "f"}]),
    ("GET", "exchanges/v?columns=name&sort=name&sort_reverse=true&page=1&page_size=1", None, ANY),
    (
        "GET",
        "exchanges/v/f?columns=name,type,durable,internal,arguments,vhost",
        None,
        {
            "name": "f",
            "vhost": "v",
            "type": "fanout",
            "durable": False,
            "internal": True,
            "arguments": {"alternate-exchange": "e"},
        },
    ),
    ("GET", "exchanges/v/amq.default?columns=name,type", None, {"name": "", "type": "direct"}),
    ("GET", "exchanges/v/nope", None, 404),
    ("GET", "exchanges/nope", None, 404),
    ("PUT", "queues/v/q", {"durable": "true", "arguments": {"x-message-ttl": 60000}}, MADE),
    ("PUT", "queues/v/q", {"durable": True, "arguments": {"x-message-ttl": 60000}}, DONE),
    ("PUT", "queues/v/q", {"durable": True}, 400),
    ("PUT", "queues/v/bad", {"arguments": {"x-message-ttl": "x"}}, 400),
    ("PUT", "queues/v/amq.x", {}, 401),
    ("PUT", "queues/v/a%2Fb", None, MADE),
    ("PUT", "queues/nope/q", {}, 404),
    ("GET", "queues/v?columns=name", None, [{"name": "a/b"}, {"name": "q"}]),
    ("GET", "queues?columns=name,vhost&name=a/", None, [{"name": "a/b", "vhost": "v"}]),
    (
        "GET",
        "queues/v/a%2Fb?columns=name,durable,exclusive",
        None,
        {"name": "a/b", "durable": False, "exclusive": False},
    ),
    ("GET", "queues/v/nope", None, 404),
    ("GET", "queues/nope", None, 404),
    ("POST", "bindings/v/e/e/q/q", {"routing_key": "a.*", "arguments": {}}, MADE),
    ("POST", "bindings/v/e/e/e/f", None, MADE),
    ("POST", "bindings/v/e/e/q/none", {}, 404),
    ("POST", "bindings/v/e/none/q/q", {}, 404),
    (
        "GET",
        "bindings/v",
        None,
        [
            DEFAULT | {"destination": "a/b", "routing_key": "a/b", "properties_key": "a%2Fb"},
            DEFAULT,
            BINDING,
            TO_EXCHANGE,
        ],
    ),
    ("GET", "bindings", None, ANY),
    ("GET", "bindings/v/e/e/q/q", None, [BINDING]),
    ("GET", "bindings/v/e/amq.default/q/q", None, [DEFAULT]),
    ("GET", "bindings/v/e/e/q/q/a.*", None, BINDING),
    ("GET", "bindings/v/e/e/q/q/a.%252A", None, BINDING),
    ("GET", "bindings/v/e/e/q/q/nope", None, 404),
    ("GET", "bindings/v/e/e/e/f", None, [TO_EXCHANGE]),
    ("GET", "bindings/v/e/e/e/f/~", None, TO_EXCHANGE),
    ("GET", "exchanges/v/e/bindings/source", None, [BINDING, TO_EXCHANGE]),
    ("GET", "exchanges/v/f/bindings/destination", None, [TO_EXCHANGE]),
    ("GET", "exchanges/v/nope/bindings/source", None, 404),
    ("GET", "queues/v/q/bindings", None, [DEFAULT, BINDING]),
    ("GET", "queues/v/nope/bindings", None, 404),
    # --- messages
    (
        "POST",
        "exchanges/v/e/publish",
        {"properties": {}, "routing_key": "a.b", "payload": "x", "payload_encoding": "string"},
        {"routed": True},
    ),
    (
        "POST",
        "exchanges/v/nope/publish",
        {"properties": {}, "routing_key": "a.b", "payload": "x", "payload_encoding": "string"},
        400,
    ),
    ("POST", "exchanges/v/e/publish", {"routing_key": "a"}, 400),
    ("POST", "queues/v/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, ANY),
    ("POST", "queues/v/nope/get", {"count": 1, "ackmode": "ack_requeue_true"}, 404),
    ("POST", "queues/v/q/get", {"count": 1, "ackmode": "bogus"}, 400),
    ("POST", "queues/v/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "zz"}, 400),
    ("DELETE", "queues/v/q?if-empty=true", None, 400),
    ("DELETE", "queues/v/q/contents", None, DONE),
    ("DELETE", "queues/v/nope/contents", None, 404),
    # --- what nobody has opened
    ("GET", "connections", None, []),
    ("GET", "connections/nope", None, 404),
    ("GET", "connections/nope/channels", None, 404),
    ("GET", "connections/username/nope", None, []),
    ("DELETE", "connections/nope", None, 404),
    ("DELETE", "connections/username/nope", None, DONE),
    ("GET", "vhosts/v/connections", None, []),
    ("GET", "vhosts/v/channels", None, []),
    ("GET", "channels", None, []),
    ("GET", "channels/nope", None, 404),
    ("GET", "consumers", None, []),
    ("GET", "consumers/v", None, []),
    # --- what there is not
    ("GET", "parameters", None, []),
    ("GET", "parameters/federation", None, []),
    ("GET", "parameters/federation/v", None, []),
    ("PUT", "parameters/federation/v/x", {"value": {}}, 400),
    ("GET", "global-parameters", None, []),
    ("PUT", "global-parameters/x", {"value": 1}, 400),
    ("GET", "vhost-limits", None, []),
    ("GET", "vhost-limits/v", None, []),
    ("PUT", "vhost-limits/v/max-queues", {"value": 1}, DONE),
    ("PUT", "vhost-limits/v/max-connections", {"value": 2}, DONE),
    ("PUT", "vhost-limits/v/max-queues", {"value": True}, 400),
    ("PUT", "vhost-limits/nope/max-queues", {"value": 1}, 404),
    ("GET", "vhost-limits", None, [{"vhost": "v", "value": {"max-connections": 2, "max-queues": 1}}]),
    ("GET", "vhost-limits/v", None, [{"vhost": "v", "value": {"max-connections": 2, "max-queues": 1}}]),
    ("DELETE", "vhost-limits/v/max-queues", None, DONE),
    ("DELETE", "vhost-limits/v/max-connections", None, DONE),
    ("GET", "vhost-limits/v", None, []),
    ("GET", "user-limits", None, []),
    ("GET", "user-limits/ann", None, []),
    ("PUT", "user-limits/ann/max-channels", {"value": 1}, 400),
    ("GET", "nope", None, 404),
    ("POST", "overview", {}, 405),
]
POLICIES = [
    step
    for base in ("policies", "operator-policies")
    for step in (
        ("PUT", f"{base}/v/p", {"pattern": "^q", "definition": {"max-length": 9}}, MADE),
        ("PUT", f"{base}/v/p", POLICY, DONE),
        ("PUT", f"{base}/v/x", {"pattern": "^q", "definition": {"bogus": 1}}, 400),
        ("PUT", f"{base}/v/x", {"pattern": "(", "definition": {"max-length": 1}}, 400),
        ("PUT", f"{base}/v/x", {"pattern": "x"}, 400),
        ("PUT", f"{base}/nope/x", {"pattern": "x", "definition": {"max-length": 1}}, 404),
        ("GET", f"{base}/v/p", None, POLICY),
        ("GET", f"{base}/v", None, [POLICY]),
        ("GET", base, None, [POLICY]),
        ("GET", f"{base}/v/nope", None, 404),
        ("DELETE", f"{base}/v/p", None, DONE),
        ("DELETE", f"{base}/v/p", None, 404),
        ("GET", base, None, []),
    )
]
END = [
    ("GET", "definitions", None, ANY),
    ("GET", "definitions/v", None, ANY),
    ("GET", "definitions/nope", None, 400),
    ("POST", "definitions", {"queues": [{"name": "i", "vhost": "v", "durable": True}]}, DONE),
    ("POST", "definitions/v", {"queues": [{"name": "j", "durable": True}]}, DONE),
    ("POST", "definitions/nope", {}, 400),
    ("POST", "definitions", "[]", 400),
    ("GET", "definitions-import", None, {"state": "done", "total": 1, "imported": 1, "refused": []}),
    ("DELETE", "bindings/v/e/e/e/f/~", None, DONE),
    ("DELETE", "exchanges/v/e?if-unused=true", None, 400),
    ("DELETE", "bindings/v/e/e/q/q/a.%252A", None, DONE),
    ("DELETE", "bindings/v/e/e/q/q/a.*", None, 404),
    ("DELETE", "exchanges/v/amq.topic", None, 401),
    ("DELETE", "exchanges/v/e?if-unused=true", None, DONE),
    ("DELETE", "exchanges/v/e", None, 404),
    ("DELETE", "queues/v/q", None, DONE),
    ("DELETE", "queues/v/q", None, 404),
    ("DELETE", "permissions/v/ann", None, DONE),
    ("DELETE", "permissions/v/ann", None, 404),
    ("DELETE", "users/ann", None, DONE),
    ("DELETE", "users/ann", None, 404),
    ("POST", "users/bulk-delete", {"users": ["bob", "nope"]}, 400),
    ("POST", "users/bulk-delete", {"users": ["bob"]}, DONE),
    ("DELETE", "vhosts/v", None, DONE),
    ("DELETE", "vhosts/v", None, 404),
    ("GET", "vhosts?columns=name", None, [{"name": "/"}]),
]


def test_every_route_answers_as_rabbitmq_does(api) -> None:
    port = api.weir.up.addresses["http"].port
    used = walk(
        api, [*STEPS, ("GET", f"health/checks/port-listener/{port}", None, {"status": "ok", "port": port})]
    )
    used += walk(api, POLICIES)
    used += walk(api, END)
    documented = api.weir.do("GET", "/openapi.json")["paths"]
    missing = [
        (verb.upper(), template)
        for template, verbs in documented.items()
        if template.startswith("/api/")
        for verb in verbs
        if not any(
            method == verb.upper() and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path)
            for method, path in used
        )
    ]
    assert missing == []
    assert len(used) > 150


def test_a_refusal_has_an_error_and_a_reason(api, vhost) -> None:
    assert api.ask("GET", "queues/nope").json == {"error": "Object Not Found", "reason": "Not Found"}
    assert api.ask("GET", "nothing/of/the/kind").json == {"error": "Object Not Found", "reason": "Not Found"}
    assert api.ask("PUT", f"queues/{vhost}/amq.x", {}).json["error"] == "not_authorised"
    found = api.ask("POST", f"queues/{vhost}/none/get", {"ackmode": "ack_requeue_true"}).json
    assert found["error"] == "not_found"
    assert f"no queue 'none' in vhost '{vhost}'" in found["reason"]
    found = api.ask("PUT", f"exchanges/{vhost}/e", {"type": "nope"}).json
    assert (found["error"], "nope" in found["reason"]) == ("bad_request", True)
