"""When a topic's ledgers go to the lake, for how long they stay there, and what is told of it."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from weir.broker.api.consumers import StartAt
from weir.broker.metadata.lake_rules import LakeRules
from weir.broker.standalone import NoTiering
from weir.broker.topics.topic import BrokerTopic
from weir.broker.upkeep.topic_upkeep import maintain
from weir.model.cluster import TIERED
from weir.model.lake import LakeCatalog
from weir.model.policies import (
    DEFAULT_POLICIES,
    LAKE_SUBSCRIPTION,
    Cleanup,
    LogCompaction,
    Policies,
    Retention,
    TieringRules,
)
from weir.model.stream import SegmentStore
from weir.model.topics import TopicName
from weir.stream.context import StreamContext
from weir.testing.storage.objects import SimObjects

HOUR_MS = 3_600_000
NAME = TopicName.parse("t")
RULES = TieringRules(HOUR_MS, SegmentStore("s3://lake/s"), Retention(-1, -1))
Run = Callable[..., None]


class Rules(NoTiering):
    def __init__(self, rules: TieringRules | None) -> None:
        self.rules = rules

    def of(self, topic: TopicName) -> TieringRules | None:
        return self.rules


class _Without:
    def uses(self, feature: str) -> bool:
        return feature != TIERED


async def opened(
    bench: Any, rules: TieringRules | None = RULES, **more: Any
) -> tuple[BrokerTopic, SimObjects, Rules]:
    objects, said = SimObjects(bench.runtime.clock, Random(1)), Rules(rules)
    context = await bench.context(tail_bytes=0)
    streams = context.streams
    features = more.pop("features", streams.features)
    tiered = StreamContext(
        streams.runtime, streams.meta, streams.ledgers, streams.tails, streams.settings, features, stores=objects
    )
    policies = Policies(**more).over(Policies(retention=Retention(60))).over(DEFAULT_POLICIES)
    topic = await BrokerTopic.open(replace(context, streams=tiered, tiering=said), NAME, policies)
    await bench.publish(await bench.producer(topic), *(f"m{at}" for at in range(10)))
    return topic, objects, said


async def after(bench: Any, topic: BrokerTopic, seconds: float, *, rounds: int = 2) -> None:
    await bench.runtime.clock.sleep(seconds)
    for _ in range(rounds):
        await maintain(topic, bench.runtime.clock.wall_ms())
        await topic.tiering.done()


async def exported(topic: BrokerTopic, offset: int) -> None:
    if LAKE_SUBSCRIPTION not in topic.subscriptions:
        await topic.stored.create_subscription(LAKE_SUBSCRIPTION, StartAt(latest=False))
    await topic.subscriptions[LAKE_SUBSCRIPTION].seek(offset)


def in_lake(topic: BrokerTopic) -> int:
    told = topic.stats().lake
    return 0 if told is None else told.end_offset


def test_a_ledger_goes_when_it_is_old_enough_and_all_of_it_is_in_the_table(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        topic, _, _ = await opened(bench)
        await after(bench, topic, 7200)
        assert in_lake(topic) == 0, "nothing is exported"
        await exported(topic, 9)
        await after(bench, topic, 10)
        assert in_lake(topic) == 0, "the last message is not"
        await exported(topic, 10)
        await after(bench, topic, 10)
        assert in_lake(topic) == 10
        assert topic.stats().lake.bytes == topic.stats().storage_bytes
        assert [one.in_lake for one in topic.stored.internal_stats().ledgers] == [True]
        await bench.publish(await bench.producer(topic), "young")
        await exported(topic, 11)
        await after(bench, topic, 10)
        assert in_lake(topic) == 10
        consumer = await bench.consumer(topic)
        assert await bench.receive(consumer, 11) == [*(f"m{at}" for at in range(10)), "young"]

    run(scenario)


def test_nothing_goes_where_nobody_said_so_or_a_broker_could_not_read_it(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        for more in (
            {"rules": None},
            {"features": _Without()},
            {"log_compaction": LogCompaction(cleanup=Cleanup.COMPACT)},
        ):
            topic, objects, _ = await opened(bench, **more)
            await exported(topic, 10)
            await after(bench, topic, 7200)
            assert not objects.objects, more

    run(scenario)


def test_the_brokers_default_retention_does_not_reach_the_lake_and_that_of_the_rules_does(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        topic, objects, said = await opened(bench)
        await exported(topic, 10)
        await after(bench, topic, 7200)
        await after(bench, topic, 10 * 3600)
        assert topic.start_offset == 0
        said.rules = replace(RULES, retention=Retention.exactly(2 * HOUR_MS, -1))
        await after(bench, topic, 10)
        assert topic.start_offset == 10
        assert not objects.objects

    run(scenario)


def test_a_key_that_compaction_erases_is_in_no_segment_any_more(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        topic, objects, _ = await opened(bench)
        producer = await bench.producer(topic)
        await bench.publish(producer, "ann:secret", "bob:kept")
        await exported(topic, 12)
        await after(bench, topic, 7200)
        assert any(b"secret" in bytes(one) for one in objects.objects.values())
        await topic.apply(replace(topic.policies, log_compaction=LogCompaction(Cleanup.COMPACT, dirty_percent=1)))
        await bench.publish(producer, "ann:", "cid:last")
        await exported(topic, 14)
        topic.compaction.start()
        await topic.compaction.ended()
        await after(bench, topic, 10)
        assert not objects.objects
        log = topic.reader()
        left = [bytes(batch.payload) for batch in await log.read(log.start_offset, 1 << 20)]
        assert b"bob:kept" in left
        assert b"ann:secret" not in left

    run(scenario)


def test_an_object_that_is_missing_does_not_keep_the_topic_from_being_looked_after(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        topic, objects, said = await opened(bench)
        await exported(topic, 10)
        await after(bench, topic, 7200)
        objects.objects.clear()
        await topic.stored.create_subscription("behind", StartAt(latest=False))
        await bench.publish(await bench.producer(topic), "more")
        await exported(topic, 11)
        await after(bench, topic, 7200)
        assert in_lake(topic) == 11, "the next ledger goes its way"
        await topic.stored.delete_subscription("behind")
        said.rules = replace(RULES, retention=Retention.exactly(2 * HOUR_MS, -1))
        await after(bench, topic, 10)
        assert topic.start_offset == 11, "and what nobody can read is forgotten when its time has come"

    run(scenario)


def test_a_store_that_is_away_keeps_ledgers_where_they_are_and_that_is_told(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        topic, objects, _ = await opened(bench)
        await exported(topic, 10)
        objects.failing = 1.0
        await after(bench, topic, 7200)
        told = topic.stats().lake
        assert told is not None
        assert told.ledgers == 0
        assert "put" in told.problem
        tried = len(objects.requests)
        await after(bench, topic, 1, rounds=1)
        assert len(objects.requests) == tried, "it waits before it tries again"
        objects.failing = 0.0
        await after(bench, topic, 600)
        assert in_lake(topic) == 10
        assert topic.stats().lake.problem == ""

    run(scenario)


class _Found:
    def __init__(self, **values: Any) -> None:
        self.properties: dict[str, str] = {}
        self.policies = Policies()
        self.__dict__.update(values)


class _Registry:
    """A namespace and a topic of it."""

    def __init__(self, namespace: _Found, topic: _Found) -> None:
        self.namespaces = self.topics = self.lake_catalogs = self
        self.revision = 0
        self._found = {"NamespaceName": namespace, "TopicName": topic}

    def all(self) -> dict[str, LakeCatalog]:
        """What a superuser has defined."""
        options = {"s3.endpoint": "e", "client.region": "r"}
        return {"ours": LakeCatalog("ours", "s3://lake/x/", "http://c", options, ("public",))}

    def find(self, name: Any) -> _Found:
        return self._found[type(name).__name__]


def rules_of(properties: dict[str, str], name: str = "t", **policies: Policies) -> TieringRules | None:
    namespace = _Found(properties=properties, policies=policies.get("namespace", Policies()))
    found = _Found(policies=policies.get("topic", Policies()))
    return LakeRules(_Registry(namespace, found)).of(TopicName.parse(name))  # type: ignore[arg-type]


OWNER = "0" * 32
TIERED_LAKE = '{"catalog": "ours", "tieredAfterMs": 5}'
#: As an older Weir wrote it, whose namespaces had addresses of their own.
OLD_LAKE = (
    '{"to": "s3://lake/x/", "catalog": "http://c", "options": {"s3.endpoint": "e", "client.region": "r"}, '
    '"tieredAfterMs": 5}'
)


def test_rules_are_the_topics_own_before_its_namespaces() -> None:
    assert rules_of({}) is None
    assert rules_of({"lake": '{"catalog": "ours"}'}) is None
    assert rules_of({"lake": "what?"}) is None
    assert rules_of({"lake": TIERED_LAKE, "lake.t": "off"}) is None
    for text in (TIERED_LAKE, OLD_LAKE):
        found = rules_of({"lake": text, "lake-owner": OWNER})
        assert found is not None
        assert found.after_ms == 5
        folder = SegmentStore(f"s3://lake/x/_segments/{OWNER}/public/default/t", {"s3.endpoint": "e"})
        assert found.folder == folder
    odd = rules_of({"lake": TIERED_LAKE, "lake-owner": OWNER}, "persistent://public/default/a b%")
    assert odd is not None
    assert odd.folder is not None
    assert odd.folder.url.endswith("/public/default/a%20b%25")


@pytest.mark.parametrize(
    "text",
    [
        '{"catalog": "theirs", "tieredAfterMs": 5}',
        OLD_LAKE.replace("s3://lake/x/", "file:///etc"),
        OLD_LAKE.replace('"e"', '"evil"'),
        OLD_LAKE.replace("http://c", "sqlite:////etc/x"),
    ],
)
def test_a_broker_writes_only_where_a_superuser_said_and_keeps_what_it_kept(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = rules_of({"lake": text, "lake-owner": OWNER})
    assert found == TieringRules(5, None, Retention(-1, -1)), "retention stays as it was: nothing is deleted"
    assert "lake definition of public/default ignored" in caplog.text


def test_an_owner_that_is_no_id_is_no_part_of_a_path() -> None:
    found = rules_of({"lake": TIERED_LAKE, "lake-owner": "../../../etc"})
    assert found is not None
    assert found.folder is not None
    assert found.folder.url == "s3://lake/x/_segments/weir/public/default/t"


def test_a_topic_whose_catalog_is_ignored_keeps_its_ledgers(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        topic, objects, _ = await opened(bench, replace(RULES, folder=None))
        await exported(topic, 10)
        await after(bench, topic, 7200)
        assert in_lake(topic) == 0
        assert topic.stats().storage_bytes > 0
        assert not await objects.open("s3://lake/s", {}).list()

    run(scenario)


def test_retention_is_what_somebody_said_and_no_longer_than_the_lake_keeps() -> None:
    kept = TIERED_LAKE.replace("5}", '5, "keepMs": 60000}')
    day = Policies(retention=Retention.exactly(86_400_000, 1000))

    def of(text: str, **said: Policies) -> tuple[int, int]:
        found = rules_of({"lake": text}, **said)
        assert found is not None
        return found.retention.time_ms, found.retention.size_bytes

    assert of(TIERED_LAKE) == (-1, -1)
    assert of(kept) == (60_000, -1)
    assert of(TIERED_LAKE, namespace=day) == (86_400_000, 1000)
    assert of(kept, topic=day) == (60_000, 1000)
