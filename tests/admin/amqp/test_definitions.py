"""Definitions in and out: a file of a real RabbitMQ 3.10 is read, and what is written can be read back."""

import json
from pathlib import Path
from typing import Any

import pytest

#: Exported by Debian's RabbitMQ 3.10.8 (GET /api/definitions).
EXPORTED = json.loads((Path(__file__).parent / "rabbitmq-3.10-definitions.json").read_text())
KINDS = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "queues",
    "exchanges",
    "bindings",
)


def sorted_items(items: Any) -> list[str]:
    return sorted(json.dumps(item, sort_keys=True) for item in items)


@pytest.fixture(scope="module")
def imported(api) -> Any:
    """What came of the import, and the report on it."""
    before = {one["name"] for one in api.get("vhosts")}
    assert before == {"/"}
    answer = api.ask("POST", "definitions", EXPORTED)
    return answer, api.get("definitions-import")


def test_all_of_it_is_there(api, imported) -> None:
    answer, report = imported
    assert answer.status == 204
    total = sum(len(EXPORTED[kind]) for kind in KINDS) + 1  # a global parameter
    assert report["state"] == "done"
    assert (report["total"], report["imported"], report["refused"]) == (total, total, [])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exported_is_what_was_imported(api, imported, kind: str) -> None:
    assert sorted_items(api.get("definitions")[kind]) == sorted_items(EXPORTED[kind])


def test_a_second_import_of_the_same_changes_nothing(api, imported) -> None:
    before = api.get("definitions")
    assert api.ask("POST", "definitions", EXPORTED).status == 204
    assert api.get("definitions") == before


def test_a_vhost_is_exported_without_its_name_and_read_into_another(api, imported, vhost: str) -> None:
    api.do("PUT", f"vhosts/{vhost}")
    found = api.get("definitions/v1")
    assert [queue["name"] for queue in found["queues"]] == ["a/b", "q1", "q2", "q3"]
    assert all("vhost" not in item for kind in ("queues", "exchanges", "bindings") for item in found[kind])
    assert api.ask("POST", f"definitions/{vhost}", found).status == 204
    again = api.get(f"definitions/{vhost}")
    for kind in ("queues", "exchanges", "bindings"):
        assert sorted_items(again[kind]) == sorted_items(found[kind])
    assert [one["name"] for one in again["policies"]] == ["p1"]


def test_limits_of_a_vhost_go_out_and_in(api, vhost: str) -> None:
    api.do("PUT", f"vhosts/{vhost}")
    limits = {"vhost": vhost, "component": "vhost-limits", "name": "limits", "value": {"max-queues": 3}}
    assert api.ask("POST", "definitions", {"parameters": [limits]}).status == 204
    assert api.get(f"vhost-limits/{vhost}") == [{"vhost": vhost, "value": {"max-queues": 3}}]
    assert api.get(f"definitions/{vhost}")["parameters"] == [limits]


def test_every_refusal_is_named_and_the_rest_is_imported(api, vhost: str) -> None:
    answer = api.ask(
        "POST",
        "definitions",
        {
            "users": [
                {
                    "name": "old",
                    "password_hash": "",
                    "hashing_algorithm": "rabbit_password_hashing_md5",
                    "tags": "",
                },
                {"name": "odd", "password_hash": "xx", "tags": "administrator"},
            ],
            "vhosts": [{"name": "no such name"}],
            "permissions": [{"user": "x", "vhost": "nope", "configure": "", "write": "", "read": ""}],
            "parameters": [{"component": "shovel", "vhost": "/", "name": "s", "value": {}}],
            "global_parameters": [{"name": "mine", "value": 1}, {"name": "internal_cluster_id", "value": "x"}],
            "queues": [
                {"name": "fine", "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}},
                {"name": "bad", "vhost": vhost, "durable": True, "arguments": {"x-max-priority": -1}},
                {"vhost": vhost},
            ],
            "exchanges": [{"name": "e", "vhost": vhost, "type": "x-consistent-hash", "durable": True}],
            "bindings": [
                {"source": "amq.topic", "vhost": vhost, "destination": "none", "routing_key": "k"},
                {"source": "amq.topic", "vhost": vhost, "destination": "fine", "routing_key": "k"},
            ],
        },
    )
    assert answer.status == 400
    refused = api.get("definitions-import")["refused"]
    assert [one.partition(":")[0] for one in refused] == [
        "user 'old'",
        "user 'odd'",
        "vhost 'no such name'",
        "permission 'x' in nope",
        "parameter 's' in /",
        "global parameter 'mine'",
        f"exchange 'e' in {vhost}",
        f"queue 'bad' in {vhost}",
        f"queue '' in {vhost}",
        f"binding 'amq.topic' to 'none' in {vhost}",
    ]
    assert all(one in answer.json["reason"] for one in refused)
    assert [one["source"] for one in api.get(f"queues/{vhost}/fine/bindings")] == ["", "amq.topic"]


def test_a_user_of_the_file_gets_in_with_its_password(api, start_weir) -> None:
    """The hash is of `y`, as RabbitMQ made it."""
    guarded = start_weir(
        "auth.authenticate=true", "auth.authorise=true", "auth.allow_anonymous=true", "auth.superusers=anonymous"
    )
    root = api.__class__(guarded, None)
    root.ask("POST", "definitions", EXPORTED)
    assert root.as_user("ann", "y").get("whoami") == {"name": "ann", "tags": ["monitoring"]}
    assert root.as_user("ann", "x").ask("GET", "whoami").status == 401
    assert root.as_user("guest", "guest").get("whoami")["tags"] == ["administrator"]
