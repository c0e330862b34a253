"""Who may call what: every route, asked by every kind of role."""

import base64
import http.client
import re
from typing import Any

import pytest

from weir.broker.security.tokens import create_secret, create_token
from weir.model.errors import DiskError
from weir.rest.routes import Route

SECRET = create_secret()
WITH_TOKENS = (
    "auth.authenticate=true",
    "auth.authorise=true",
    "auth.superusers=admin",
    f"auth.token_secret=data:;base64,{base64.b64encode(SECRET).decode()}",
)
#: What a role is: everything, a tenant's administrator, or one with a grant on the namespace.
ROLES = {
    "admin": {"superuser", "admin", "produce", "consume", "lookup"},
    "owner": {"admin", "produce", "consume", "lookup"},
    "writer": {"produce", "lookup"},
    "reader": {"consume", "lookup"},
    "stranger": set(),
}
#: RabbitMQ's API: lists show what one may see; to configure takes both to produce and to consume, as here only
#: administrators have it.
_OWN = (
    "overview|cluster-name|whoami|extensions|feature-flags|deprecated-features.*|health.*|connections.*|channels.*"
)
_LISTS = "consumers|exchanges|queues|bindings|vhosts|permissions|policies|operator-policies"
_NOTHING = "parameters|parameters/{component}|global-parameters|vhost-limits|user-limits.*|topic-permissions"
_OF_USERS = "users/{user}/(topic-)?permissions"
MANAGEMENT_RULES = [
    ("anyone", rf"GET /api/({_OWN}|{_LISTS}|{_NOTHING}|{_OF_USERS})"),
    ("anyone", r"DELETE /api/connections/{name}"),
    ("superuser", r"DELETE /api/connections/username/.*"),
    ("superuser", r"PUT /api/(cluster-name|.*parameters.*|user-limits.*)"),
    ("superuser", r".* /api/(nodes.*|users.*|definitions(-import)?)"),
    ("consume", r"(POST|DELETE) /api/queues/{vhost}/{name}/(get|contents)"),
    ("produce", r"POST /api/exchanges/{vhost}/{name}/publish"),
    ("admin", r"GET /api/(aliveness-test/.*|definitions/.*|permissions/.*|vhosts/{vhost}/(topic-)?permissions)"),
    ("admin", r"GET /api/topic-permissions/.*"),
    ("lookup", r"GET /api/.*"),
]
#: What it takes, by the first rule that fits; all else is for administrators of the tenant.
RULES = [
    *MANAGEMENT_RULES,
    ("lookup", r".* /admin/weir/v1/sinks/.*"),  # every role that may do anything has its own
    ("open", r"GET (/(openapi.json|metrics|ready|status.html)|.*/brokers/(version|ready)|.*/instance)"),
    ("open", r"GET /admin/v2/clusters"),
    ("superuser", r".* /admin/v2/(brokers|broker-stats|clusters|tenants)\b.*"),
    ("anyone", r"GET /admin/weir/v1/(rates|connections)"),
    ("lookup", r"GET /admin/weir/v1/history/.*"),
    ("lookup", r"GET /admin/weir/v1/overviews/.*"),
    ("anyone", r"POST /admin/weir/v1/overviews"),  # of the topics that one may know of
    ("consume", r"GET /admin/weir/v1/messages/.*"),
    ("produce", r"POST /admin/weir/v1/messages/.*"),
    (
        "anyone",
        r"GET /admin/weir/v1/"
        r"(addresses|streams|replays|connectors|functions|groups|(stream|connector|function)-runner)",
    ),  # those that one may use
    (
        "superuser",
        r".* /admin/weir/v1/(clients/.*|cluster.*|(stream|connector)-runner.*|(streams|connectors)/.*/progress)",
    ),
    ("superuser", r"GET /admin/weir/v1/access-keys/.*"),
    ("anyone", r"GET /admin/weir/v1/(lake|lake-catalogs)"),  # what one administers, and may select
    ("superuser", r".* /admin/weir/v1/lake-catalogs/.*"),
    (
        "superuser",
        r"(PUT|POST) /admin/weir/v1/connectors/{tenant}/{namespace}/{topic}",
    ),  # with files and secrets there
    ("superuser", r".* /admin/weir/v1/(function-runner.*|functions/.*/stats)"),
    ("superuser", r"(POST|PUT) /admin/weir/v1/functions/[^/]*/[^/]*/[^/]*"),
    ("lookup", r"GET /admin/weir/v1/(group-settings|message-types)/.*"),
    ("lookup", r"GET /lookup/.*"),
    ("lookup", r"GET /admin/v2/(non-)?persistent/{tenant}/{namespace}(/partitioned)?"),
    ("lookup", r"GET /admin/v2/namespaces/{tenant}/{namespace}/topics"),
    ("lookup", r"GET .*/{topic}/(partitions|(partitioned-)?(stats|internalStats)|properties|lastMessageId)"),
    ("lookup", r"GET /admin/v2/schemas/.*"),
    (
        "consume",
        r".*/{topic}/(subscriptions|(all_)?subscription/.*|ledger/.*|examinemessage|messageid/.*|backlog)",
    ),
    ("consume", r"PUT .*/backlogSize"),
    ("consume", r"POST .*/{namespace}/({bundle}/)?(clearBacklog|unsubscribe).*"),
    ("consume", r".* /admin/weir/v1/backlog/.*"),
    (
        "admin",
        r"(PUT|DELETE) /admin/weir/v1/replays/.*",
    ),  # or who began it
    ("consume", r".* /admin/weir/v1/(replays|offsets|waiting|found|trace|traces|groups|unread)/.*"),
    ("consume", r"GET /admin/weir/v1/held/.*"),
    ("consume", r".* /admin/weir/v1/dead-letters/.*"),
    ("produce", r".*/admin/weir/v1/(held|half)/.*"),
]
PATH = {
    "tenant": "acme",
    "namespace": "orders",
    "topic": "none",
    "cluster": "standalone",
    "held": "1:1",
    "half": "1:1",
    "bundle": "0x00000000_0x40000000",
    "broker": "standalone",
    "vhost": "acme%2Forders",
    **dict.fromkeys(
        ("position", "count", "offset", "seconds", "timestamp", "ledger", "entry", "version", "epoch"), "1"
    ),
}


def token(role: str) -> str:
    return create_token(SECRET, role)


@pytest.fixture(scope="module")
def guarded(start_weir) -> Any:
    return start_weir(*WITH_TOKENS)


def prepare(weir: Any) -> None:
    tenant = {"adminRoles": ["owner"], "allowedClusters": ["standalone"]}
    weir.ask("PUT", "tenants/acme", tenant, token=token("admin"))
    weir.ask("POST", "tenants/acme", tenant, token=token("admin"))
    weir.ask("PUT", "namespaces/acme/orders", token=token("owner"))
    weir.ask("POST", "namespaces/acme/orders/permissions/reader", ["consume"], token=token("owner"))
    weir.ask("POST", "namespaces/acme/orders/permissions/writer", ["produce"], token=token("owner"))


def sample(schema: dict[str, Any], components: dict[str, Any]) -> Any:
    """A body that fits."""
    if "$ref" in schema:
        return sample(components[schema["$ref"].rsplit("/", 1)[1]], components)
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], components)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        return {name: sample(fields[name], components) for name in schema.get("required", ())}
    return {"array": [], "integer": 1, "number": 0.5, "boolean": True, "string": "x"}[schema.get("type", "string")]


def level_of(verb: str, template: str) -> str:
    label = f"{verb} {template}"
    return next((level for level, rule in RULES if re.fullmatch(rule, label)), "admin")


def test_every_route_asks_for_the_right_that_it_needs(guarded) -> None:
    document = guarded.ask("GET", "/openapi.json").json
    wrong, levels, changed = [], [], True
    for template, verbs in document["paths"].items():
        path = re.sub(r"{(\w+)}", lambda found: PATH.get(found[1], "x"), template)
        for verb, operation in verbs.items():
            level = level_of(verb.upper(), template)
            levels.append(level)
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            body = None if content is None else sample(content["schema"], document["components"]["schemas"])
            if changed:
                prepare(guarded)
            changed = verb != "get"
            for role, rights in reversed(ROLES.items()) if level != "anyone" else ():
                status = guarded.ask(verb.upper(), path, body, token=token(role)).status
                if (status in (401, 403)) != (level != "open" and level not in rights):
                    wrong.append(f"{verb.upper()} {template} by {role} ({level}): {status}")
            status = guarded.ask(verb.upper(), path, body).status
            if (status == 401) != (level != "open"):
                wrong.append(f"{verb.upper()} {template} by nobody ({level}): {status}")
    assert not wrong, "\n".join(wrong)
    assert {"anyone", "open", "superuser", "admin", "lookup", "consume", "produce"} == set(levels)


#: Names that there are, and of the same length names that there are not; each row names more that is missing.
THERE = {
    "tenant": "acme",
    "namespace": "orders",
    "topic": "there",
    "subscription": "sub",
    "sink": "sink0",
    "vhost": "acme%2Forders",
    "name": "there",
    "source": "amq.topic",
    "destination": "there",
}
#: The same for RabbitMQ's API.
_NO_QUEUE = {"name": "gone!", "destination": "gone!"}
_NO_VHOST = {**_NO_QUEUE, "vhost": "acme%2Fsredro", "source": "amq.gone!"}
MISSING = [
    {**THERE, **_NO_QUEUE, "subscription": "bus", "sink": "sink1"},
    {**THERE, **_NO_QUEUE, "topic": "gone!", "subscription": "bus", "sink": "sink2"},
    {**THERE, **_NO_VHOST, "namespace": "sredro", "topic": "gone!", "subscription": "bus", "sink": "sink3"},
    {
        **_NO_VHOST,
        "tenant": "emca",
        "namespace": "sredro",
        "topic": "gone!",
        "subscription": "bus",
        "sink": "sink4",
        "vhost": "emca%2Fsredro",
    },
]


def unnamed(answer: Any, names: dict[str, str]) -> str:
    """An answer with what it was asked for left out."""
    text = f"{answer.status} {answer.body.decode()}"
    for word in names.values():
        text = text.replace(word, "NAME")
    return text


@pytest.mark.parametrize("role", ["stranger", "neighbour"])
def test_what_is_not_allowed_looks_like_what_is_not_there(guarded, role: str) -> None:
    """Every route, asked for names that there are, and for names that there are not, by a role without grants, and
    by one that was granted something else."""
    prepare(guarded)
    guarded.ask("PUT", "namespaces/public/default", token=token("admin"))
    for action in ("produce", "consume"):
        path = f"persistent/public/default/{action}/permissions/neighbour"
        assert guarded.ask("POST", path, [action], token=token("admin")).status == 204
    guarded.ask("PUT", "persistent/acme/orders/there", token=token("owner"))
    guarded.ask("PUT", "persistent/acme/orders/there/subscription/sub", token=token("owner"))
    guarded.ask("POST", "/admin/weir/v1/sinks/sink0/epochs/7", {"transactions": []}, token=token("owner"))
    document = guarded.ask("GET", "/openapi.json").json
    wrong, asked = [], 0
    for template, verbs in document["paths"].items():
        if "{" not in template:
            continue
        for verb, operation in verbs.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            body = None if content is None else sample(content["schema"], document["components"]["schemas"])

            def ask(names: dict[str, str], verb: str = verb, template: str = template, body: Any = body) -> str:
                path = re.sub(r"{(\w+)}", lambda found: {**PATH, **names}.get(found[1], "x"), template)
                return unnamed(guarded.ask(verb.upper(), path, body, token=token(role)), names)

            there = ask(THERE)
            told = [(there, ask(names)) for names in MISSING]
            wrong += [f"{verb.upper()} {template}: {one} {other}" for one, other in told if one != other]
            asked += 1
    assert not wrong, "\n".join(wrong)
    assert asked > 100


def test_every_role_has_its_own_sinks_and_a_stranger_none(guarded) -> None:
    """Nobody can take a sink's name so that another is refused, and nobody learns of another's."""
    prepare(guarded)
    sink = "/admin/weir/v1/sinks/copy"
    empty: dict[str, Any] = {"transactions": []}
    for verb, path, body in (("GET", sink, None), ("DELETE", sink, None), ("POST", f"{sink}/epochs/9", empty)):
        assert guarded.ask(verb, path, body, token=token("stranger")).status == 403
    assert guarded.ask("POST", f"{sink}/epochs/1", empty, token=token("reader")).status == 200
    assert guarded.ask("GET", sink, token=token("writer")).json == {"epoch": -1}
    assert guarded.ask("DELETE", sink, token=token("writer")).status == 204
    assert guarded.ask("POST", f"{sink}/epochs/2", empty, token=token("writer")).json == {
        "committed": True,
        "epoch": 2,
    }
    assert guarded.ask("GET", sink, token=token("reader")).json == {"epoch": 1}
    assert guarded.ask("GET", sink, token=token("admin")).json == {"epoch": 1}
    assert guarded.ask("GET", "/admin/weir/v1/sinks/writer%2Fcopy", token=token("admin")).json == {"epoch": 2}


@pytest.mark.parametrize("given", ["nonsense", "", "a.b.c"])
def test_a_token_that_is_none_is_refused(guarded, given: str) -> None:
    assert guarded.ask("GET", "tenants", token=given).status == 401


def test_a_token_of_another_signer_is_refused(guarded) -> None:
    assert guarded.ask("GET", "tenants", token=create_token(create_secret(), "admin")).status == 401


def test_a_grant_on_one_topic_is_one_on_that_topic_only(guarded) -> None:
    prepare(guarded)
    for topic in ("one", "two"):
        guarded.do("PUT", f"persistent/acme/orders/{topic}", token=token("owner"))
    guarded.do("POST", "persistent/acme/orders/one/permissions/al", ["consume"], token=token("owner"))
    assert guarded.ask("GET", "persistent/acme/orders/one/stats", token=token("al")).status == 200
    assert guarded.ask("GET", "persistent/acme/orders/two/stats", token=token("al")).status == 403
    assert guarded.ask("GET", "persistent/acme/orders", token=token("al")).status == 403
    guarded.do("DELETE", "persistent/acme/orders/one/permissions/al", token=token("owner"))
    assert guarded.ask("GET", "persistent/acme/orders/one/stats", token=token("al")).status == 403


def test_administrators_of_one_tenant_are_strangers_to_the_others(guarded) -> None:
    prepare(guarded)
    guarded.ask("PUT", "tenants/other", {"allowedClusters": ["standalone"]}, token=token("admin"))
    for verb, path in [
        ("GET", "namespaces/other"),
        ("PUT", "namespaces/other/x"),
        ("PUT", "persistent/other/x/t"),
        ("GET", "tenants/other"),
        ("GET", "namespaces/nowhere"),
    ]:
        assert guarded.ask(verb, path, token=token("owner")).status == 403, path


def test_what_is_open_is_open_to_those_without_credentials(guarded) -> None:
    assert guarded.ask("GET", "/metrics").status == 200
    assert guarded.ask("GET", "clusters").json == ["standalone"]
    assert guarded.ask("GET", "/status.html").body == b"OK"


def test_everybody_knows_the_listeners_and_lists_the_streams_that_they_administer(guarded) -> None:
    prepare(guarded)
    guarded.do("PUT", "/admin/weir/v1/streams/acme/orders/s", {"sql": "x", "sources": []}, token=token("owner"))
    seen = {role: guarded.do("GET", "/admin/weir/v1/streams", token=token(role)) for role in ROLES}
    assert [role for role, streams in seen.items() if streams] == ["admin", "owner"]
    told = {role: guarded.do("GET", "/admin/weir/v1/addresses", token=token(role)) for role in ROLES}
    assert all(one["http"] == told["admin"]["http"] for one in told.values())
    assert [role for role, one in told.items() if one["data"]] == ["admin"]
    allowed = {role: guarded.do("GET", "/admin/weir/v1/stream-runner", token=token(role)) for role in ROLES}
    assert [role for role, one in allowed.items() if one["allowed"]] == ["admin"]
    guarded.do("DELETE", "/admin/weir/v1/streams/acme/orders/s", token=token("owner"))


def test_credentials_of_an_unknown_kind_are_refused(start_weir) -> None:
    """Whoever comes with them meant to be somebody, also where one may come as nobody."""
    weir = start_weir(*WITH_TOKENS, "auth.allow_anonymous=true", "auth.anonymous_role=admin")
    address = weir.up.addresses["http"]

    def status(**headers: str) -> int:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
        connection.request("GET", "/admin/v2/tenants", headers=headers)
        answer = connection.getresponse().status
        connection.close()
        return answer

    assert status() == 200
    assert status(authorization=f"bearer {token('admin')}") == 200
    for header in ("Basic YWRtaW46eA==", "Negotiate x", "Bearer", "Bearer x", token("admin")):
        assert status(authorization=header) == 401, header


@pytest.mark.parametrize("authorise", ["true", "false"])
def test_only_superusers_see_where_the_data_is(start_weir, authorise: str) -> None:
    weir = start_weir(*WITH_TOKENS, f"auth.authorise={authorise}")
    addresses = "/admin/weir/v1/addresses"
    assert weir.do("GET", addresses, token=token("admin"))["data"]
    assert weir.do("GET", addresses, token=token("stranger"))["data"] == ""


def test_where_nobody_is_asked_everybody_sees_where_the_data_is(weir) -> None:
    assert weir.do("GET", "/admin/weir/v1/addresses")["data"]


async def test_a_failed_disk_is_not_told_by_its_paths(serve) -> None:
    async def fail(call: object) -> None:
        raise DiskError("/var/lib/weir/journal/7: Input/output error")

    status, body = await (await serve([Route("GET", "/x", "Fails.", fail)])).call("GET", "/x")
    assert status == 500
    assert "/var/lib" not in body["reason"]


def test_a_replay_is_begun_by_who_may_read_write_and_administer_and_seen_by_who_may_read(guarded) -> None:
    prepare(guarded)
    guarded.ask("POST", "namespaces/acme/orders/permissions/both", ["produce", "consume"], token=token("owner"))
    for topic in ("from", "to"):
        guarded.ask("PUT", f"persistent/acme/orders/{topic}", token=token("owner"))
    guarded.ask("PUT", "persistent/public/default/elsewhere", token=token("admin"))
    every, one = "/admin/weir/v1/replays", "/admin/weir/v1/replays/acme/orders/from/r1"

    def begin(role: str, **body: str) -> int:
        return int(guarded.ask("PUT", one, body, token=token(role)).status)

    into = {"target": "persistent://acme/orders/to"}
    assert {begin(role, **into) for role in ("stranger", "reader", "writer", "both")} == {403}
    assert begin("owner", target="persistent://public/default/elsewhere") == 403  # where it may not produce
    assert begin("owner") == 412  # into itself
    assert guarded.do("GET", every, token=token("admin")) == []
    assert begin("owner", **into) == 200
    (seen,) = guarded.do("GET", every, token=token("reader"))
    assert (seen["id"], seen["role"], seen["state"]) == ("r1", "owner", "selecting")
    for role in ("writer", "stranger"):
        assert guarded.do("GET", every, token=token(role)) == []
        assert guarded.ask("GET", one, token=token(role)).status == 403
    step = {"state": "cancelled"}
    for role in ("reader", "both", "stranger"):
        assert guarded.ask("PUT", f"{one}/progress", step, token=token(role)).status == 403
        assert guarded.ask("DELETE", one, token=token(role)).status == 403
    for picking in ("selecting", "delivering"):  # by another role's sink they would be written twice
        assert guarded.ask("PUT", f"{one}/progress", {"state": picking}, token=token("admin")).status == 412
    guarded.do("PUT", f"{one}/progress", {"state": "selecting"}, token=token("owner"))
    assert guarded.do("PUT", f"{one}/progress", step, token=token("admin"))["state"] == "cancelled"
    assert guarded.ask("PUT", f"{one}/progress", {"state": "done"}, token=token("owner")).status == 412
    assert begin("owner", **into, where="another") == 412
    guarded.do("DELETE", one, token=token("owner"))
