"""Who one is by HTTP's basic authentication, and what RabbitMQ's tags and permissions let one do."""

import base64
import http.client
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.security.tokens import create_secret, create_token

SECRET = create_secret()
SETTINGS = (
    "auth.authenticate=true",
    "auth.authorise=true",
    "auth.superusers=root",
    f"auth.token_secret=data:;base64,{base64.b64encode(SECRET).decode()}",
)


@pytest.fixture(scope="module")
def root(api_of: Callable[..., Any], start_weir: Callable[..., Any]) -> Any:
    """The API for a superuser who comes with a token as the password."""
    return api_of(start_weir(*SETTINGS), "whoever", create_token(SECRET, "root"))


@pytest.fixture
def user(root, unique: str) -> Callable[..., Any]:
    """Makes a user with tags, and permissions in the default vhost."""

    def make(tags: str, *patterns: str) -> Any:
        root.do("PUT", f"users/{unique}", {"password": "secret", "tags": tags})
        if patterns:
            body = dict(zip(("configure", "write", "read"), patterns, strict=True))
            root.do("PUT", f"permissions/%2F/{unique}", body)
        return root.as_user(unique, "secret")

    return make


def test_a_token_is_a_password_and_a_bearer_token_is_one(root) -> None:
    assert root.get("whoami") == {"name": "root", "tags": ["administrator"]}
    address = root.weir.up.addresses["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    connection.request("GET", "/api/whoami", headers={"authorization": f"Bearer {root.password}"})
    assert b'"root"' in connection.getresponse().read()
    connection.close()


def test_wrong_credentials_and_none_are_asked_for_better_ones(root, user) -> None:
    made = user("management")
    assert made.get("whoami")["tags"] == ["management"]
    for wrong in (root.as_user(None), root.as_user("nobody", "x"), made.as_user(made.user, "wrong")):
        answer = wrong.ask("GET", "overview")
        assert (answer.status, answer.json["error"]) == (401, "not_authorized")
        assert answer.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'
    assert "www-authenticate" not in root.weir.ask("GET", "/admin/v2/tenants").headers


def test_users_are_known_to_the_rest_of_the_admin_api(root, user) -> None:
    made = user("", ".*", ".*", ".*")
    address = root.weir.up.addresses["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    said = base64.b64encode(f"{made.user}:secret".encode()).decode()
    path = "/admin/v2/persistent/public/default"
    connection.request("GET", path, headers={"authorization": f"Basic {said}"})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_user_without_tags_may_not_use_the_api(user) -> None:
    answer = user("", ".*", ".*", ".*").ask("GET", "queues")
    assert (answer.status, answer.json) == (401, {"error": "not_authorised", "reason": "Not management user"})


def test_an_administrator_may_everything_until_the_tag_is_gone(root, user, unique: str) -> None:
    made = user("administrator")
    assert made.ask("PUT", f"vhosts/{unique}").status == 201
    assert made.get("users/" + unique)["tags"] == ["administrator"]
    root.do("PUT", f"users/{unique}", {"password": "secret", "tags": "monitoring"})
    assert made.ask("GET", "users").json["reason"] == "Not administrator user"
    assert made.ask("GET", "nodes").status == 200
    assert unique in [one["name"] for one in made.get("vhosts")]
    root.do("PUT", f"users/{unique}", {"password": "secret", "tags": "management"})
    assert made.ask("GET", "nodes").json["reason"] == "Not monitor user"
    assert made.get("vhosts") == []
    assert made.ask("GET", f"vhosts/{unique}").json["reason"] == "User not authorised to access virtual host"


def test_patterns_say_what_may_be_configured_written_and_read(root, user, unique: str) -> None:
    made = user("management", f"^{unique}", f"^({unique}|amq.topic)", f"^{unique}$")
    assert made.ask("PUT", f"queues/%2F/{unique}", {"durable": True}).status == 201
    assert made.ask("PUT", f"queues/%2F/{unique}-2", {"durable": True}).status == 201
    refused = made.ask("PUT", "queues/%2F/other", {"durable": True})
    assert (refused.status, refused.json["reason"]) == (401, "Access refused.")
    assert made.publish("%2F", "amq.default", unique)
    assert made.publish("%2F", "amq.default", f"{unique}-2")
    assert len(made.take("%2F", unique)) == 1
    assert made.ask("POST", f"queues/%2F/{unique}-2/get", {"ackmode": "ack_requeue_true"}).status == 401
    assert made.ask("DELETE", f"queues/%2F/{unique}-2/contents").status == 401
    assert made.ask("DELETE", "queues/%2F/other").status == 401
    assert unique in [one["name"] for one in made.get("queues/%2F")]
    assert made.ask("PUT", f"policies/%2F/{unique}", {"pattern": "x", "definition": {}}).status == 401
    assert root.get(f"permissions/%2F/{unique}")["configure"] == f"^{unique}"
    root.do("DELETE", f"permissions/%2F/{unique}")
    assert made.ask("GET", "queues/%2F").status == 401
    for queue in (unique, f"{unique}-2"):
        root.do("DELETE", f"queues/%2F/{queue}")


def test_a_policymaker_sets_policies_and_no_operators_policies(user, unique: str) -> None:
    made = user("policymaker", "", "", "^none$")
    body = {"pattern": f"^{unique}", "definition": {"max-length": 5}}
    assert made.ask("PUT", f"policies/%2F/{unique}", body).status == 201
    assert made.ask("PUT", f"operator-policies/%2F/{unique}", body).status == 401
    assert made.ask("DELETE", f"policies/%2F/{unique}").status == 204


def test_grants_of_the_admin_api_are_listed_as_patterns(root, unique: str) -> None:
    ask = root.weir.do
    for scope, actions in (
        ("namespaces/public/default", ["produce"]),
        ("persistent/public/default/a.b", ["consume"]),
        ("persistent/public/default/c", ["consume"]),
    ):
        ask("POST", f"{scope}/permissions/{unique}", actions, token=root.password)
    assert root.get(f"permissions/%2F/{unique}") == {
        "user": unique,
        "vhost": "/",
        "configure": "^$",
        "write": ".*",
        "read": r"^(a\.b|c)$",
    }
    root.do("PUT", f"permissions/%2F/{unique}", {"configure": ".*", "write": ".*", "read": ".*"})
    granted = ask("GET", "persistent/public/default/c/permissions", token=root.password)[unique]
    assert granted == ["produce", "consume"]
    root.do("DELETE", f"permissions/%2F/{unique}")
    assert unique not in ask("GET", "persistent/public/default/c/permissions", token=root.password)


def test_a_deleted_user_has_no_permissions_left_for_the_next_of_its_name(root, user, unique: str) -> None:
    user("management", ".*", ".*", ".*")
    root.do("DELETE", f"users/{unique}")
    assert root.ask("GET", f"permissions/%2F/{unique}").status == 404
    made = user("management")
    assert made.ask("GET", "queues/%2F").status == 401


def test_passwords_are_never_told_and_hashes_to_superusers_only(root, user, unique: str) -> None:
    made = user("monitoring", ".*", ".*", ".*")
    told = root.ask("GET", f"users/{unique}").body
    assert b"secret" not in told
    assert b"password_hash" in told
    for path in ("users", f"users/{unique}", "definitions"):
        assert made.ask("GET", path).status == 401
