"""What became of messages, as a table: `weir_trace`, with `weir sql` and with `format("weir")`."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pulsar
import pytest

from weir.client.admin import Access, ask_v2
from weir.spark.sql.parsing import parse
from weir.spark.sql.results import Rows
from weir.spark.sql.statements import SelectStream
from weir.testing.processes.up import UpProcess

from .sql_session import Sql, patiently

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

TRACE = "5cf92f3577b34da6a3ce929d0e0e4737"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
TIMEOUT_MS = 60_000
COLUMNS = {
    "event": "string",
    "topic": "string",
    "ms": "bigint",
    "broker": "string",
    "first": "bigint",
    "end": "bigint",
    "took_ms": "double",
    "producer": "string",
    "subscription": "string",
    "consumer": "string",
    "address": "string",
    "times": "bigint",
    "reason": "string",
    "held": "string",
    "due_ms": "bigint",
    "ledger": "bigint",
    "entry": "bigint",
    "keys": "array<string>",
    "traces": "array<string>",
}


@pytest.fixture(scope="module")
def traced(up: UpProcess) -> str:
    """A topic with two messages of `paula`: `carl` fails at the first, and acknowledges both then; for the
    subscription `eu` a filter leaves the first out."""
    name = f"traced-{uuid4().hex}"
    place = f"persistent/public/default/{name}"
    ask_v2(Access(up.http_url), "PUT", place)
    ask_v2(Access(up.http_url), "POST", f"{place}/traceRate", 1)
    patiently(lambda: ask_v2(Access(up.http_url), "GET", f"{place}/traceRate?applied=true") == 1)
    client = pulsar.Client(up.pulsar_url)
    wanted = {"weir.filter": "region = 'eu'"}
    filtered = client.subscribe(name, "eu", pulsar.ConsumerType.Shared, properties=wanted)
    consumer = client.subscribe(
        name,
        "billing",
        pulsar.ConsumerType.Shared,
        consumer_name="carl",
        negative_ack_redelivery_delay_ms=1,
    )
    producer = client.create_producer(name, producer_name="paula", batching_enabled=False)

    def told(event: str, offset: int) -> bool:
        with urlopen(f"{up.http_url}/admin/weir/v1/trace/{place}?offset={offset}") as answer:
            messages = json.load(answer)["messages"]
        return any(one["event"] == event for message in messages for one in message["events"])

    producer.send(b"us", {"region": "us"}, partition_key="o-1")
    consumer.negative_acknowledge(consumer.receive(TIMEOUT_MS))
    consumer.acknowledge(consumer.receive(TIMEOUT_MS))
    producer.send(b"eu", {"region": "eu", "traceparent": TRACEPARENT}, partition_key="o-2")
    for one in (consumer, filtered):
        one.acknowledge(one.receive(TIMEOUT_MS))
    patiently(lambda: told("acknowledged", 0) and told("acknowledged", 1) and told("dropped", 0))
    client.close()
    return name


def test_traces_are_a_table_that_says_what_happened_to_which_messages(sql: Sql, read: Any, traced: str) -> None:
    described = {str(row[0]): str(row[1]) for row in sql.rows("DESCRIBE weir_trace")}
    assert {name: kind for name, kind in described.items() if not name.startswith("__")} == COLUMNS
    topic = f"persistent://public/default/{traced}"
    of_topic = f"FROM weir_trace WHERE topic = '{topic}'"
    stored = f"SELECT first, end, producer, keys[0], get(traces, 0) {of_topic} AND event = 'stored' ORDER BY first"
    assert sql.rows(stored) == [(0, 1, "paula", "o-1", None), (1, 2, "paula", "o-2", TRACE)]
    happened = (
        f"SELECT event, consumer, times, reason {of_topic} AND first <= 0 AND end > 0 AND subscription <> ''"
        " ORDER BY subscription, ms, __offset"
    )
    assert sql.rows(happened) == [
        ("delivered", "carl", 0, ""),
        ("retried", "carl", 0, ""),
        ("delivered", "carl", 1, ""),
        ("acknowledged", "carl", 0, ""),
        ("dropped", "", 0, "filtered"),
    ]
    how_long = (
        "SELECT s.keys[0], a.ms - s.ms >= 0 FROM weir_trace s JOIN weir_trace a"
        " ON a.topic = s.topic AND s.first BETWEEN a.first AND a.end - 1"
        f" WHERE s.topic = '{topic}' AND s.event = 'stored'"
        " AND a.event = 'acknowledged' AND a.subscription = 'billing' ORDER BY 1"
    )
    assert sql.rows(how_long) == [("o-1", True), ("o-2", True)]
    found = read("weir_trace", valueFormat="schema", adminUrl=sql.topics.up.http_url).select("value.*")
    assert dict(found.dtypes) == COLUMNS
    counts = (
        found.where(f"topic = '{topic}'").selectExpr("event", "end - first AS messages").groupBy("event").sum()
    )
    assert {row.event: row["sum(messages)"] for row in counts.collect()} == {
        "stored": 2,
        "delivered": 4,
        "retried": 1,
        "acknowledged": 3,
        "dropped": 1,
    }


def test_what_the_documentation_asks_of_traces_is_answered(sql: Sql, traced: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "trace.md").read_text()
    (block,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    lost, late, order, live = parse(block.replace("'o-17'", "'o-1'"))
    assert isinstance(live, SelectStream)
    dropped, how_long, became = (rows_of(sql.console.do(statement)) for statement in (lost, late, order))
    assert (f"persistent://public/default/{traced}", "eu", "filtered", 1) in dropped
    assert {name for name, p99_ms in how_long if p99_ms >= 0} >= {"billing", "eu"}
    assert {event for _, event, *_ in became} >= {"stored", "delivered", "retried", "acknowledged", "dropped"}


def rows_of(found: Any) -> list[tuple[Any, ...]]:
    assert isinstance(found, Rows)
    return [tuple(row) for row in found.rows]
