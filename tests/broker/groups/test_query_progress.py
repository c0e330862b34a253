"""What a query says with its position is shown with its subscription, and may hold back retention."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from weir.admin.topic_stats import partitioned_stats, topic_stats
from weir.broker.api.stats import QueryProgress
from weir.broker.coordination.partition_ops import LocalParts
from weir.broker.coordination.shards import CoordinatorShards
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.subscriptions.subscription_state import parse_progress, progress_of_commit
from weir.broker.upkeep.topic_upkeep import maintain
from weir.cli.output import Rate
from weir.cli.topic_views import subscription_rows
from weir.model.policies import Retention
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset

T = TopicName.parse("t")


def said(**more: Any) -> str:
    return json.dumps({"weir.query": 1, "batch": 3, "rows": 10, "rowsPerSecond": 2.5, "lost": 4} | more)


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (said(), QueryProgress(3, 10, 2.5, 4)),
        (said(retain=True), QueryProgress(3, 10, 2.5, 4, retain=True)),
        (said(batch=-1, rows="x", rowsPerSecond=float("nan"), lost=1 << 60, retain=1), QueryProgress()),
        (said(batch=True, rowsPerSecond=float("inf")), QueryProgress(0, 10, 0.0, 4)),
        (said()[:-1], None),
        ('{"weir.query":' + "[" * 3000, None),
        ("spark", None),
        ("", None),
    ],
    ids=["plain", "retain", "odd", "odder", "cut", "deep", "other", "empty"],
)
def test_metadata_is_a_querys_or_somebody_elses(metadata: str, found: QueryProgress | None) -> None:
    assert parse_progress(metadata) == found


@pytest.mark.parametrize("data", [None, b"", b"\x01", b"\xff" * 50])
def test_a_damaged_position_says_nothing(data: bytes | None) -> None:
    assert progress_of_commit(data) is None


def test_a_querys_last_batch_shows_in_the_stats_and_survives_the_broker(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        await broker.load(T)
        offsets = GroupOffsets(
            LocalParts(broker, bench.runtime.clock), CoordinatorShards(broker), bench.runtime.clock
        )
        await offsets.commit("report", {T: CommittedOffset(0, metadata=said())})
        await offsets.commit("others", {T: CommittedOffset(0, metadata="mine")})
        topic = await (await bench.broker()).load(T)  # the first one is fenced
        body = topic_stats(topic.stats(), bench.runtime.clock.wall_ms())
        query = body.subscriptions["report"].query
        assert (query.batch, query.rows, query.rowsPerSecond, query.lost) == (3, 10, 2.5, 4)
        assert body.subscriptions["others"].query is None
        both = partitioned_stats({"a": body, "b": body}, each=False)
        assert both.subscriptions["report"].query.batch == 3
        shown = {"subscriptions": {"report": {"query": {"batch": 3, "rows": 10, "rowsPerSecond": 2.5, "lost": 4}}}}
        ((name, *_, rate, _, _, _, last),) = subscription_rows(shown)
        assert (name, rate, last) == ("report", Rate(2.5), "batch 3: 10 rows, 4 lost")

    run(scenario)


@pytest.mark.parametrize(("retain", "start"), [(False, 8), (True, 0)], ids=["not asked", "asked"])
def test_retention_holds_back_for_a_query_that_asks_for_it(run: Callable, retain: bool, start: int) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker(roll_entries=2)
        topic = await broker.load(T)
        offsets = GroupOffsets(
            LocalParts(broker, bench.runtime.clock), CoordinatorShards(broker), bench.runtime.clock
        )
        await topic.apply(replace(topic.policies, retention=Retention(0, 0)))
        producer = await bench.producer(topic)
        await offsets.commit("g", {T: CommittedOffset(0)})  # one that was there before, as consumer groups are
        await offsets.commit("g", {T: CommittedOffset(1, metadata=said(retain=retain))})
        for i in range(10):
            await bench.publish(producer, f"m{i}")
        await bench.runtime.clock.sleep(60)
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == start
        await offsets.commit("g", {T: CommittedOffset(10, metadata=said(retain=retain))})
        await maintain(topic, bench.runtime.clock.wall_ms())
        assert topic.start_offset == 8

    run(scenario)
