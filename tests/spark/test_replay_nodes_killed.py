"""Replays while SIGKILL strikes: Spark's workers while they pick; brokers, bookies and etcd at every step.

Every message that was picked is counted, where it goes and where it must not go; each is there once.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from weir.client.admin import Access
from weir.client.replays import find_replay
from weir.model.definitions import Replay, ReplayState
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.spark.replay.delivery import Delivery, go_on
from weir.spark.replay.requests import Request, begin, resolve
from weir.spark.sql import statements as s
from weir.spark.sql.console import Console
from weir.spark.tables.names import WeirCluster
from weir.testing.soak.cluster_process import ClusterProcess, Node

from .conftest import Topics
from .replay_kit import Command, new_name, place_of, take, wait_picking
from .sql_session import stored
from .standalone import DEADLINE_S, SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("spark"),
]

PARTITIONS, EACH = 2, 150
WHERE = "CAST(value AS string) LIKE '%0' OR CAST(value AS string) LIKE '%5'"
#: In all of which something is killed.
STEPS = ("begun", "picking", "selected", "counted", "fixed", "sending", "sent", "reported", "delivered", "done")


def fill(topics: Topics, name: str) -> None:
    for partition in range(PARTITIONS):
        topics.fill(name, [f"{partition}-{at:04d}" for at in range(EACH)], partition)


def picked() -> list[str]:
    """What the condition picks, in the order of each partition."""
    return [f"{partition}-{at:04d}" for partition in range(PARTITIONS) for at in range(0, EACH, 5)]


class Subscriptions:
    """`billing` and `other` of a topic, behind all that is there. Nobody consumes while something is killed: what
    comes twice then is there twice."""

    def __init__(self, pulsar_url: str, topic: str, folder: Path) -> None:
        self._url, self._topic, self._folder = pulsar_url, topic, folder
        for name in ("billing", "other"):
            self.take(name, 0)

    def take(self, name: str, count: int) -> list[str]:
        return take(self._url, self._folder, self._topic, name, count)

    def check(self, topics: Topics) -> None:
        """`billing` has all that was picked, in order, and `other` nothing."""
        last = [f"last {partition}" for partition in range(PARTITIONS)]
        for partition, value in enumerate(last):
            topics.fill(self._topic, [value], partition)
        got = self.take("billing", len(picked()) + PARTITIONS)
        assert sorted(got) == sorted([*picked(), *last])
        for partition in range(PARTITIONS):
            mine = [value for value in got if value.startswith(f"{partition}-")]
            assert mine == sorted(mine)
        assert sorted(self.take("other", PARTITIONS)) == last


# --- Spark's workers ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    found = SparkCluster(tmp_path_factory.mktemp("standalone"))
    try:
        yield found.start()
    finally:
        found.close()


@pytest.mark.parametrize(("step", "worker"), [("started", "left"), ("picking", "right")])
def test_a_worker_of_sparks_that_is_killed_while_it_picks_costs_no_message(
    topics: Topics, tmp_path: Path, standalone: SparkCluster, step: str, worker: str
) -> None:
    place = place_of(topics)
    source, target = (topics.create(PARTITIONS, name=new_name(what)) for what in ("from", "to"))
    fill(topics, source)
    command = Command(topics.up.http_url, tmp_path, WEIR_SPARK_MASTER=standalone.url, **standalone.variables)
    process = command.start("--topic", source, "--where", WHERE, "--into", target)
    try:
        standalone.workers[worker].said(r"(Asked to launch executor \S+ for weir-sql)")
        if step == "picking":
            wait_picking(place, source)
        standalone.workers[worker].kill()
        assert process.wait(DEADLINE_S) == 0, command.log
    finally:
        process.kill()
        process.wait()
        standalone.add(worker)
        standalone.workers[worker].said(r"(Successfully registered with master)")
    assert [value for _, value in stored(topics.servers, target)] == picked()


# --- brokers, bookies, metadata ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path_factory.mktemp("cluster"), "--brokers", "2")
    try:
        yield process.start()
    finally:
        process.close()


class Strikes:
    """Kills something at each step, when it is reached for the first time."""

    def __init__(self, strike: Callable[[], None]) -> None:
        self._strike = strike
        self.left = list(STEPS)

    def reached(self, step: str) -> None:
        if step in self.left:
            self.left.remove(step)
            self._strike()

    @contextmanager
    def picking(self, spark: "SparkSession") -> Iterator[None]:
        """In the middle of what Spark does here."""
        ended = Event()

        def watch() -> None:
            while not ended.is_set() and not spark.sparkContext.statusTracker().getActiveStageIds():
                time.sleep(0.01)
            self.reached("picking")

        thread = Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def persist(place: WeirCluster, replay: Replay, spark: "SparkSession", strikes: Strikes) -> Replay:
    """Until it is done: whatever fails is resumed, as somebody would who types `weir replay resume`."""

    def select(one: Replay) -> None:
        strikes.reached("begun")
        with strikes.picking(spark):
            Console(lambda: spark, place).do(s.SelectReplay(one.id))
        strikes.reached("selected")

    failures: list[WeirError] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            now = find_replay(place.access, replay.id)
            return go_on(place, now, select, Delivery(place, reached=strikes.reached))
        except WeirError as failure:
            failures.append(failure)
            time.sleep(0.2)
    raise AssertionError(failures)


class ByTurns:
    """Kills the nodes of a role, one after the other; each is back before the next one dies."""

    def __init__(self, cluster: ClusterProcess, role: str) -> None:
        self._cluster = cluster
        self._role = role
        self._turn = 0
        self._last: Node | None = None

    def __call__(self) -> None:
        self.wait()
        nodes = self._cluster.nodes(self._role)
        self._last = nodes[self._turn % len(nodes)]
        self._turn += 1
        self._cluster.kill(self._last)

    def wait(self) -> None:
        if self._last is not None:
            self._cluster.wait_replaced(self._last)


@pytest.mark.parametrize(("role", "into"), [("broker", "billing"), ("bookie", "topic"), ("etcd", "billing")])
def test_nodes_that_are_killed_at_every_step_lose_no_message_and_deliver_none_twice(
    spark: "SparkSession", cluster: ClusterProcess, tmp_path: Path, role: str, into: str
) -> None:
    place = WeirCluster(Access(f"http://{cluster.http}"), cluster.kafka)
    topics = Topics(cluster)
    source, target = (topics.create(PARTITIONS, name=new_name(what)) for what in ("from", "to"))
    fill(topics, source)
    subscriptions = Subscriptions(cluster.pulsar_url, source, tmp_path)
    goal = "subscription:billing" if into == "billing" else target
    replay = begin(place, resolve(place, Request(TopicName.parse(source), goal, WHERE, rate=20)))
    by_turns = ByTurns(cluster, role)
    strikes = Strikes(by_turns)
    done = persist(place, replay, spark, strikes)
    assert strikes.left == []
    assert (done.state, sum(done.selected), sum(done.delivered)) == (ReplayState.DONE, 60, 60)
    by_turns.wait()
    if into == "billing":
        subscriptions.check(topics)
    else:
        assert [value for _, value in stored(topics.servers, target)] == picked()
