"""What the administrative commands ask of the admin REST: Pulsar's verbs, paths and bodies."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main

T = "/admin/v2/persistent/public/default/t"
N = "/admin/v2/namespaces/acme/orders"
LATEST = 2**63 - 1

STATS = {
    "msgRateIn": 1.5,
    "storageSize": 77,
    "publishers": [{}],
    "subscriptions": {
        "billing": {"type": "Shared", "position": 17, "msgBacklog": 5, "unackedMessages": 2, "consumers": [{}]}
    },
}
FAST = {
    "namespaces": ["acme/.*"],
    "primary": ["ssd-.*"],
    "secondary": ["hdd-1"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "2", "usage_threshold": "100"},
    },
}
#: What the server knows; everything else is answered with 204.
ANSWERS: dict[str, Any] = {
    "GET /admin/v2/clusters": ["standalone"],
    "GET /admin/v2/clusters/standalone/namespaceIsolationPolicies": {"fast": FAST},
    "GET /admin/v2/clusters/standalone/namespaceIsolationPolicies/fast": FAST,
    "GET /admin/v2/clusters/standalone/namespaceIsolationPolicies/brokers": [
        {"brokerName": "h:8080", "policyName": "fast", "primary": True, "namespaceRegex": ["acme/.*"]},
        {"brokerName": "i:8080", "policyName": None, "primary": False, "namespaceRegex": []},
    ],
    "GET /admin/v2/tenants": ["public"],
    "GET /admin/v2/tenants/public": {"adminRoles": ["root"], "allowedClusters": ["standalone"]},
    "GET /admin/v2/namespaces/public": ["public/default"],
    f"GET {N}": {"retention_policies": {"retentionTimeInMinutes": 5}, "message_ttl_in_seconds": None},
    f"GET {N}/permissions": {"alice": ["produce"]},
    "GET /admin/v2/persistent/public/default?limit=5000": [
        "persistent://public/default/single",
        "persistent://public/default/many-partition-0",
        "persistent://public/default/many-partition-1",
    ],
    "GET /admin/weir/v1/overviews/public/default": {
        "topics": {
            "persistent://public/default/single": {},
            "persistent://public/default/many": {},
        },
        "next": "",
    },
    "GET /admin/v2/persistent/public/default/partitioned?limit=5000": ["persistent://public/default/many"],
    f"GET {T}/partitions": {"partitions": 0},
    f"GET {T}/stats": STATS,
    f"GET {T}/internalStats": {
        "numberOfEntries": 3,
        "ledgers": [{"ledgerId": 8, "entries": 3, "size": 99}],
        "cursors": {"billing": {"markDeletePosition": "8:1", "readPosition": "8:2"}},
    },
    f"GET {T}/properties": {"owner": "me"},
    f"POST {T}/terminate": {"ledgerId": 3, "entryId": 9},
    "GET /admin/v2/persistent/public/default/many/partitions": {"partitions": 2},
    "GET /admin/v2/persistent/public/default/many/partitioned-stats": STATS
    | {
        "metadata": {"partitions": 2},
        "partitions": {
            "persistent://public/default/many-partition-1": {
                "subscriptions": {
                    "billing": {"position": 41, "msgBacklog": 5, "consumers": [{"consumerName": "app-1"}]}
                }
            }
        },
    },
    "GET /lookup/v2/topic/persistent/public/default/t": {"brokerUrl": "pulsar://somewhere:6650"},
    "GET /admin/v2/schemas/public/default/t/schema": {"version": 2, "type": "AVRO", "timestamp": 1, "data": "{}"},
    "GET /admin/v2/schemas/public/default/t/schemas": {
        "getSchemaResponses": [{"version": 0, "type": "AVRO", "timestamp": 1, "data": "{}"}]
    },
    "POST /admin/v2/schemas/public/default/t/schema": {"version": 3},
    "POST /admin/v2/schemas/public/default/t/compatibility": {
        "isCompatibility": False,
        "schemaCompatibilityStrategy": "FULL",
    },
}


class Stub(ThreadingHTTPServer):
    """Answers from the table, and remembers what changes were asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.changes: list[tuple[str, Any]] = []
        self.seen: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = f"{self.command} {self.path}"
        self.server.seen.append(asked)
        if self.command != "GET":
            self.server.changes.append((asked, json.loads(body) if body else None))
        found = ANSWERS.get(asked)
        data = b"" if found is None else json.dumps(found).encode()
        self.send_response(204 if found is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("WEIR_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("COLUMNS", "200")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("command", "asked", "body"),
    [
        (
            "tenants create acme --admin alice",
            "PUT /admin/v2/tenants/acme",
            {"adminRoles": ["alice"], "allowedClusters": ["standalone"]},
        ),
        (
            "tenants update public --admin bob",
            "POST /admin/v2/tenants/public",
            {"adminRoles": ["bob"], "allowedClusters": ["standalone"]},
        ),
        (
            "cluster isolation set fast --namespaces acme/.* --primary ssd-.* --secondary hdd-1 --min-limit 2",
            "POST /admin/v2/clusters/standalone/namespaceIsolationPolicies/fast",
            FAST,
        ),
        (
            "cluster isolation delete fast",
            "DELETE /admin/v2/clusters/standalone/namespaceIsolationPolicies/fast",
            None,
        ),
        ("tenants delete acme --force", "DELETE /admin/v2/tenants/acme?force=true", None),
        ("namespaces create acme/orders", f"PUT {N}", {}),
        ("namespaces delete acme/orders", f"DELETE {N}?force=false", None),
        (
            "namespaces set-retention acme/orders --time 7d --size 10G",
            f"POST {N}/retention",
            {"retentionTimeInMinutes": 10080, "retentionSizeInMB": 10240},
        ),
        (
            "namespaces set-retention acme/orders --time -1 --size -1",
            f"POST {N}/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        ),
        (
            "topics set-retention orders --time 30d --size 2G",
            "POST /admin/v2/persistent/public/default/orders/retention",
            {"retentionTimeInMinutes": 43200, "retentionSizeInMB": 2048},
        ),
        (
            "topics set-retention orders --time 90s",
            "POST /admin/v2/persistent/public/default/orders/retention",
            {"retentionTimeInMinutes": 2, "retentionSizeInMB": -1},
        ),
        ("namespaces set-message-ttl acme/orders 1h", f"POST {N}/messageTTL", 3600),
        (
            "namespaces set-backlog-quota acme/orders --size 1M --policy producer_exception",
            f"POST {N}/backlogQuota?backlogQuotaType=destination_storage",
            {"limitSize": 1048576, "limitTime": -1, "policy": "producer_exception"},
        ),
        ("namespaces set-deduplication acme/orders on", f"POST {N}/deduplication", True),
        (
            "namespaces set-auto-topic-creation acme/orders on -p 4",
            f"POST {N}/autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4},
        ),
        (
            "namespaces grant acme/orders alice produce consume",
            f"POST {N}/permissions/alice",
            ["produce", "consume"],
        ),
        ("namespaces revoke acme/orders alice", f"DELETE {N}/permissions/alice", None),
        ("topics create t", f"PUT {T}", {}),
        ("topics create t -p 4", f"PUT {T}/partitions", 4),
        ("topics delete t --force", f"DELETE {T}?force=true", None),
        (
            "topics delete many --force",
            "DELETE /admin/v2/persistent/public/default/many/partitions?force=true",
            None,
        ),
        ("topics update-partitions t 8", f"POST {T}/partitions", 8),
        ("topics terminate t", f"POST {T}/terminate", None),
        ("topics compact t", f"PUT {T}/compaction", None),
        ("topics unload t", f"PUT {T}/unload", None),
        ("topics properties t owner=me", f"PUT {T}/properties", {"owner": "me"}),
        ("topics grant t alice consume", f"POST {T}/permissions/alice", ["consume"]),
        ("topics revoke t alice", f"DELETE {T}/permissions/alice", None),
        (
            "subscriptions create t s --from earliest",
            f"PUT {T}/subscription/s",
            {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1},
        ),
        ("subscriptions delete t s", f"DELETE {T}/subscription/s?force=false", None),
        ("subscriptions skip t s -n 3", f"POST {T}/subscription/s/skip/3", None),
        ("subscriptions skip t s --all", f"POST {T}/subscription/s/skip_all", None),
        ("subscriptions expire t s --older-than 1h", f"POST {T}/subscription/s/expireMessages/3600", None),
        (
            "subscriptions reset t s --to 12:3",
            f"POST {T}/subscription/s/resetcursor",
            {"ledgerId": 12, "entryId": 3, "partitionIndex": -1, "batchIndex": -1},
        ),
        (
            "subscriptions reset t s --to latest",
            f"POST {T}/subscription/s/resetcursor",
            {"ledgerId": LATEST, "entryId": LATEST, "partitionIndex": -1, "batchIndex": -1},
        ),
        ("subscriptions reset t s --to 1700000000000", f"POST {T}/subscription/s/resetcursor/1700000000000", None),
        ("schemas delete t", "DELETE /admin/v2/schemas/public/default/t/schema", None),
    ],
)
def test_a_command_asks_for_its_change(command: str, asked: str, body: Any, stub: Stub) -> None:
    assert run(*command.split()) == 0
    assert stub.changes == [(asked, body)]


@pytest.mark.parametrize("command", ["tenants create acme", "topics create t", "subscriptions skip t s --all"])
def test_a_change_answers_in_one_line_or_in_json(
    command: str, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command.split()) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert run(*command.split(), "--json") == 0
    assert "done" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cluster isolation list", ["fast", "acme/.*", "ssd-.*", "hdd-1"]),
        ("cluster isolation show fast", ["acme/.*", "ssd-.*", "hdd-1"]),
        ("cluster isolation brokers", ["h:8080", "i:8080", "acme/.*"]),
        ("tenants list", ["public", "root", "standalone"]),
        ("tenants show public", ["root", "public/default"]),
        ("namespaces list public", ["public/default"]),
        ("namespaces policies acme/orders", ["retentionTimeInMinutes"]),
        ("namespaces permissions acme/orders", ["alice", "produce"]),
        ("topics list", ["single", "many", "2"]),
        ("topics stats t", ["77", "billing", "Shared", "5"]),
        ("topics stats many", ["partitions", "billing"]),
        ("topics internal-stats t", ["8:1", "99"]),
        ("topics lookup t", ["pulsar://somewhere:6650"]),
        ("topics properties t", ["owner", "me"]),
        ("subscriptions list t", ["billing", "Shared"]),
        ("subscriptions list t --partitions", ["billing", "POSITION", "5"]),
        ("subscriptions list many --partitions", ["billing", "many-partition-1", "41", "app-1"]),
        ("schemas get t", ["AVRO", "{}"]),
        ("schemas versions t", ["AVRO"]),
    ],
)
def test_a_question_is_answered_for_people_and_for_programs(
    command: str, words: list[str], stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command.split()) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in words), shown
    assert run(*command.split(), "--json") == 0
    assert json.loads(capsys.readouterr().out)
    assert stub.changes == []


def test_a_schema_is_uploaded_and_checked(stub: Stub, tmp_path: Path) -> None:
    definition = tmp_path / "order.avsc"
    definition.write_text('"string"')
    options = ["t", "--type", "avro", "--file", str(definition), "--property", "a=b"]
    assert run("schemas", "upload", *options) == 0
    assert run("schemas", "check", *options) == 1
    body = {"type": "AVRO", "schema": '"string"', "properties": {"a": "b"}}
    base = "POST /admin/v2/schemas/public/default/t"
    assert stub.changes == [(f"{base}/schema", body), (f"{base}/compatibility", body)]


def test_topics_with_odd_names_stay_one_segment(stub: Stub) -> None:
    assert run("topics", "create", "persistent://public/default/a b?c#d") == 0
    assert stub.changes[0][0] == "PUT /admin/v2/persistent/public/default/a%20b%3Fc%23d"
