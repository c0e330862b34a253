"""`weir replay` as it is typed: times, conditions, where to, and what it says when it cannot."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from weir.cli.main import cli
from weir.wire.kafka.records import Record, build_batch

from .conftest import Topics
from .replay_kit import new_name
from .sql_session import make_orders, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

Weir = Callable[..., str]
#: When the order 0 was sent; each later one a second later.
BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def weir(topics: Topics, spark: "SparkSession") -> Weir:
    """The command, in this process: it finds the session that is there."""

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, [*words, "--url", topics.up.http_url])
        assert result.exit_code == code, (result.output, result.exception)
        return f"{result.output}{result.exception}" if code else result.stdout  # an error is told by `main`

    return run


def _order(number: int, region: str) -> Record:
    value = json.dumps({"id": number, "customer": f"c{number % 2}", "amount": number / 2}).encode()
    headers = [(b"region", region.encode()), (b"weir-replay-id", b"of one before")]
    return Record(0, BEGIN_MS + 1000 * number, f"k{number}".encode(), value, headers)


def test_messages_are_picked_by_time_headers_and_typed_values_and_go_to_a_topic_once(
    topics: Topics, weir: Weir
) -> None:
    source, target = new_name("orders"), topics.create(name=new_name("audit"))
    make_orders(topics, source, 0, 2)
    for number in range(2, 10):
        topics.send(source, build_batch([_order(number, "eu" if number % 3 else "us")]))
    wanted = (
        *("replay", "--no-server", "--topic", source, "--into", target),
        *("--from", "2023-11-14T22:13:23Z", "--to", str(BEGIN_MS + 9000)),
        *("--where", "headers['region'] = 'eu' AND amount >= 2.5 AND __key <> 'k8'"),
    )
    assert "2 messages would go to" in weir(*wanted, "--dry-run")
    injected = f"true) INTO TOPIC `{target}`; SELECT (1"
    assert "PARSE_SYNTAX_ERROR" not in weir(*wanted[:-1], injected, "--dry-run", code=1)
    commented = f"{wanted[-1]} -- of Europe"
    assert "2 messages would go to" in weir(*wanted[:-1], commented, "--dry-run")
    assert json.loads(weir("replay", "list", source, "--json")) == []
    assert stored(topics.servers, target) == []

    done = json.loads(weir(*wanted, "--rate", "1000", "--json"))
    assert done["messages"] == 2
    consumer = Consumer({"bootstrap.servers": topics.servers, "group.id": "none", "log_level": 0})
    try:
        consumer.assign([TopicPartition(target, 0, 0)])
        found = [consumer.poll(60) for _ in range(2)]
    finally:
        consumer.close()
    assert len(stored(topics.servers, target)) == 2
    for message, number in zip(found, (5, 7), strict=True):
        assert message is not None
        sent, sent_ms = _order(number, "eu"), BEGIN_MS + 1000 * number
        assert (message.key(), message.value(), message.timestamp()[1]) == (sent.key, sent.value, sent_ms)
        assert message.headers() == [
            ("region", b"eu"),
            ("weir-replay-id", done["replay"].encode()),
            ("weir-replay-topic", f"persistent://public/default/{source}".encode()),
            ("weir-replay-partition", b"0"),
            ("weir-replay-offset", str(number).encode()),
        ]
    (kept,) = json.loads(weir("replay", "list", source, "--json"))
    assert (kept["id"], kept["state"], kept["selected"], kept["delivered"]) == (done["replay"], "done", 2, 2)
    assert (kept["sinceMs"], kept["untilMs"], kept["rate"]) == (BEGIN_MS + 3000, BEGIN_MS + 9000, 1000)
    head, line = weir("replay", "list", source).splitlines()
    assert head.split() == ["ID", "TOPIC", "INTO", "WHERE", "STATE", "SELECTED", "DELIVERED", "BY"]
    assert line.split()[:2] == [done["replay"], source]


def test_a_condition_that_is_none_leaves_nothing_and_one_that_fails_can_be_tried_again_or_ended(
    topics: Topics, weir: Weir
) -> None:
    source, target = new_name("orders"), topics.create(name=new_name("audit"))
    make_orders(topics, source, 0, 2)
    wanted = ("replay", "--no-server", "--topic", source, "--into", target, "--where")
    assert "no_such_column" in weir(*wanted, "no_such_column = 1", code=1)
    for attack in (
        "reflect('java.lang.System', 'getenv', 'HOME') = 'x'",
        "EXISTS (SELECT * FROM text.`/etc/hostname`)",
        "EXISTS (SELECT TRANSFORM(1) USING 'sh -c id')",
        "1 = 1 --\\\n{#\n AND EXISTS (SELECT * FROM text.`/etc/hostname`) --\\\n#}",
    ):
        weir(*wanted, attack, code=1)
    assert json.loads(weir("replay", "list", source, "--json")) == []
    said = weir(*wanted, "id < 0 OR raise_error('out of luck') IS NULL", code=1)
    assert "out of luck" in said
    (kept,) = json.loads(weir("replay", "list", source, "--json"))
    assert f"weir replay resume {kept['id']}" in said
    assert (kept["state"], kept["delivered"]) == ("selecting", 0)
    assert "cancelled" in weir("replay", "cancel", kept["id"])
    assert stored(topics.servers, target) == []


def test_statements_of_sql_replay_as_the_command_does_and_are_checked_before_the_first_is_done(
    topics: Topics, weir: Weir
) -> None:
    source, target = new_name("orders"), topics.create(name=new_name("audit"))
    make_orders(topics, source, 0, 6)
    sql = ("sql", "--no-server", "--json", "-e")
    picked = f"REPLAY `{source}` FROM '{BEGIN_MS + 1000}' TO '{BEGIN_MS + 4000}' WHERE customer = 'c1'"
    into = f"INTO TOPIC `{target}` RATE 1000"
    wrong = f"REPLAY `{source}` WHERE no_such_column = 1 {into}"
    assert "nothing was done" in weir(*sql, f"{picked} {into}; {wrong}", code=1)
    assert json.loads(weir(*sql, f"{picked} {into} DRY RUN")) == [{"partition": 0, "messages": 2}]
    assert stored(topics.servers, target) == []
    assert json.loads(weir("replay", "list", source, "--json")) == []
    done = json.loads(weir(*sql, f"{picked} {into}"))
    assert done["messages"] == 2
    assert [json.loads(value)["id"] for _, value in stored(topics.servers, target)] == [1, 3]
    shown = {one["id"]: one for one in json.loads(weir(*sql, "SHOW REPLAYS"))}
    found = shown[done["replay"]]
    assert (found["where"], found["state"], found["selected"], found["delivered"]) == (
        "customer = 'c1'",
        "done",
        2,
        2,
    )
