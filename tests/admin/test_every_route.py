"""Every route, once at least, on a whole Weir: each is answered as documented, and none is left out."""

import re
from datetime import timedelta
from typing import Any

import pulsar

TENANT, NS = "acme", "acme/orders"
BUNDLE = "0x00000000_0x40000000"
T, N = f"persistent/{NS}/single", f"non-persistent/{NS}/passing"
PARTED, NPARTED = f"persistent/{NS}/parted", f"non-persistent/{NS}/parted"
SUB = f"{T}/subscription/s"
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
EARLIEST = {"ledgerId": -1, "entryId": -1}
AVRO = {"type": "AVRO", "schema": '{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'}
RATE = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": 1000}
SHOWN_RATE = RATE | {"relativeToPublishRate": False, "ratePeriodInSecond": 1}

#: Any answer will do.
ANY = object()


def policy(
    base: str, word: str, value: Any, shown: Any = None, verb: str = "POST", unsaid: Any = None
) -> list[Any]:
    """Set it, get it, remove it, and it is gone."""
    return [
        (verb, f"{base}/{word}", value, None),
        ("GET", f"{base}/{word}", None, value if shown is None else shown),
        ("GET", f"{base}/{word}?applied=true", None, value if shown is None else shown),
        ("DELETE", f"{base}/{word}", None, None),
        ("GET", f"{base}/{word}", None, unsaid),
    ]


def isolation() -> list[Any]:
    """A policy that keeps no broker off anything, as `pulsar-admin ns-isolation-policy set` sends it."""
    base = "clusters/standalone/namespaceIsolationPolicies"
    said = {
        "namespaces": ["nobody/.*"],
        "primary": ["elsewhere-.*"],
        "secondary": [".*"],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "2", "usage_threshold": "80"},
        },
    }
    return [
        ("GET", base, None, {}),
        ("POST", f"{base}/fast", said, None),
        ("GET", base, None, {"fast": said}),
        ("GET", f"{base}/fast", None, said),
        ("GET", f"{base}/brokers", None, ANY),
        ("GET", f"{base}/brokers/standalone", None, ANY),
        ("DELETE", f"{base}/fast", None, None),
        ("DELETE", f"{base}/fast", None, None),
        ("GET", base, None, {}),
    ]


def fixed(base: str, word: str, values: list[Any], verb: str = "POST") -> list[Any]:
    """One that can be set and not removed."""
    return [
        step
        for value in values
        for step in ((verb, f"{base}/{word}", value, None), ("GET", f"{base}/{word}", None, value))
    ]


def policies(base: str, *, of_topic: bool) -> list[Any]:
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception", "limit": 1000}
    age = {"limitSize": -1, "limitTime": 60, "policy": "producer_exception", "limit": -1}
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
    publish = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    delayed = {"active": False, "tickTime": 1, "maxDeliveryDelayInMillis": 0}
    steps = [
        *policy(base, "retention", retention),
        *policy(base, "publishRate", publish),
        *policy(base, "dispatchRate", RATE, SHOWN_RATE),
        *policy(base, "subscriptionDispatchRate", RATE, SHOWN_RATE),
        *policy(base, "delayedDelivery", delayed),
        *policy(base, "maxSubscriptionsPerTopic", 7),
        *policy(base, "keyIndex", True),
        *policy(base, "traceRate", 0.25),
        *policy(base, "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
        *fixed(base, "schemaValidationEnforced", [True, False]),
        ("POST", f"{base}/backlogQuota", {"limitSize": 1000, "policy": "producer_exception"}, None),
        ("POST", f"{base}/backlogQuota?backlogQuotaType=message_age", {"limitTime": 60}, None),
        ("GET", f"{base}/backlogQuotaMap", None, {"destination_storage": quota, "message_age": age}),
        ("DELETE", f"{base}/backlogQuota?backlogQuotaType=message_age", None, None),
        ("GET", f"{base}/backlogQuotaMap", None, {"destination_storage": quota}),
        ("DELETE", f"{base}/backlogQuota", None, None),
        ("GET", f"{base}/backlogQuotaMap", None, {}),
    ]
    if of_topic:
        return [
            *steps,
            *policy(base, "deduplicationEnabled", True),
            *policy(base, "compactionThreshold", 5000),
            *policy(base, "maxUnackedMessagesOnConsumer", 5),
            *policy(base, "maxUnackedMessagesOnSubscription", 6),
            *policy(base, "maxProducers", 8),
            *policy(base, "maxConsumers", 9),
            *policy(base, "maxMessageSize", 1024),
            *policy(base, "schemaCompatibilityStrategy", "BACKWARD", verb="PUT", unsaid="UNDEFINED"),
            ("POST", f"{base}/messageTTL?messageTTL=60", None, None),
            ("GET", f"{base}/messageTTL", None, 60),
            ("DELETE", f"{base}/messageTTL", None, None),
            ("GET", f"{base}/messageTTL", None, None),
            ("GET", f"{base}/messageTTL?applied=true", None, 0),
        ]
    auto = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    return [
        *steps,
        *policy(base, "deduplication", True),
        *policy(base, "compactionThreshold", 5000, verb="PUT"),
        *policy(base, "messageTTL", 60),
        *policy(base, "maxUnackedMessagesPerConsumer", 5),
        *policy(base, "maxUnackedMessagesPerSubscription", 6),
        *policy(base, "maxProducersPerTopic", 8),
        *policy(base, "maxConsumersPerTopic", 9),
        *policy(base, "subscriptionExpirationTime", 30),
        *policy(base, "autoTopicCreation", auto),
        *fixed(base, "schemaCompatibilityStrategy", ["FORWARD", "UNDEFINED"], verb="PUT"),
        *fixed(base, "isAllowAutoUpdateSchema", [False, True]),
    ]


def permissions(base: str) -> list[Any]:
    return [
        ("POST", f"{base}/permissions/al", ["produce", "consume"], None),
        ("GET", f"{base}/permissions", None, {"al": ["produce", "consume"]}),
        ("DELETE", f"{base}/permissions/al", None, None),
        ("GET", f"{base}/permissions", None, {}),
    ]


def properties(base: str) -> list[Any]:
    return [
        ("PUT", f"{base}/properties", {"x": "1", "y": "2"}, None),
        ("GET", f"{base}/properties", None, {"x": "1", "y": "2"}),
    ]


BEGIN = [
    ("GET", "/openapi.json", None, ANY),
    ("GET", "brokers", None, ANY),
    ("GET", "brokers/standalone", None, ANY),
    ("GET", "brokers/leaderBroker", None, ANY),
    (
        "GET",
        "brokers/configuration/runtime",
        None,
        {"clusterName": "standalone", "transactionCoordinatorEnabled": "false"},
    ),
    ("GET", "brokers/standalone/standalone/ownedNamespaces", None, ANY),
    ("GET", "broker-stats/load-report", None, ANY),
    ("GET", "broker-stats/topics", None, ANY),
    ("GET", "broker-stats/metrics", None, ANY),
    ("GET", "clusters", None, ["standalone"]),
    ("POST", "clusters/standalone", {"serviceUrl": "http://weir:8080"}, None),
    ("GET", "clusters/standalone", None, ANY),
    *isolation(),
    ("PUT", f"tenants/{TENANT}", {"adminRoles": ["alice"], "allowedClusters": ["standalone"]}, None),
    ("GET", "tenants", None, ["acme", "public"]),
    ("POST", f"tenants/{TENANT}", {"adminRoles": ["bob"], "allowedClusters": ["standalone"]}, None),
    ("GET", f"tenants/{TENANT}", None, {"adminRoles": ["bob"], "allowedClusters": ["standalone"]}),
    *permissions(f"/admin/weir/v1/tenants/{TENANT}"),
    ("PUT", f"namespaces/{NS}", {"message_ttl_in_seconds": 9, "properties": {"a": "b"}}, None),
    ("GET", f"namespaces/{TENANT}", None, [NS]),
    ("GET", f"namespaces/{NS}", None, ANY),
    ("GET", f"namespaces/{NS}/bundles", None, ANY),
    ("GET", f"namespaces/{NS}/replication", None, ["standalone"]),
    *permissions(f"namespaces/{NS}"),
    *policies(f"namespaces/{NS}", of_topic=False),
    ("DELETE", f"namespaces/{NS}/properties", None, None),
    *properties(f"namespaces/{NS}"),
    ("PUT", f"namespaces/{NS}/property/z/3", None, None),
    ("GET", f"namespaces/{NS}/property/z", None, 3),  # the text 3, which is JSON by chance
    ("DELETE", f"namespaces/{NS}/property/z", None, 3),
]


def topics(single: str, parted: str, domain: str) -> list[Any]:
    name = single.replace("/", "://", 1)
    parts = [f"{parted.replace('/', '://', 1)}-partition-{at}" for at in range(3)]
    return [
        ("PUT", single, {"a": "b"}, None),
        ("GET", f"{single}/properties", None, {"a": "b"}),
        *properties(single)[:1],
        ("DELETE", f"{single}/properties?key=a", None, None),
        ("GET", f"{single}/properties", None, {"x": "1", "y": "2"}),
        ("PUT", f"{parted}/partitions", 2, None),
        ("POST", f"{parted}/partitions", 3, None),
        ("GET", f"{parted}/partitions", None, {"partitions": 3, "properties": {}}),
        ("GET", f"{domain}/{NS}/partitioned", None, [parted.replace("/", "://", 1)]),
        ("GET", f"{domain}/{NS}", None, sorted([*parts, name])),
        ("GET", f"{single}/stats", None, ANY),
        ("GET", f"{single}/internalStats", None, ANY),
        ("GET", f"{parted}/partitioned-stats", None, ANY),
        ("GET", f"{parted}/partitioned-internalStats", None, ANY),
        *permissions(single),
        ("GET", f"/lookup/v2/topic/{single}", None, ANY),
        ("PUT", f"{single}/unload", None, None),
        ("PUT", f"{parted}/unload", None, None),
    ]


MIDDLE = [
    *topics(T, PARTED, "persistent"),
    *topics(N, NPARTED, "non-persistent"),
    ("GET", f"namespaces/{NS}/topics?mode=ALL", None, ANY),
    *policies(T, of_topic=True),
    ("PUT", SUB, EARLIEST | {"properties": {"p": "q"}}, None),
    ("PUT", f"{PARTED}/subscription/s", LATEST, None),
    ("GET", f"{T}/subscriptions", None, ["s"]),
    ("GET", f"{PARTED}/subscriptions", None, ["s"]),
    ("GET", f"{SUB}/properties", None, {"p": "q"}),
    ("PUT", f"{SUB}/properties", {"r": "t"}, None),
    ("GET", f"{SUB}/properties", None, {"r": "t"}),
]

END = [
    ("GET", f"{T}/lastMessageId", None, ANY),
    ("GET", f"{T}/messageid/0", None, ANY),
    ("PUT", f"{T}/backlogSize", EARLIEST, ANY),
    ("GET", f"{T}/backlog", None, ANY),
    ("POST", f"{SUB}/skip/1", None, None),
    ("POST", f"{SUB}/redeliver/0", None, ANY),
    ("POST", f"{SUB}/resetcursor", EARLIEST, None),
    ("POST", f"{SUB}/expireMessages", EARLIEST, None),
    ("POST", f"{SUB}/expireMessages/100", None, None),
    ("POST", f"{T}/all_subscription/expireMessages/100", None, None),
    ("POST", f"{SUB}/resetcursor/0", None, None),
    ("POST", f"{SUB}/skip_all", None, None),
    ("POST", f"namespaces/{NS}/clearBacklog", None, None),
    ("POST", f"namespaces/{NS}/clearBacklog/s", None, None),
    ("POST", f"namespaces/{NS}/{BUNDLE}/clearBacklog", None, None),
    ("POST", f"namespaces/{NS}/{BUNDLE}/clearBacklog/s", None, None),
    ("POST", f"namespaces/{NS}/{BUNDLE}/unsubscribe/none", None, None),
    ("POST", f"/admin/weir/v1/backlog/{T}/clear", None, None),
    ("POST", f"/admin/weir/v1/backlog/{T}/clear/s", None, None),
    ("DELETE", f"/admin/weir/v1/backlog/{T}/subscription/none", None, None),
    ("DELETE", f"{PARTED}/subscription/s?force=true", None, None),
    ("POST", f"namespaces/{NS}/unsubscribe/s", None, None),
    ("GET", f"{T}/subscriptions", None, []),
    ("GET", f"{T}/compaction", None, {"status": "NOT_RUN", "lastError": ""}),
    ("PUT", f"{T}/compaction", None, None),
    ("DELETE", f"{T}/truncate", None, None),
    ("POST", f"{T}/terminate", None, ANY),
    ("POST", f"{PARTED}/terminate/partitions", None, ANY),
    ("GET", f"schemas/{NS}/single/schemas", None, {"getSchemaResponses": []}),
    ("POST", f"schemas/{NS}/single/compatibility", AVRO, ANY),
    ("POST", f"schemas/{NS}/single/schema", AVRO, {"version": 0}),
    ("POST", f"schemas/{NS}/single/version", AVRO, {"version": 0}),
    ("GET", f"schemas/{NS}/single/schema", None, ANY),
    ("GET", f"schemas/{NS}/single/schema/0", None, ANY),
    ("DELETE", f"schemas/{NS}/single/schema", None, {"version": 1}),
    ("PUT", f"namespaces/{NS}/unload", None, None),
    ("PUT", f"namespaces/{NS}/{BUNDLE}/unload", None, None),
    ("DELETE", T, None, None),
    ("DELETE", N, None, None),
    ("DELETE", f"{PARTED}/partitions", None, None),
    ("DELETE", f"{NPARTED}/partitions", None, None),
    ("DELETE", f"namespaces/{NS}", None, None),
    ("DELETE", f"tenants/{TENANT}", None, None),
]

#: Answers that are not JSON.
PLAIN = [
    "brokers/version",
    "brokers/health",
    "brokers/ready",
    "/ready",
    "/status.html",
    "/metrics",
    f"/lookup/v2/topic/{T}/bundle",
    f"/lookup/v2/topic/{N}/bundle",
    f"{SUB}/position/1",
    f"{T}/examinemessage",
]
#: Here there is nothing that they could do; what they do is shown elsewhere.
ELSEWHERE = {
    ("PUT", "/admin/v2/clusters/{cluster}"),
    ("DELETE", "/admin/v2/clusters/{cluster}"),
    ("PUT", "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/transfer"),
    ("PUT", "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split"),
    ("PUT", "/admin/weir/v1/cluster/brokers/{broker}/drain"),
    ("POST", "/admin/weir/v1/clients/{client}/stack"),
    ("GET", "/admin/weir/v1/access-keys/{role}"),
    ("POST", "/admin/weir/v1/clients/{client}/verify"),
    ("PUT", "/admin/weir/v1/cluster/bookies/{bookie}/decommission"),
}


def test_every_route_is_served(start_weir, tmp_path) -> None:
    weir = start_weir()
    used: list[tuple[str, str]] = []

    def walk(steps: list[Any]) -> None:
        for verb, path, body, expected in steps:
            used.append((verb, path))
            told = weir.do(verb, path, body)
            assert expected is ANY or told == expected, f"{verb} {path}: {told}"

    walk(BEGIN)
    walk(MIDDLE)
    client = pulsar.Client(weir.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "log")))
    producer = client.create_producer(f"persistent://{NS}/single")
    at, *_ = [producer.send(b"hello") for _ in range(3)]
    for _ in range(2):
        producer.send(b"later", deliver_after=timedelta(hours=1))
    client.close()
    for path in [*PLAIN, f"{T}/ledger/{at.ledger_id()}/entry/{at.entry_id()}"]:
        used.append(("GET", path))
        assert weir.ask("GET", path).status == 200, path
    area = f"/admin/weir/v1/held/{T}"
    first, second = (item["id"] for item in weir.do("GET", area)["held"])
    walk(
        [
            ("GET", area, None, ANY),
            ("GET", f"{area}/count", None, {"batches": 2, "messages": 2}),
            ("DELETE", f"{area}/{first}", None, None),
            ("POST", f"{area}/{second}/release", None, None),
            ("GET", f"{area}/count", None, {"batches": 0, "messages": 0}),
        ]
    )
    retry = {"schedule": "1s 10s", "maxDeliveries": 3, "deadLetterTopic": None}
    priority = {"levels": 3, "passed": 10, "longestMs": 0}
    for where, verb in ((f"/admin/v2/namespaces/{NS}", "POST"), (f"/admin/v2/{T}", "POST")):
        for word, body in (("retry", retry), ("priority", priority)):
            path = f"{where}/{word}"
            walk([(verb, path, body, None), ("GET", path, None, body), ("DELETE", path, None, None)])
    own = f"/admin/v2/{T}/subscription/s/retry"
    letters = f"/admin/weir/v1/dead-letters/{T}"
    none = {"next": None, "lookedAt": 0, "waiting": 4, "end": 0}
    walk(
        [
            ("PUT", own, retry, None),
            (
                "GET",
                own,
                None,
                {
                    "active": True,
                    "schedule": "1s 10s",
                    "maxDeliveries": 3,
                    "deadLetterTopic": f"{T}-s-DLQ".replace("persistent/", "persistent://", 1),
                    "own": retry,
                },
            ),
            ("DELETE", own, None, None),
            ("GET", letters, None, ANY),
            ("POST", f"{letters}/redrive?before=0", None, {"moved": 0, "kept": 0, **none}),
        ]
    )
    half = f"/admin/weir/v1/half/{T}"
    first, second = (weir.do("POST", half, {"group": "g", "payload": text})["id"] for text in "ab")
    walk(
        [
            ("POST", half, {"group": "g", "payload": "c"}, ANY),
            ("GET", f"{half}?group=other", None, {"half": [], "next": None}),
            ("GET", f"{half}/count", None, ANY),
            ("GET", f"{half}/{first}", None, ANY),
            ("POST", f"{half}/{first}/rollback", None, {"decision": "rollback", "offset": -1, "again": False}),
            ("POST", f"{half}/{second}/commit", None, ANY),
            ("POST", f"{half}/{second}/commit", None, {"decision": "commit", "offset": -1, "again": True}),
        ]
    )
    offsets, waiting = f"/admin/weir/v1/offsets/{T}", f"/admin/weir/v1/waiting/{T}/s"
    groups = "/admin/weir/v1/groups"
    walk(
        [
            ("GET", f"{offsets}?time=0", None, ANY),
            ("POST", f"{offsets}/s", {"offset": 0}, ANY),
            ("GET", f"{waiting}?limit=2", None, ANY),
            ("POST", f"/admin/v2/{T}/keyIndex", True, None),
            ("GET", f"/admin/weir/v1/found/{T}?key=k", None, ANY),
            ("PUT", f"/admin/v2/persistent/{NS}/weir_trace", None, None),
            ("POST", f"/admin/v2/persistent/{NS}/weir_trace/keyIndex", True, None),
            ("GET", f"/admin/weir/v1/trace/{T}?offset=0", None, {"messages": []}),
            ("GET", f"/admin/weir/v1/traces/{NS}/4bf92f3577b34da6a3ce929d0e0e4736", None, {"messages": []}),
            ("DELETE", f"/admin/v2/persistent/{NS}/weir_trace?force=true", None, None),
            ("POST", f"{groups}/g/positions", {"positions": {f"persistent://{NS}/parted-partition-0": 0}}, {}),
            ("GET", "/admin/weir/v1/instance", None, ANY),
            ("GET", groups, None, ANY),
            ("GET", f"{groups}/g", None, ANY),
        ]
    )
    settings, types = f"/admin/weir/v1/group-settings/{NS}", f"/admin/weir/v1/message-types/{T}"
    said = {"name": "g", "fifo": True, "maxAttempts": 3, "schedule": "1s 1m", "liteExclusive": False}
    walk(
        [
            ("PUT", f"{settings}/g", {"fifo": True, "maxAttempts": 3, "schedule": "1s 1m"}, said),
            ("GET", f"{settings}/g", None, said),
            ("GET", settings, None, [said]),
            ("DELETE", f"{settings}/g", None, None),
            ("PUT", types, {"types": ["fifo", "normal"]}, {"types": ["normal", "fifo"]}),
            ("GET", types, None, {"types": ["normal", "fifo"]}),
        ]
    )
    sink = "/admin/weir/v1/sinks/copy"
    walk(
        [
            ("GET", sink, None, {"epoch": -1}),
            ("POST", f"{sink}/epochs/3", {"transactions": []}, {"committed": True, "epoch": 3}),
            ("POST", f"{sink}/epochs/3", {"transactions": []}, {"committed": False, "epoch": 3}),
            ("DELETE", sink, None, None),
            ("GET", sink, None, {"epoch": -1}),
        ]
    )
    connector, runner = f"/admin/weir/v1/connectors/{NS}/copy", "/admin/weir/v1/connector-runner"
    connector_id = weir.do("PUT", connector, {"config": "{}"})["id"]
    walk(
        [
            ("PUT", connector, {"config": "{}"}, ANY),
            ("POST", connector, {"config": '{"a": 1}'}, ANY),
            ("GET", connector, None, ANY),
            ("PUT", f"{connector}/state", {"state": "stopped"}, None),
            ("PUT", f"{connector}/progress", {"id": connector_id, "state": "stopped", "records": 7}, None),
            ("GET", "/admin/weir/v1/connectors", None, ANY),
            ("GET", f"/admin/weir/v1/connectors/{NS}", None, ANY),
            ("PUT", runner, {"runner": "r", "where": "here"}, None),
            ("GET", runner, None, {"runner": "r", "where": "here", "allowed": True}),
            ("DELETE", f"{runner}/r", None, None),
            ("GET", runner, None, {"runner": None, "where": None, "allowed": True}),
            ("DELETE", connector, None, None),
            ("GET", f"{runner}/removed", None, ANY),
            ("DELETE", f"{runner}/removed/{connector_id}", None, None),
            ("GET", f"{runner}/removed", None, []),
            ("GET", f"/admin/weir/v1/connectors/{NS}", None, []),
        ]
    )
    function, runner = f"/admin/weir/v1/functions/{NS}/clean", "/admin/weir/v1/function-runner"
    body = {"code": "def clean(message): ...", "entry": "clean", "inputs": [f"persistent://{NS}/single"]}
    function_id = weir.do("POST", function, body)["id"]
    told = {"id": function_id, "version": 1, "state": "running", "received": 7}
    walk(
        [
            ("POST", function, body, ANY),
            ("PUT", function, body | {"entry": "other"}, ANY),
            ("PUT", f"{function}/state", {"state": "stopped"}, ANY),
            ("PUT", f"{function}/stats", told, None),
            ("GET", function, None, ANY),
            ("GET", "/admin/weir/v1/functions", None, ANY),
            ("GET", f"/admin/weir/v1/functions/{NS}", None, ANY),
            ("PUT", runner, {"runner": "r", "where": "here"}, None),
            ("GET", runner, None, {"runner": "r", "where": "here", "allowed": True}),
            ("DELETE", f"{runner}/r", None, None),
            ("DELETE", function, None, None),
            ("GET", f"/admin/weir/v1/functions/{NS}", None, []),
        ]
    )
    replay = f"/admin/weir/v1/replays/{NS}/single/r1"
    walk(
        [
            ("PUT", replay, {"target": f"persistent://{NS}/other", "where": "a > 1"}, ANY),
            ("PUT", f"{replay}/progress", {"state": "delivering", "selected": [2], "producerId": 1}, ANY),
            ("GET", replay, None, ANY),
            ("GET", f"/admin/weir/v1/replays/{NS}/single", None, ANY),
            ("GET", "/admin/weir/v1/replays", None, ANY),
            ("DELETE", replay, None, None),
            ("GET", "/admin/weir/v1/replays", None, []),
        ]
    )
    catalog = "/admin/weir/v1/lake-catalogs/archive"
    walk(
        [
            ("PUT", catalog, {"to": "s3://lake", "catalog": "http://catalog"}, None),
            ("GET", "/admin/weir/v1/lake-catalogs", None, ANY),
            ("GET", "/admin/weir/v1/lake", None, []),
            ("GET", f"/admin/weir/v1/lake/{NS}", None, ANY),
            ("DELETE", catalog, None, None),
        ]
    )
    stream, runner = f"/admin/weir/v1/streams/{NS}/copy", "/admin/weir/v1/stream-runner"
    emptied = "/admin/weir/v1/cluster/bookies/b9/decommission"
    body = {"sql": "SELECT 1", "sources": [f"persistent://{NS}/single"]}
    stream_id = weir.do("PUT", stream, body)["id"]
    walk(
        [
            ("PUT", stream, body | {"state": "paused"}, ANY),
            ("GET", stream, None, ANY),
            ("PUT", f"{stream}/progress", {"id": stream_id, "state": "paused", "rows": 7}, None),
            ("GET", "/admin/weir/v1/streams", None, ANY),
            ("GET", f"/admin/weir/v1/streams/{NS}", None, ANY),
            ("GET", runner, None, {"runner": None, "where": None, "allowed": True}),
            ("PUT", runner, {"runner": "r", "where": "here"}, None),
            ("GET", runner, None, {"runner": "r", "where": "here", "allowed": True}),
            ("DELETE", f"{runner}/r", None, None),
            ("GET", runner, None, {"runner": None, "where": None, "allowed": True}),
            ("GET", f"{runner}/dropped", None, []),
            ("DELETE", stream, None, None),
            ("DELETE", f"{runner}/dropped/{stream_id}", None, None),
            ("GET", f"{runner}/dropped", None, []),
            ("GET", f"/admin/weir/v1/streams/{NS}", None, []),
            ("GET", f"/admin/weir/v1/unread/{T}/nobody", None, ANY),
            ("GET", "/admin/weir/v1/addresses", None, ANY),
            ("GET", "/admin/weir/v1/connections", None, ANY),
            ("GET", "/admin/weir/v1/rates", None, ANY),
            ("GET", f"/admin/weir/v1/history/{T}", None, ANY),
            ("GET", f"/admin/weir/v1/history/{N}", None, ANY),
            ("POST", f"/admin/weir/v1/messages/{PARTED}", {"value": "eA==", "key": "aw=="}, ANY),
            ("GET", f"/admin/weir/v1/messages/{T}?last=5", None, ANY),
            ("GET", f"/admin/weir/v1/overviews/{NS}", None, ANY),
            ("POST", "/admin/weir/v1/overviews", {"topics": [f"persistent://{NS}/single"]}, ANY),
            ("GET", "/admin/weir/v1/cluster", None, ANY),
            ("PUT", "/admin/weir/v1/cluster/brokers/standalone/resume", None, None),
            ("GET", emptied, None, {"bookie": "b9", "left": 0, "problem": ""}),
            ("DELETE", emptied, None, None),
        ]
    )
    walk(END)
    assert missing(weir, used) == []


def missing(weir: Any, used: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The routes of the document that none of the calls was on."""
    documented = weir.do("GET", "/openapi.json")["paths"]
    called = [
        (verb, path.split("?")[0] if path.startswith("/") else f"/admin/v2/{path.split('?')[0]}")
        for verb, path in used
    ]
    return [
        (verb.upper(), template)
        for template, verbs in documented.items()
        for verb in verbs
        if (verb.upper(), template) not in ELSEWHERE
        and not template.startswith("/api/")  # see amqp/
        and not any(
            method == verb.upper() and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path)
            for method, path in called
        )
    ]
