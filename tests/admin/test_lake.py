"""The lake's catalogs: what a tenant's administrator may say of them, which is a name and no more."""

import json
from typing import Any

import pytest

from .test_access import WITH_TOKENS, prepare, token

CATALOGS, LAKE = "/admin/weir/v1/lake-catalogs", "/admin/weir/v1/lake"
NS = "namespaces/acme/orders"
BUCKET = {
    "to": "s3://lake/weir",
    "catalog": "http://catalog:8181",
    "options": {"s3.endpoint": "http://minio:9000"},
}


@pytest.fixture(scope="module")
def guarded(start_weir: Any) -> Any:
    found = start_weir(*WITH_TOKENS)
    prepare(found)
    found.do("PUT", f"{CATALOGS}/archive", {**BUCKET, "tenants": ["acme"]}, token=token("admin"))
    found.do("PUT", f"{CATALOGS}/theirs", {**BUCKET, "tenants": ["emca"]}, token=token("admin"))
    return found


def said(weir: Any, **properties: str) -> Any:
    return weir.ask("PUT", f"{NS}/properties", properties, token=token("owner"))


def shown(weir: Any, role: str = "owner") -> Any:
    return weir.do("GET", f"{LAKE}/acme/orders", token=token(role))


#: What a tenant's administrator stored to run commands, reach addresses and write files where the runner and the
#: brokers may.
ATTACKS = [
    {
        "to": "file:///tmp/x",
        "catalog": "sqlite:////tmp/x.db",
        "options": {"py-io-impl": "subprocess.Popen", "location": "id"},
    },
    {"to": "file:///etc", "catalog": "sqlite:////etc/x.db"},
    {"to": "s3://lake/weir", "catalog": "http://169.254.169.254/latest/meta-data"},
    {"catalog": "archive", "options": {"py-io-impl": "subprocess.Popen"}},
    {"catalog": "archive", "to": "file:///etc", "tieredAfterMs": 0},
    {"catalog": "archive", "tieredAfterMs": -5},
    {"catalog": "archive", "tieredAfterMs": "0"},
    {"catalog": "archive", "keepMs": True},
    {"catalog": "archive", "py-io-impl": "os.system"},
    {"catalog": "theirs"},
    {"catalog": "sqlite:////etc/x.db"},
    {"catalog": "../archive"},
    {"catalog": None},
    {"catalog": ["archive"]},
    {},
    [],
    "archive",
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
@pytest.mark.parametrize("name", ["lake", "lake.orders"])
def test_a_tenants_administrator_names_a_catalog_and_nothing_else(guarded: Any, attack: Any, name: str) -> None:
    answer = said(guarded, **{name: json.dumps(attack)})
    assert answer.status == 412, answer.body
    assert shown(guarded)["every"] is None
    body = {"properties": {name: json.dumps(attack)}}
    assert guarded.ask("PUT", "namespaces/acme/new", body, token=token("owner")).status == 412
    assert guarded.ask("PUT", f"{NS}/property/{name}/what", token=token("owner")).status == 412


def test_a_tenants_administrator_selects_a_catalog_by_its_name(guarded: Any) -> None:
    text = json.dumps({"catalog": "archive", "keepMs": 5, "tieredAfterMs": 0})
    assert said(guarded, lake=text, **{"lake.not-this": "off"}).status == 204
    found = shown(guarded)
    assert found["every"] == {
        "off": False,
        "name": "archive",
        **BUCKET,
        "keepMs": 5,
        "tieredAfterMs": 0,
        "problem": "",
    }
    assert found["topics"]["not-this"]["off"]
    assert len(found["owner"]) == 32
    assert guarded.do("GET", LAKE, token=token("owner")) == [found]
    assert guarded.do("GET", LAKE, token=token("stranger")) == []
    refused = guarded.ask("DELETE", f"{CATALOGS}/archive", token=token("admin"))
    assert refused.status == 409
    assert b"acme/orders" in refused.body
    for name in ("lake", "lake.not-this"):
        assert guarded.ask("DELETE", f"{NS}/property/{name}", token=token("owner")).status == 200
    assert guarded.do("GET", LAKE, token=token("owner")) == []


def test_the_owner_of_tables_is_the_servers_word(guarded: Any) -> None:
    text = json.dumps({"catalog": "archive"})
    guarded.do("DELETE", f"{NS}/properties", token=token("owner"))
    assert said(guarded, **{"lake": text, "lake-owner": "../../../etc"}).status == 204
    owner = shown(guarded)["owner"]
    assert len(owner) == 32
    assert said(guarded, **{"lake": text, "lake-owner": "f" * 32}).status == 412
    assert said(guarded, **{"lake": text, "lake-owner": owner}).status == 204
    assert shown(guarded)["owner"] == owner
    assert guarded.ask("DELETE", f"{NS}/property/lake", token=token("owner")).status == 200


def test_only_a_superuser_defines_and_sees_catalogs(guarded: Any) -> None:
    for role in ("owner", "reader", "stranger"):
        assert guarded.ask("PUT", f"{CATALOGS}/mine", BUCKET, token=token(role)).status == 403
        assert guarded.ask("DELETE", f"{CATALOGS}/archive", token=token(role)).status == 403
    nothing = {"to": None, "catalog": None, "options": None, "tenants": None}
    # The built-in one is beside the broker's data.
    assert guarded.do("GET", CATALOGS, token=token("owner")) == [
        {"name": "archive", "kind": "rest", **nothing},
        {"name": "default", "kind": "sql", **nothing},
    ]
    assert guarded.do("GET", CATALOGS, token=token("stranger")) == []
    listed = guarded.do("GET", CATALOGS, token=token("admin"))
    assert [one["name"] for one in listed] == ["archive", "default", "theirs"]
    assert listed[0] == {"name": "archive", "kind": "rest", **BUCKET, "tenants": ["acme"]}


@pytest.mark.parametrize(
    "options",
    [
        {"py-io-impl": "subprocess.Popen"},
        {"py-catalog-impl": "subprocess.Popen"},
        {"s3.retry-strategy-impl": "os.system"},
        {"s3.signer": "evil"},
        {"auth": "x"},
        {"ssl": "x"},
        {"s3.secret-access-key": "x"},
        {"echo": "x"},
        {"type": "hive"},
        {"s3.endpoint": "a\nb"},
    ],
    ids=str,
)
def test_an_option_that_is_on_no_list_is_refused_to_a_superuser_too(guarded: Any, options: dict[str, str]) -> None:
    for catalog in ("http://catalog", "sqlite:////srv/lake.db", "postgresql://weir@db/lake"):
        body = {"to": "s3://lake", "catalog": catalog, "options": options}
        assert guarded.ask("PUT", f"{CATALOGS}/odd", body, token=token("admin")).status == 412


@pytest.mark.parametrize("to", ["/etc", "ftp://x", "file://host/x", "file:///a/../b", "s3:///x", "s3://a?b", ""])
def test_a_place_that_is_none_is_refused(guarded: Any, to: str) -> None:
    body = {"to": to, "catalog": "http://catalog"}
    assert guarded.ask("PUT", f"{CATALOGS}/odd", body, token=token("admin")).status == 412


def test_what_an_older_weir_stored_counts_only_if_a_superuser_defined_the_same(guarded: Any) -> None:
    """Stored before there were named catalogs: put into the metadata past the route."""
    registry, namespaces = guarded.up.composed.registry, guarded.up.composed.registry.namespaces
    name = next(one for one in namespaces.names("acme") if one.name == "orders")

    async def store(properties: dict[str, str]) -> None:
        await registry.change_properties(name, lambda now: properties)

    old = {"to": BUCKET["to"], "catalog": BUCKET["catalog"], "options": BUCKET["options"], "tieredAfterMs": 7}
    guarded.run(lambda: store({"lake": json.dumps(old), "lake-owner": "a" * 32}))
    assert shown(guarded)["every"]["name"] == "archive"
    for attack in ATTACKS[:5]:
        guarded.run(lambda attack=attack: store({"lake": json.dumps(attack), "lake-owner": "../x"}))
        found = shown(guarded)
        assert found["owner"] == ""
        assert found["every"]["to"] is None
        assert "catalog" in found["every"]["problem"]
    guarded.run(lambda: store({}))


def test_a_namespace_loses_a_catalog_that_its_tenant_may_no_longer_select(guarded: Any) -> None:
    assert said(guarded, lake=json.dumps({"catalog": "archive"})).status == 204
    guarded.do("PUT", f"{CATALOGS}/archive", {**BUCKET, "tenants": ["emca"]}, token=token("admin"))
    found = shown(guarded)["every"]
    assert found["to"] is None
    assert "may select no lake catalog 'archive'" in found["problem"]
    guarded.do("PUT", f"{CATALOGS}/archive", {**BUCKET, "tenants": ["acme"]}, token=token("admin"))
    assert shown(guarded)["every"]["to"] == BUCKET["to"]
    assert guarded.ask("DELETE", f"{NS}/property/lake", token=token("owner")).status == 200
