"""Streams, queues, connections, nodes and access, and what a role without rights sees of them."""

import base64
from collections.abc import Callable

import pytest
from tests.admin.conftest import Weir
from tests.console.conftest import Visitor

from weir.broker.security.tokens import create_token

SECRET = bytes(range(64))


@pytest.fixture(scope="module")
def weir(start_weir: Callable[..., Weir]) -> Weir:
    return start_weir("listeners.kafka=127.0.0.1:0", "listeners.amqp=127.0.0.1:0")


@pytest.fixture(scope="module")
def guarded(start_weir: Callable[..., Weir]) -> Weir:
    weir = start_weir(
        "auth.authenticate=true",
        "auth.authorise=true",
        "auth.superusers=root",
        f"auth.token_secret=base64:{base64.b64encode(SECRET).decode()}",
    )
    root = create_token(SECRET, "root")
    for name in ("shop", "bank"):
        tenant = {"adminRoles": [f"{name}-admin"], "allowedClusters": ["standalone"]}
        weir.do("PUT", f"tenants/{name}", tenant, token=root)
        weir.do("PUT", f"namespaces/{name}/main", token=root)
        weir.do("PUT", f"persistent/{name}/main/orders", token=root)
        weir.do("PUT", f"persistent/{name}/main/orders/subscription/work", token=root)
    weir.do("POST", "namespaces/shop/main/permissions/reader", ["consume"], token=root)
    weir.do("POST", "namespaces/shop/main/permissions/writer", ["produce"], token=root)
    weir.do("POST", "persistent/shop/main/orders/permissions/one-topic", ["consume"], token=root)
    return weir


def signed_in(weir: Weir, role: str) -> Visitor:
    visitor = Visitor(weir)
    page = visitor.post("/console/signin", on="/console/signin", token=create_token(SECRET, role), follow=False)
    assert page.status == 303
    return visitor


# --- what there is ----------------------------------------------------------------------------------------------


def test_a_stream_shows_its_sql_and_progress_and_is_paused_resumed_and_dropped(
    visitor: Visitor, weir: Weir, unique: str
) -> None:
    path = f"/admin/weir/v1/streams/public/default/{unique}"
    made = weir.do("PUT", path, {"sql": "SELECT 1 <b>", "sources": ["persistent://public/default/src"]})
    progress = {"id": made["id"], "state": "running", "rows": 1234, "rowsPerSecond": 5.5, "lag": 42}
    weir.do("PUT", f"{path}/progress", progress)
    page = visitor.get("/console/streams")
    assert "SELECT 1 &lt;b&gt;" in page.text
    assert "Lag 42" in page.words
    name = f"persistent://public/default/{unique}"
    assert "shall rest now" in visitor.post("/console/streams/pause", stream=name).words
    assert weir.do("GET", path)["state"] == "paused"
    assert "shall run now" in visitor.post("/console/streams/resume", stream=name).words
    assert "is dropped" in visitor.post("/console/streams/drop", stream=name).words
    assert visitor.post("/console/streams/explode", stream=name).status == 404


def test_queues_and_exchanges_are_listed(visitor: Visitor, weir: Weir, unique: str) -> None:
    weir.do("PUT", f"/api/queues/%2F/{unique}", {"durable": True})
    weir.do("PUT", f"/api/exchanges/%2F/x{unique}", {"type": "topic", "durable": True})
    page = visitor.get(f"/console/queues?q={unique}")
    assert page.text.count(f">{unique}<") == 1
    assert f"x{unique} / topic durable" in page.words


def test_nodes_show_brokers_and_bookies(visitor: Visitor) -> None:
    words = visitor.get("/console/cluster").words
    assert "standalone" in words
    assert "writable" in words
    assert "every ledger has its copies" in words


def test_access_shows_tenants_makes_them_and_grants_and_revokes(visitor: Visitor, weir: Weir, unique: str) -> None:
    assert "is there." in visitor.post("/console/access/tenant", tenant=unique, admins="alice, bob").words
    assert "is there." in visitor.post("/console/access/namespace", tenant=unique, namespace="main").words
    assert weir.do("GET", f"tenants/{unique}")["adminRoles"] == ["alice", "bob"]
    for kind, scope in (
        ("tenant", unique),
        ("namespace", f"{unique}/main"),
        ("topic", f"persistent://{unique}/main/orders"),
    ):
        given = {"kind": kind, "scope": scope, "role": "carol"}
        page = visitor.post("/console/access/grant", **given, consume="yes")
        assert f"carol may consume on {scope}." in page.words
        gone = visitor.post("/console/access/revoke", **given)
        assert "has no grant" in gone.words
    refused = visitor.post(
        "/console/access/grant", kind="tenant", scope=unique, role="carol", back="/console/access"
    )
    assert "choose what the role may do" in refused.words


# --- who may what -----------------------------------------------------------------------------------------------


def test_a_superuser_makes_a_token_that_works(guarded: Weir) -> None:
    page = signed_in(guarded, "root").post("/console/access/token", role="newcomer", days="1")
    made = page.text.split('<pre id="token">')[1].split("<")[0]
    visitor = Visitor(guarded)
    assert visitor.post("/console/signin", on="/console/signin", token=made).status == 200
    assert '<b id="role">newcomer</b>' in visitor.get("/").text


def test_nobody_else_makes_tokens(guarded: Weir) -> None:
    for role in ("shop-admin", "reader"):
        visitor = signed_in(guarded, role)
        assert "Make a token" not in visitor.get("/console/access").words
        page = visitor.post("/console/access/token", role="root", days="0")
        assert page.status == 403
        assert 'id="token"' not in page.text


def test_where_no_key_signs_tokens_none_are_made(visitor: Visitor) -> None:
    assert "Make a token" not in visitor.get("/console/access").words
    assert visitor.post("/console/access/token", role="x", days="1").status == 501


def test_everyone_sees_the_namespaces_that_their_role_may_see(guarded: Weir) -> None:
    for role, sees in (
        ("root", {"shop/main", "bank/main"}),
        ("shop-admin", {"shop/main"}),
        ("reader", {"shop/main"}),
        ("one-topic", {"shop/main"}),
        ("stranger", set()),
    ):
        text = signed_in(guarded, role).get("/console/topics").text
        assert {name for name in ("shop/main", "bank/main") if f">{name}</option>" in text} == sees, role


def test_who_has_a_grant_on_one_topic_sees_that_one(guarded: Weir) -> None:
    guarded.do("PUT", "persistent/shop/main/secret", token=create_token(SECRET, "root"))
    text = signed_in(guarded, "one-topic").get("/console/topics?namespace=shop/main").text
    assert ">orders</a>" in text
    assert "secret" not in text


ORDERS = "/console/topic/persistent/shop/main/orders"


@pytest.mark.parametrize(
    "page", ["", "/messages", "/held", "/subscriptions", "/schema", "/produce", "/deadletters"]
)
def test_who_may_not_know_of_a_topic_gets_none_of_its_pages(guarded: Weir, page: str) -> None:
    shown = signed_in(guarded, "bank-admin").get(f"{ORDERS}{page}")
    assert shown.status == 403
    assert "You may not" in shown.words


@pytest.mark.parametrize(
    ("role", "form", "fields", "status"),
    [
        ("reader", "produce", {"value": "x"}, 403),
        ("reader", "delete", {}, 403),
        ("reader", "empty", {}, 403),
        ("reader", "held/cancel", {"held": "1:1", "partition": "0"}, 403),
        ("reader", "subscriptions/move", {"subscription": "work", "to": "end"}, 200),
        ("reader", "subscriptions/move", {"subscription": "work", "to": "end", "confirmed": "yes"}, 303),
        ("writer", "produce", {"value": "x"}, 303),
        ("writer", "subscriptions/move", {"subscription": "work", "to": "end"}, 403),
        ("writer", "subscriptions/move", {"subscription": "work", "to": "end", "confirmed": "yes"}, 403),
        ("writer", "subscriptions/delete", {"subscription": "work"}, 403),
        ("writer", "again", {"offset": "0", "partition": "0"}, 403),
        ("writer", "redeliver", {"subscription": "work", "offset": "0", "partition": "0"}, 403),
        ("reader", "redeliver", {"subscription": "work", "offset": "0", "partition": "0"}, 303),
        ("bank-admin", "produce", {"value": "x"}, 403),
        ("bank-admin", "deadletters/redrive", {"target": "persistent://bank/main/orders"}, 403),
        ("shop-admin", "produce", {"value": "x"}, 303),
    ],
)
def test_forms_do_what_the_role_may_do(
    guarded: Weir, role: str, form: str, fields: dict[str, str], status: int
) -> None:
    page = signed_in(guarded, role).post(f"{ORDERS}/{form}", follow=False, **fields)
    assert page.status == status


def test_a_redrive_into_a_topic_of_others_is_refused(guarded: Weir) -> None:
    visitor = signed_in(guarded, "shop-admin")
    page = visitor.post(f"{ORDERS}/deadletters/redrive", target="persistent://bank/main/orders")
    assert page.status == 403


@pytest.mark.parametrize("path", ["/console/cluster"])
def test_nodes_are_for_superusers(guarded: Weir, path: str) -> None:
    assert signed_in(guarded, "shop-admin").get(path).status == 403
    assert signed_in(guarded, "root").get(path).status == 200


def test_access_shows_what_one_administers(guarded: Weir) -> None:
    words = signed_in(guarded, "shop-admin").get("/console/access").words
    assert "shop/main" in words
    assert "bank" not in words
    assert "You administer no tenant." in signed_in(guarded, "reader").get("/console/access").words
    assert signed_in(guarded, "shop-admin").post("/console/access/tenant", tenant="mine").status == 403
    given = {"kind": "namespace", "scope": "bank/main", "role": "shop-admin", "consume": "yes"}
    assert signed_in(guarded, "shop-admin").post("/console/access/grant", **given).status == 403


def test_the_overview_names_no_topic_that_is_not_one_s_to_know(guarded: Weir) -> None:
    for role in ("root", "bank-admin"):
        signed_in(guarded, role).get(ORDERS)  # sampled now, if it may be
    assert "shop/main" not in signed_in(guarded, "bank-admin").get("/").words
    assert "shop/main" in signed_in(guarded, "root").get("/").words
